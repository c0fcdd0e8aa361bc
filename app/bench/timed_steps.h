#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/train/engine.h"

namespace megatron::app {

/// What one rank measured of steps on synthetic data, in seconds, a value a step.
struct TimedSteps {
  std::vector<double> step_s, forward_s, backward_s, reduce_s, optimizer_s;
  double loss = 0;  ///< of the last step
};

/// Waits until the device has done what it was given.
inline void finish(const at::Tensor& written) { (void)written.flatten()[0].item<double>(); }

/// Runs `warmup` steps and then `steps` that are timed. Collective over the world. `after`: called on each rank after
/// each step with its number, from 0; may be empty.
TimedSteps timed_steps(train::Engine& engine, const plan::ResolvedRun& run, std::int64_t warmup, std::int64_t steps,
                       const std::function<void(std::int64_t)>& after);

}  // namespace megatron::app
