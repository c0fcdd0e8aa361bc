#include "megatron/generate/perplexity.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::generate {
namespace {

using Batch = std::span<const Window>;

/// Neighbours of equal size, at most `largest` together.
std::vector<Batch> batches(const std::vector<Window>& windows, std::int64_t largest) {
  std::vector<Batch> result;
  for (std::size_t begin = 0, end = 0; begin < windows.size(); begin = end) {
    while (end < windows.size() && windows[end].size == windows[begin].size &&
           static_cast<std::int64_t>(end - begin) < largest)
      ++end;
    result.emplace_back(windows.data() + begin, end - begin);
  }
  return result;
}

model::Batch inputs(std::span<const std::int64_t> ids, Batch windows, at::TensorOptions tensor) {
  const auto b = static_cast<std::int64_t>(windows.size()), s = windows[0].size - 1;
  auto tokens = at::empty({b, s}, at::kLong), labels = at::empty({b, s}, at::kLong),
       mask = at::zeros({b, s}, at::kFloat);
  for (std::int64_t r = 0; r < b; ++r) {
    const Window& window = windows[static_cast<std::size_t>(r)];
    const auto* from = ids.data() + window.begin;
    std::copy(from, from + s, tokens.mutable_data_ptr<std::int64_t>() + r * s);
    std::copy(from + 1, from + 1 + s, labels.mutable_data_ptr<std::int64_t>() + r * s);
    const std::int64_t scored = window.first_scored - window.begin - 1;  // labels are one ahead
    std::fill(mask.mutable_data_ptr<float>() + r * s + scored, mask.mutable_data_ptr<float>() + (r + 1) * s, 1.0F);
  }
  const auto precise = tensor.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  model::Batch batch;
  batch.tokens_bs = tokens.to(tensor.device());
  batch.labels_bs = labels.to(tensor.device());
  batch.loss_mask_bs = mask.to(tensor.device(), precise);
  return batch;
}

}  // namespace

std::vector<Window> windows(std::int64_t tokens, std::int64_t window, std::int64_t stride) {
  if (window < 2) throw ConfigError(rule_got_fix("window must be 2 or more.", concat(window)));
  if (stride < 1 || stride > window)
    throw ConfigError(rule_got_fix("stride must be 1 to window.", concat(stride, " of ", window)));
  if (tokens < 2) throw ConfigError(rule_got_fix("a text must have two tokens to be scored.", concat(tokens)));
  std::vector<Window> result;
  for (std::int64_t begin = 0, seen = 0; seen < tokens; begin += stride) {
    Window next{.begin = begin, .size = std::min(window, tokens - begin)};
    next.first_scored = stride == window ? begin + 1 : std::max(seen, begin + 1);
    seen = begin + next.size;
    if (next.scored() > 0) result.push_back(next);
  }
  return result;
}

TextLoss text_loss(const model::Gpt& stage, const LossRanks& ranks, at::TensorOptions tensor,
                   std::span<const std::int64_t> ids, const std::vector<Window>& windows, std::int64_t batch,
                   const OnWindows& on_windows) {
  const int pp_rank = ranks.pp.rank(), last = ranks.pp.size() - 1;
  TextLoss total;
  std::int64_t done = 0;
  const auto work = batches(windows, batch);
  for (std::size_t i = 0; i < work.size(); ++i) {
    for (const Window& window : work[i]) total.scored_tokens += window.scored();
    done += static_cast<std::int64_t>(work[i].size());
    if (static_cast<int>(i % static_cast<std::size_t>(ranks.dp.size())) != ranks.dp.rank()) continue;
    const auto in = inputs(ids, work[i], tensor);
    at::Tensor x;
    if (pp_rank > 0) {
      x = at::empty({in.tokens_bs.size(1), in.tokens_bs.size(0), stage.options().shape.hidden}, tensor);
      ranks.pp.recv(x, pp_rank - 1);
    }
    if (pp_rank < last)
      ranks.pp.send(stage.forward(x, in, false).contiguous(), pp_rank + 1);
    else
      total.nll += stage.loss(x, in, false).sum.item<double>();
    if (on_windows) on_windows(done);
  }
  const auto nll = at::tensor(std::vector<double>{total.nll}, at::kDouble).to(tensor.device());
  ranks.pp.all_reduce(nll);
  ranks.dp.all_reduce(nll);
  total.nll = nll.item<double>();
  return total;
}

}  // namespace megatron::generate
