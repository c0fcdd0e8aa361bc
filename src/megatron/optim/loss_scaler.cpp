#include "megatron/optim/loss_scaler.h"

#include <algorithm>

namespace megatron::optim {

LossScaler LossScaler::constant(double scale) {
  LossScaler scaler({.initial = scale});
  scaler.dynamic_ = false;
  return scaler;
}

LossScaler::LossScaler(const Options& options)
    : options_(options), state_{.scale = options.initial, .clean_steps = 0, .hysteresis = options.hysteresis} {}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    state_.clean_steps = 0;
    if (--state_.hysteresis <= 0) state_.scale = std::max(state_.scale * options_.backoff, options_.min);
    return;
  }
  if (++state_.clean_steps < options_.window) return;
  state_ = {.scale = state_.scale * options_.growth, .clean_steps = 0, .hysteresis = options_.hysteresis};
}

void LossScaler::set_state(const State& state) {
  if (dynamic_) state_ = state;
}

}  // namespace megatron::optim
