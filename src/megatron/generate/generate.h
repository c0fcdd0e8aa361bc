#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/generate/sampler.h"
#include "megatron/generate/staged_model.h"

namespace megatron::generate {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  SamplingOptions sampling = {};
  std::uint64_t seed = 1234;
  std::vector<std::int64_t> ends = {};  ///< tokens that end a text
  /// Told of the logits that each new token was drawn from, before it is.
  std::function<void(std::size_t prompt, std::span<const double> logits, std::int64_t token)> on_logits = {};
  /// Prompts go through the model in groups, one after another, whose keys, values and logits take as much (over all
  /// ranks, in float32 and float64); a single prompt may take more.
  std::int64_t group_bytes = std::int64_t{1} << 30;
};

/// Throws ConfigError for an empty prompt, one longer than `context` tokens (naming both numbers) or options that do
/// not hold: what generate() would throw, before any model is loaded.
void check(const std::vector<std::vector<std::int64_t>>& prompts, std::int64_t context, const GenerateOptions& options);

/// Numbers that keys and values of one position take on all ranks that hold the model together, `tp` of them each
/// layer.
std::int64_t numbers_of_row(const plan::ModelShape& shape, int tp);
/// Bytes of the logits of one text, in float32 and float64.
std::int64_t logits_bytes_of(const plan::ModelShape& shape);

/// Bytes that keys, values and logits of the group of prompts that takes most are given when it begins, on all ranks
/// that hold the model together; `element_bytes`: of a key's number. 0 where no prompt gets a token.
std::int64_t largest_group_bytes(const std::vector<std::vector<std::int64_t>>& prompts, const GenerateOptions& options,
                                 const plan::ModelShape& shape, std::int64_t element_bytes, int tp = 1);

/// New tokens for each prompt, the ending one included. A text ends at one of `ends`, after max_new_tokens, or where
/// the context (the model's positions) is full. Prompts of different lengths go through the model together (as many as
/// options.group_bytes hold), aligned at their ends; each gives what it would give alone, except that copies of one
/// prompt get texts of their own (Draws). Texts that have ended leave the batch.
///
/// Collective over the ranks that hold the model: every one gets the same logits, draws the same tokens and
/// returns the same. Throws ConfigError for an empty prompt, one longer than the context (naming both numbers) or
/// options that do not hold; std::runtime_error naming the position where logits are not finite.
std::vector<std::vector<std::int64_t>> generate(const StagedModel& model,
                                                const std::vector<std::vector<std::int64_t>>& prompts,
                                                const GenerateOptions& options, const OnToken& on_token = {});

}  // namespace megatron::generate
