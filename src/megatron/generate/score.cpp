#include "megatron/generate/score.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace megatron::generate {
namespace {

using tasks::Window;
using tasks::WindowBatch;
using tasks::WindowScore;

/// A batch of windows as a model takes them: rows of tokens, padded at their ends, which nothing before them sees.
struct ScoreBatch {
  at::Tensor tokens_bs;
  model::ScoredTokens scored;  ///< window after window
};

ScoreBatch inputs(std::span<const std::int64_t> ids, const std::vector<Window>& windows, const WindowBatch& batch,
                  const ScoreOptions& options, at::Device device) {
  const auto b = static_cast<std::int64_t>(batch.windows.size()), s = batch.size - 1;  // the last is only a label
  auto tokens = at::zeros({b, s}, at::kLong);
  std::vector<std::int64_t> rows, labels;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t i : batch.windows) {
    const Window& window = windows[static_cast<std::size_t>(i)];
    first = std::min(first, window.first_scored - window.begin - 1);
  }
  for (std::int64_t r = 0; r < b; ++r) {
    const Window& window = windows[static_cast<std::size_t>(batch.windows[static_cast<std::size_t>(r)])];
    const auto* from = ids.data() + window.begin;
    std::copy(from, from + window.size - 1, tokens.mutable_data_ptr<std::int64_t>() + r * s);
    for (std::int64_t t = window.first_scored - window.begin; t < window.size; ++t) {
      rows.push_back((t - 1 - first) * b + r);
      labels.push_back(from[t]);
    }
  }
  const auto to_device = [&](std::vector<std::int64_t>& values) {
    return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong).clone().to(device);
  };
  return {tokens.to(device),
          {.first = first, .rows = to_device(rows), .labels = to_device(labels), .likeliest = options.likeliest}};
}

/// Sums over the tokens of each window.
void take_scores(const parallel::VocabParallelOutput::TokenLosses& tokens, const ScoreBatch& in,
                 const std::vector<Window>& windows, const WindowBatch& batch, std::vector<WindowScore>& scores) {
  const auto losses = tokens.loss.to(at::kCPU, at::kDouble).contiguous();
  const auto hits =
      tokens.likeliest.defined() ? tokens.likeliest.eq(in.scored.labels).to(at::kCPU).contiguous() : at::Tensor();
  const double* loss = losses.const_data_ptr<double>();
  const bool* hit = hits.defined() ? hits.const_data_ptr<bool>() : nullptr;
  for (const std::int64_t i : batch.windows) {
    const std::int64_t n = windows[static_cast<std::size_t>(i)].scored();
    WindowScore& score = scores[static_cast<std::size_t>(i)];
    for (std::int64_t t = 0; t < n; ++t) score.nll += loss[t];
    loss += n;
    if (hit == nullptr) continue;
    score.right = std::all_of(hit, hit + n, [](bool is) { return is; });
    hit += n;
  }
}

/// What one rank has is 0 on all others: the sum is it, to the bit.
void share_scores(std::vector<WindowScore>& scores, const ScoreRanks& ranks, at::Device device) {
  if (ranks.pp.size() * ranks.dp.size() == 1) return;
  auto values = at::empty({static_cast<std::int64_t>(scores.size()), 2}, at::kDouble);
  auto* value = values.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    value[2 * i] = scores[i].nll;
    value[2 * i + 1] = scores[i].right ? 1 : 0;
  }
  const auto sums = values.to(device);
  ranks.pp.all_reduce(sums);
  ranks.dp.all_reduce(sums);
  const auto back = sums.to(at::kCPU);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i].nll = back.const_data_ptr<double>()[2 * i];
    scores[i].right = back.const_data_ptr<double>()[2 * i + 1] != 0;
  }
}

}  // namespace

std::vector<WindowScore> score_windows(const model::ScoringGpt& stage, const ScoreRanks& ranks,
                                       at::TensorOptions tensor, std::span<const std::int64_t> ids,
                                       const std::vector<Window>& windows, const ScoreOptions& options,
                                       const OnWindows& on_windows) {
  const int pp_rank = ranks.pp.rank(), last = ranks.pp.size() - 1;
  std::vector<WindowScore> scores(windows.size());
  std::int64_t done = 0;
  const auto batches = tasks::window_batches(windows, options.batch, options.batch_tokens);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    done += static_cast<std::int64_t>(batches[i].windows.size());
    if (static_cast<int>(i % static_cast<std::size_t>(ranks.dp.size())) != ranks.dp.rank()) continue;
    const auto in = inputs(ids, windows, batches[i], options, tensor.device());
    at::Tensor x = in.tokens_bs;
    if (pp_rank > 0) {
      x = at::empty({in.tokens_bs.size(1), in.tokens_bs.size(0), stage.options().shape.hidden}, tensor);
      ranks.pp.recv(x, pp_rank - 1);
    }
    if (pp_rank < last)
      ranks.pp.send(stage.forward(x), pp_rank + 1);
    else
      take_scores(stage.score(x, in.scored), in, windows, batches[i], scores);
    if (on_windows) on_windows(done);
  }
  share_scores(scores, ranks, tensor.device());
  return scores;
}

}  // namespace megatron::generate
