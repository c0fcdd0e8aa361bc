#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/model/gpt.h"
#include "megatron/optim/optimizer.h"
#include "megatron/parallel/context.h"
#include "megatron/plan/rules.h"
#include "megatron/train/step.h"

namespace megatron::train {

/// What one rank computes with. Members are in the order of their construction; later ones refer to earlier ones.
struct Engine {
  /// Collective over `world`: builds the groups. Weights need no communication.
  Engine(const plan::ResolvedRun& run, comm::Group world, at::Device device);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  parallel::ParallelContext context;
  parallel::ParameterStore parameters;
  model::Gpt model;
  optim::GradientReducer reducer;
  optim::AdamW optimizer;
  TrainStep step;
};

/// What train.dtype names.
at::ScalarType scalar_type(const config::RunConfig& config);

}  // namespace megatron::train
