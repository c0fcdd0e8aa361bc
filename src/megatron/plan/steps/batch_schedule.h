#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace megatron::plan {

/// A size of the global batch, and how many samples were trained on before the first step that has it.
struct BatchStep {
  std::int64_t from = 0, size = 0;
  bool operator==(const BatchStep&) const = default;
};

/// Reads schedule.step_batch_size as Megatron-LM does: "0:768 250B:1536", each entry TOKENS:SAMPLES with suffixes K, M,
/// B and T for thousands to millions of millions; separated by spaces or commas, in any order. Tokens become samples of
/// `seq_length` tokens, rounded down. Throws ConfigError for an entry that cannot be read, and unless the first begins
/// at 0 and each later one after the one before it.
std::vector<BatchStep> read_batch_steps(const std::string& text, std::int64_t seq_length);

/// The global batch over a run: constant, grown in equal steps while the first `rampup_samples` are trained on, or of
/// given sizes from given samples on.
class BatchSchedule {
 public:
  /// @param global_batch the full batch, in samples
  /// @param rampup empty, or {start, increment, samples}: schedule.rampup_batch_size
  /// Throws ConfigError unless start and every step divide by unit (= micro batch x dp) and increments reach the
  /// full batch exactly.
  BatchSchedule(std::int64_t global_batch, std::int64_t unit, const std::vector<std::int64_t>& rampup);

  /// @param steps read_batch_steps()
  /// @param consumed samples that were trained on already: sizes that are over may be any
  /// Throws ConfigError unless every size from then on divides by unit.
  BatchSchedule(std::vector<BatchStep> steps, std::int64_t unit, std::int64_t consumed);

  /// Samples of the step that begins when `consumed` samples were trained on.
  std::int64_t global_batch(std::int64_t consumed) const;

  /// The sizes that a step's batch takes over a run, from the smallest: size(0) … size(num_sizes() - 1).
  std::int64_t num_sizes() const;
  std::int64_t size(std::int64_t k) const;

  /// Samples of the first `steps` steps of a run; the largest number where there are more.
  std::int64_t samples_of(std::int64_t steps) const;

  /// Of schedule.step_batch_size; empty where there is none.
  const std::vector<BatchStep>& steps() const { return steps_; }

 private:
  std::int64_t full_, start_, increment_ = 0, rampup_samples_ = 0;
  std::vector<BatchStep> steps_ = {};     ///< empty: one size, or growth
  std::vector<std::int64_t> sizes_ = {};  ///< of steps_ that are not over, ascending, each once
};

/// The entries that hold after `consumed` samples: the one then and all later ones.
std::vector<BatchStep> steps_left(const std::vector<BatchStep>& steps, std::int64_t consumed);

}  // namespace megatron::plan
