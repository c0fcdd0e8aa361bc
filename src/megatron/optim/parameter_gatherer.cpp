#include "megatron/optim/parameter_gatherer.h"

#include <utility>

#include "megatron/kernels/matmul.h"

namespace megatron::optim {

ParameterGatherer::ParameterGatherer(const parallel::ParameterStore& parameters, comm::Group dp,
                                     std::vector<plan::Shard> owned, bool overlap, comm::Group experts)
    : parameters_(parameters),
      dp_(std::move(dp)),
      experts_(std::move(experts)),
      owned_(std::move(owned)),
      overlap_(overlap) {
  if (parameters.pooled_values()) units_ = std::make_unique<UnitGatherer>(parameters, dp_, overlap, experts_);
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
  if (units_) units_->forget();
}

const std::vector<int>& ParameterGatherer::order_of(const schedule::Op& op) const {
  static const std::vector<int> kNothing;
  const auto& all = parameters_.pooled_values()->pool.orders;
  const auto orders = all.find(op.stage);
  if (orders == all.end() || op.kind == schedule::Kind::BackwardWeight) return kNothing;
  if (op.kind == schedule::Kind::Forward) return orders->second.forward;
  return op.partial ? orders->second.partial_backward : orders->second.backward;
}

void ParameterGatherer::begin(const schedule::Op& op, const schedule::Op* next) const {
  if (!units_) return;
  const std::vector<int>* const after = next == nullptr ? nullptr : &order_of(*next);
  units_->begin(order_of(op), after == nullptr || after->empty() ? -1 : after->front());
}

void ParameterGatherer::end() const {
  if (units_) units_->settle();
}

}  // namespace megatron::optim
