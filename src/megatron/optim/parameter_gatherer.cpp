#include "megatron/optim/parameter_gatherer.h"

#include <map>
#include <utility>
#include <vector>

#include "megatron/kernels/matmul.h"

namespace megatron::optim {
namespace {

/// The units that an operation reads.
std::vector<int> order_of(const std::map<int, plan::UnitOrders>& all, const schedule::Op& op) {
  const auto orders = all.find(op.stage);
  if (orders == all.end() || op.kind == schedule::Kind::BackwardWeight) return {};
  if (op.kind == schedule::Kind::Forward) return orders->second.forward;
  return op.partial ? orders->second.partial_backward : orders->second.backward;
}

}  // namespace

ParameterGatherer::ParameterGatherer(const parallel::ParameterStore& parameters, comm::Group dp,
                                     std::vector<plan::Shard> owned, bool overlap, comm::Group experts)
    : parameters_(parameters),
      dp_(std::move(dp)),
      experts_(std::move(experts)),
      owned_(std::move(owned)),
      overlap_(overlap) {
  if (parameters.pooled_values()) units_ = std::make_unique<UnitGatherer>(parameters, dp_, overlap, experts_);
  if (parameters.frozen() && parameters.frozen()->pooled_values())
    frozen_ = std::make_unique<UnitGatherer>(*parameters.frozen(), dp_, overlap, experts_);
}

void ParameterGatherer::start() const {
  if (units_) return units_->forget();
  const at::Tensor values = parameters_.values();
  const auto part = [&](std::int64_t begin, std::int64_t end) { return values.narrow(0, begin, end - begin); };
  const auto& buckets = parameters_.layout().buckets;
  for (std::size_t b = buckets.size(); b-- > 0;) {  // the buffer lies in reverse order of the forward pass
    const plan::Range& own = owned_[b].world;
    if (own == plan::Range{buckets[b].begin, buckets[b].end}) continue;
    parameters_.arrival(b).expect(
        (buckets[b].experts ? experts_ : dp_)
            .all_gather_async(part(buckets[b].begin, buckets[b].end), part(own.begin, own.end)));
    kernels::written_to(values);  // by the transport: copies of the parameters are old
  }
  if (!overlap_) parameters_.await_values();
}

void ParameterGatherer::forget() const {
  for (const auto* units : {&units_, &frozen_})
    if (*units) (*units)->forget();
}

void ParameterGatherer::begin(const schedule::Op& op, const schedule::Op* next) const {
  const auto tell = [&](UnitGatherer& units, const parallel::ParameterStore& store) {
    const auto& orders = store.pooled_values()->pool.orders;
    const std::vector<int> after = next == nullptr ? std::vector<int>() : order_of(orders, *next);
    units.begin(order_of(orders, op), after.empty() ? -1 : after.front());
  };
  if (units_) tell(*units_, parameters_);
  if (frozen_) tell(*frozen_, *parameters_.frozen());
}

void ParameterGatherer::end() const {
  for (const auto* units : {&units_, &frozen_})
    if (*units) (*units)->settle();
}

}  // namespace megatron::optim
