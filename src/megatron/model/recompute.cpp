#include "megatron/model/recompute.h"

#include <optional>
#include <utility>

#include "megatron/parallel/backward.h"

namespace megatron::model {

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
