#pragma once
#include <cmath>
#include <span>

#include "megatron/base/philox.h"
#include "tests/train/tiny_run.h"

// Text with a rule, which a small model learns in a few steps: where what is learnt is to tell a right implementation
// from a wrong one, random tokens do not (their loss stays at that of chance whatever is computed).
namespace megatron::train::testing {

/// Tokens of the text, spread over the vocabulary. Each is followed by the next, the last by the first; where a sample
/// begins is drawn.
inline constexpr std::int64_t kPatternTokens = 8;

/// Least loss, in nats, of what does not look at the token before: every token is as likely at every position.
inline const double kPatternChance = std::log(static_cast<double>(kPatternTokens));

/// As synthetic_batch(), of this text.
inline model::Batch pattern_batch(std::span<const std::int64_t> sample_ids, std::int64_t seq_length,
                                  std::int64_t vocab) {
  auto batch = synthetic_batch(sample_ids, seq_length, vocab, /*seed=*/1, at::kCPU);
  auto* const tokens = batch.tokens_bs.mutable_data_ptr<std::int64_t>();
  auto* const labels = batch.labels_bs.mutable_data_ptr<std::int64_t>();
  const std::uint64_t key = stream_key(1, "where patterns begin");
  const auto token = [&](std::int64_t place) { return place % kPatternTokens * (vocab / kPatternTokens); };
  for (std::size_t b = 0; b < sample_ids.size(); ++b) {
    const auto first = static_cast<std::int64_t>(random_word(key, static_cast<std::uint64_t>(sample_ids[b]), 0) % 1000);
    for (std::int64_t i = 0; i < seq_length; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(b) * seq_length + i;
      tokens[at] = token(first + i);
      labels[at] = token(first + i + 1);
    }
  }
  return batch;
}

/// Step number `i` of `run` on this text.
inline StepResult pattern_step(const plan::ResolvedRun& run, Engine& engine, std::int64_t i) {
  const auto& train = run.config.train;
  const auto samples = plan::batch_plan(i * train.global_batch_size, train.global_batch_size, train.micro_batch_size,
                                        run.grid.sample_shares(), engine.context.samples().rank())
                           .microbatches;
  return engine.step(
      static_cast<int>(samples.size()),
      [&](std::size_t m) { return pattern_batch(samples[m], run.config.data.seq_length, run.shape.vocab); },
      run.learning_rate.at(i * train.global_batch_size));
}

}  // namespace megatron::train::testing
