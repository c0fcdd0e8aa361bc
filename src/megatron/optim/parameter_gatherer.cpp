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
      overlap_(overlap) {}

void ParameterGatherer::start() const {
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
  if (!overlap_) parameters_.values();  // waits
}

}  // namespace megatron::optim
