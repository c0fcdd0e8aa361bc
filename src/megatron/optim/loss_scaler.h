#pragma once
#include <cstdint>

namespace megatron::optim {

/// The factor on the loss that keeps small fp16 gradients above zero (Micikevicius et al. 2018), by Megatron-LM's
/// rules. Dynamic: begins large; a step whose gradients overflow is left out and, after as many as `hysteresis` of
/// them, halves the scale, and so does each further one; `window` steps in a row without overflow double it and refill
/// the hysteresis. Every rank calls it with the same overflow and so has the same scale.
class LossScaler {
 public:
  struct Options {
    double initial = 4294967296.0;  ///< 2^32
    double min = 1;
    double growth = 2, backoff = 0.5;
    std::int64_t window = 1000;
    std::int64_t hysteresis = 2;
  };
  struct State {
    double scale = 1;
    std::int64_t clean_steps = 0;  ///< in a row, since the last growth
    std::int64_t hysteresis = 0;   ///< overflows left before the scale shrinks; continues below zero
    bool operator==(const State&) const = default;
  };

  /// Always `scale`.
  static LossScaler constant(double scale);
  explicit LossScaler(const Options& options);

  double scale() const { return state_.scale; }
  /// Whether overflows bring it down, at once or after some more of them.
  bool can_shrink() const { return dynamic_ && state_.scale > options_.min; }
  /// After each step: whether its gradients, or its loss, were not finite.
  void update(bool overflow);

  const State& state() const { return state_; }
  /// Of a run that is resumed. A constant scale stays as it is.
  void set_state(const State& state);

 private:
  Options options_;
  bool dynamic_ = true;
  State state_;
};

}  // namespace megatron::optim
