#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "megatron/model/transformer_stage.h"
#include "megatron/optim/gradient_norm.h"
#include "megatron/optim/gradient_reducer.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/model_figures.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/parameter_gatherer.h"
#include "megatron/optim/shared_gradients.h"
#include "megatron/parallel/context.h"
#include "megatron/parallel/fp8.h"
#include "megatron/plan/rules.h"
#include "megatron/train/log/timers.h"
#include "megatron/train/pipeline.h"
#include "megatron/train/step.h"

namespace megatron::train {

/// What one rank computes with. Members are in the order of their construction; later ones refer to earlier ones.
struct Engine {
  /// Collective over `world`: builds the groups and connects the pipeline. Weights need no communication. Keeps a
  /// reference to `run`. Throws comm::AgreedError on every rank where two have another recipe or version of the program
  /// (recipe_facts()); what they read train() compares, or require_equal_runs().
  Engine(const plan::ResolvedRun& run, comm::Group world, at::Device device);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  parallel::ParallelContext context;
  parallel::ParameterStore parameters;
  std::shared_ptr<parallel::Fp8Scaling> fp8;    ///< of layers that compute in 8 bits; null: none does
  std::vector<model::TransformerStage> stages;  ///< of this pipeline rank, in the placement's order
  std::vector<plan::Shard> owned;               ///< what this rank updates of each bucket: all, or its share
  optim::GradientReducer reducer;
  optim::SharedGradients shared;
  optim::GradientNorm norm;
  optim::ModelFigures figures;
  optim::Optimizer optimizer;
  optim::ParameterGatherer gatherer;
  std::optional<optim::LossScaler> scaler;  ///< of fp16
  Timers timers;
  Pipeline pipeline;
  TrainStep step;
};

/// Step number `i` of the run, from 0, on synthetic_batch(): benchmarks and tests. The batch is the full one.
/// Collective over the world.
StepResult synthetic_step(Engine& engine, const plan::ResolvedRun& run, std::int64_t i,
                          const plan::LearningRates& rates);
/// Its passes alone (TrainStep::begin()).
TrainStep::Open begin_synthetic_step(Engine& engine, const plan::ResolvedRun& run, std::int64_t i);

/// What train.dtype names.
at::ScalarType scalar_type(const config::RunConfig& config);
/// Of losses and their masks: float32, or float64 with train.dtype fp64.
at::ScalarType loss_type(const config::RunConfig& config);

}  // namespace megatron::train
