#pragma once
#include <cstddef>
#include <deque>
#include <vector>

namespace megatron::supervise {

/// Tells a loss that leaps from the losses before it. What it says is a function of them alone, so that a run which
/// resumes with the same losses, on however many ranks, says the same.
class SpikeWatch {
 public:
  /// A spike is above `factor` times the median of the last `window` losses.
  SpikeWatch(double factor, std::size_t window);

  /// Whether `loss` is one. Never before there are `window` losses.
  bool is_spike(double loss) const;
  /// The median of those before; 0 where there are fewer than `window`.
  double median() const;
  /// Of a step that counts; a loss that is not finite does not.
  void add(double loss);

  /// What add() remembers, the oldest first: a checkpoint keeps it.
  std::vector<double> losses() const { return {losses_.begin(), losses_.end()}; }
  void set_losses(const std::vector<double>& losses);

 private:
  double factor_;
  std::size_t window_;
  std::deque<double> losses_;
};

}  // namespace megatron::supervise
