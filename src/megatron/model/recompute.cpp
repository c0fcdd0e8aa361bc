#include "megatron/model/recompute.h"

#include <algorithm>
#include <utility>

#include "megatron/parallel/backward.h"

namespace megatron::model {

std::vector<LayerGroup> layer_groups(const Recompute& recompute, std::int64_t num_layers) {
  const bool uniform = recompute.layers == Recompute::Layers::Uniform;
  const std::int64_t size = uniform ? std::max<std::int64_t>(recompute.num_layers, 1) : 1;
  const std::int64_t again = uniform                                        ? num_layers
                             : recompute.layers == Recompute::Layers::Block ? std::min(recompute.num_layers, num_layers)
                                                                            : 0;
  std::vector<LayerGroup> groups;
  for (std::int64_t first = 0; first < again; first += size)
    groups.push_back({.first = first, .last = std::min(first + size, again), .again = true});
  if (again < num_layers) groups.push_back({.first = again, .last = num_layers, .again = false});
  return groups;
}

at::Tensor recomputed(const at::Tensor& x, const Compute& compute, const comm::Group& split) {
  const auto y = parallel::without_autograd([&] { return compute(x.detach(), parallel::Value::Needed); });
  if (!parallel::records_gradient({x})) return y;
  auto kept = x.detach();
  if (split.size() > 1) {
    const std::int64_t rows = x.size(0) / split.size();
    kept = kept.narrow(0, rows * split.rank(), rows).clone();
  }
  auto backward = [kept, compute, split](const std::vector<at::Tensor>& grads) {
    const c10::AutoGradMode on(true);
    parallel::GraphLeaf leaf(split.size() > 1 ? split.all_gather(kept, 0) : kept);
    parallel::GraphRoot(compute(leaf.take(), parallel::Value::Unread)).backward(grads[0]);
    return std::vector<at::Tensor>{leaf.take_gradient()};
  };
  return parallel::with_backward({x}, y, std::move(backward));
}

}  // namespace megatron::model
