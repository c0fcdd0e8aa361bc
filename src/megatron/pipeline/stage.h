#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace megatron::pipeline {

/// What a stage makes of one microbatch.
struct Output {
  at::Tensor tensor;  ///< for the next stage; of the last stage: the loss, summed and not averaged, a scalar
  double count = 0;   ///< of the last stage: what the loss is a sum over (tokens that count)
};

/// The layers of one pipeline stage as the interpreter sees them.
class Stage {
 public:
  virtual ~Stage() = default;

  /// Forward pass of one microbatch. `x`: what the stage before made of it, undefined on the first stage, which finds
  /// its input itself; release it as early as possible. Records for backward where autograd is on; parameters'
  /// gradients are written by the layers' backward passes (parallel/parameter.h). `partial`: schedule::Op::partial.
  virtual Output forward(int microbatch, at::Tensor x, bool partial) = 0;

  /// Shape of what goes from stage to stage for this microbatch. Asked of the first stage alone, before the program
  /// begins, where lengths vary.
  virtual std::vector<std::int64_t> boundary_shape(int microbatch) const = 0;
};

}  // namespace megatron::pipeline
