#include "megatron/model/recompute.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "megatron/parallel/backward.h"

namespace megatron::model {

namespace {

/// The first so many layers are computed again.
std::int64_t recomputed_layers(const Recompute& recompute, std::int64_t num_layers, bool partial) {
  switch (recompute.layers) {
    case Recompute::Layers::None:
      return 0;
    case Recompute::Layers::Uniform:
      return partial ? 0 : num_layers;
    case Recompute::Layers::Block:
      return recompute.some_partial && !partial ? num_layers : std::min(recompute.num_layers, num_layers);
  }
  return 0;
}

}  // namespace

std::vector<LayerGroup> layer_groups(const Recompute& recompute, std::int64_t num_layers, bool partial) {
  const bool uniform = recompute.layers == Recompute::Layers::Uniform;
  const std::int64_t size = uniform ? std::max<std::int64_t>(recompute.num_layers, 1) : 1;
  const std::int64_t again = recomputed_layers(recompute, num_layers, partial);
  std::vector<LayerGroup> groups;
  for (std::int64_t first = 0; first < again; first += size)
    groups.push_back({.first = first, .last = std::min(first + size, again), .again = true});
  if (again < num_layers) groups.push_back({.first = again, .last = num_layers, .again = false});
  return groups;
}

at::Tensor recomputed(const at::Tensor& x, const Compute& compute, const comm::Group& split, const at::Tensor& beside) {
  const auto whole = beside.defined() ? beside.detach() : at::Tensor();
  const auto y = parallel::without_autograd([&] { return compute(x.detach(), whole, parallel::Value::Needed); });
  if (!parallel::records_gradient({x})) return y;
  auto kept = x.detach();
  if (split.size() > 1) {
    const std::int64_t rows = x.size(0) / split.size();
    kept = kept.narrow(0, rows * split.rank(), rows).clone();
  }
  auto backward = [kept, whole, compute, split](const std::vector<at::Tensor>& grads) {
    const c10::AutoGradMode on(true);
    parallel::GraphLeaf leaf(split.size() > 1 ? split.all_gather(kept, 0) : kept);
    std::optional<parallel::GraphLeaf> other;
    if (whole.defined()) other.emplace(whole);
    parallel::GraphRoot(compute(leaf.take(), other ? other->take() : at::Tensor(), parallel::Value::Unread))
        .backward(grads[0]);
    std::vector<at::Tensor> gradients{leaf.take_gradient()};
    if (other) gradients.push_back(other->take_gradient());
    return gradients;
  };
  std::vector<at::Tensor> inputs{x};
  if (beside.defined()) inputs.push_back(beside);
  return parallel::with_backward(inputs, y, std::move(backward));
}

}  // namespace megatron::model
