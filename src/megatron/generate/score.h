#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/decoding/score.h"
#include "megatron/tasks/scores/eval_scores.h"
#include "megatron/tasks/windows.h"

// How likely a model finds given tokens: the loss of a long text, the last word of a passage, the answers to a
// question.
namespace megatron::generate {

/// Where the ranks that compute it stand: `pp` hold the stages of a model, in order, and `dp` share the batches.
struct ScoreRanks {
  comm::Group pp, dp;
};

struct ScoreOptions {
  std::int64_t batch = 0;  ///< windows computed at once; 0: as many as hold batch_tokens
  std::int64_t batch_tokens = 4096;
  bool likeliest = false;  ///< whether WindowScore::right is asked for
};

/// Told how many of all windows the ranks' shares have come to.
using OnWindows = std::function<void(std::int64_t done)>;

/// The score of each of `windows` into `ids`, in their order. `stage`: this rank's of the model. Only the scored tokens
/// have logits, and the last layer computes the positions before them no further than their keys and values. Collective
/// over tp, pp and dp. Every rank returns the same; with as many threads per rank to the bit in every split over pp and
/// dp, while over tp sums are taken in another order. Throws ConfigError for a token or position outside the model's.
std::vector<tasks::WindowScore> score_windows(const model::ScoringGpt& stage, const ScoreRanks& ranks,
                                              at::TensorOptions tensor, std::span<const std::int64_t> ids,
                                              const std::vector<tasks::Window>& windows, const ScoreOptions& options,
                                              const OnWindows& on_windows = {});

}  // namespace megatron::generate
