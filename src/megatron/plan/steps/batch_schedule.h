#pragma once
#include <cstdint>
#include <vector>

namespace megatron::plan {

/// The global batch over a run: constant, or grown in equal steps while the first `rampup_samples` are trained on.
class BatchSchedule {
 public:
  /// @param global_batch the full batch, in samples
  /// @param rampup empty, or {start, increment, samples}: schedule.rampup_batch_size
  /// Throws ConfigError unless start and every step divide by unit (= micro batch x dp) and increments reach the
  /// full batch exactly.
  BatchSchedule(std::int64_t global_batch, std::int64_t unit, const std::vector<std::int64_t>& rampup);

  /// Samples of the step that begins when `consumed` samples were trained on.
  std::int64_t global_batch(std::int64_t consumed) const;

  /// The sizes that a step's batch takes over a run, from the smallest: size(0) … size(num_sizes() - 1).
  std::int64_t num_sizes() const { return increment_ > 0 ? (full_ - start_) / increment_ + 1 : 1; }
  std::int64_t size(std::int64_t k) const { return start_ + k * increment_; }

  /// Samples of the first `steps` steps of a run; the largest number where there are more.
  std::int64_t samples_of(std::int64_t steps) const;

 private:
  std::int64_t full_, start_, increment_ = 0, rampup_samples_ = 0;
};

}  // namespace megatron::plan
