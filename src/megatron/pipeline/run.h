#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "megatron/parallel/parameter.h"
#include "megatron/pipeline/link.h"
#include "megatron/pipeline/marks.h"
#include "megatron/pipeline/stage.h"
#include "megatron/schedule/program.h"

namespace megatron::pipeline {

/// What a program's operations do beyond the stages and the link. Members that a program has no operation for may be
/// left out.
struct Hooks {
  /// Where BackwardInput puts the weight gradients off: the queue of the rank's parameters.
  parallel::GradientQueue* weight_gradients = nullptr;
  std::function<void(int stage)> reduce_gradients{};
  /// Where the stages compute: times are that device's.
  at::Device device = at::kCPU;
  /// Told of each operation as it begins.
  std::function<void(const schedule::Op& op)> begins{};
  /// Told of each operation: on a CPU as it ends, on a GPU once that has done them all, for which run() waits then.
  std::function<void(const schedule::Op& op, Clock::time_point start, Clock::time_point end)> observe{};
};

/// What a program has left on this rank.
struct Result {
  /// Of the last stage, by microbatch: the loss sums, without graph. Empty where this rank does not hold that stage.
  std::vector<at::Tensor> loss_sums;
  double count = 0;  ///< of the last stage: what they are sums over
  double forward_s = 0, backward_s = 0;
  /// On a GPU with nobody to observe: measures these two, once, and waits for what the program has given to the GPU.
  std::function<void(Result&)> measure{};
};

/// Executes ranks[rank] of a valid program with communication (schedule/passes.h) from front to back. `stages`: of this
/// rank, in the placement's order. Knows no schedule.
///
/// A stage's output is released once it is sent (or handed to the next stage, where that is on this rank), with its
/// graph kept; its input once forward has consumed it, unless layers keep it; the gradient of its output at the end of
/// backward. A forward-only program runs without autograd. Collective over the pipeline.
///
/// Throws std::logic_error where the program does not fit; comm::PeerError that names the operation, its stage and
/// microbatch where a neighbour is gone or late. Whatever it throws, the link is aborted first: peers that wait learn
/// of it at once.
Result run(const schedule::Program& program, int rank, const std::vector<Stage*>& stages, Link& link,
           const Hooks& hooks = {});

}  // namespace megatron::pipeline
