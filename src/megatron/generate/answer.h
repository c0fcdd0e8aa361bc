#pragma once
#include <cstdint>
#include <vector>

#include "megatron/generate/beam_search.h"
#include "megatron/generate/sampler.h"
#include "megatron/generate/staged_t5.h"

namespace megatron::generate {

struct AnswerOptions {
  BeamOptions beams = {};
  SamplingOptions sampling = {.temperature = 0};  ///< above 0: tokens are drawn, and there is one beam
  std::uint64_t seed = 1234;                      ///< of the draws
  std::int64_t start = 0;                         ///< the token with which the decoder begins
  /// Texts go through the model in groups, one after another, whose keys, values and logits take as much (over all
  /// ranks, in float32 and float64) if their answers become as long as they may; a single text may take more.
  std::int64_t group_bytes = std::int64_t{1} << 30;
};

/// Throws ConfigError for a text without a token, or with too many, and for options that do not hold: what answers()
/// would throw, before any model is loaded.
void check(const std::vector<std::vector<std::int64_t>>& texts, std::int64_t vocab, const AnswerOptions& options);

/// What a T5 answers to each of `texts`: the best that beam search finds, best first, at least one and at most as many
/// as there are beams; or an answer that is drawn, by the random numbers that continue a GPT's prompt (Draws). Texts of
/// different lengths share a batch; each gets what it would get alone, except that copies of one text get drawn answers
/// of their own. Texts whose search is over leave the batch. `on_token` hears of one beam's tokens.
///
/// Collective over the ranks that hold the model: every one gets the same logits and returns the same. Throws as
/// check() does, ConfigError for a token outside the model's, std::runtime_error where logits are not finite.
std::vector<std::vector<Beam>> answers(const StagedT5& model, const std::vector<std::vector<std::int64_t>>& texts,
                                       const AnswerOptions& options, const OnToken& on_token = {});

}  // namespace megatron::generate
