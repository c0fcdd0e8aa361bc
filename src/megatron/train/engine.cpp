#include "megatron/train/engine.h"

#include <algorithm>
#include <memory>

#include "megatron/base/machine/out_of_memory.h"
#include "megatron/model/options.h"
#include "megatron/parallel/cuda.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/ranks/copies.h"
#include "megatron/plan/stages.h"
#include "megatron/plan/steps/batch_plan.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/data/model_samples.h"
#include "megatron/train/resume/agreement.h"
#include "megatron/train/resume/magnitudes.h"

namespace megatron::train {
namespace {

/// `world`, whose ranks have the same recipe: groups and messages follow from it.
comm::Group of_one_recipe(const plan::ResolvedRun& run, comm::Group world) {
  comm::require_agreement(world, recipe_facts(run));
  return world;
}

parallel::ParameterStore make_parameters(const plan::ResolvedRun& run, const parallel::ParallelContext& context) {
  const config::RunConfig& config = run.config;
  const int tp = context.grid().size(plan::Axis::Tp), tp_rank = context.tensor().rank();
  const auto parts = plan::parts_of_rank(run.parts, run.placement, context.pipeline().rank());
  const plan::ExpertShare experts = plan::expert_share(run, context.rank());
  auto specs = plan::trained_parameters(run.shape, tp, tp_rank, parts, experts);
  auto layout = plan::rank_layout(run, specs);
  std::optional<parallel::PooledGradients> pooled;
  if (auto pool = plan::rank_gradient_pool(run, specs, layout))
    pooled = {std::move(*pool), plan::shards(layout, plan::owners_of(run, context.rank()))};
  std::optional<parallel::PooledValues> pooled_values;
  if (auto pool = plan::rank_parameter_pool(run, specs, layout, parts))
    pooled_values = {std::move(*pool), plan::shards(layout, plan::owners_of(run, context.rank()))};
  const parallel::Precision precision(scalar_type(config));
  const auto gradients = config.optimizer.grad_dtype == "fp32" ? precision.gradients : precision.values;
  parallel::ParameterStore parameters(std::move(specs), std::move(layout), {precision.values, gradients},
                                      context.device(), config.train.seed, parallel::ParameterStore::Gradients::Hold,
                                      std::move(pooled), std::move(pooled_values));
  if (!run.shape.lora) return parameters;
  plan::FrozenWeights weights = plan::frozen_weights(run, tp_rank, parts, experts).value();
  if (!config.lora.base.empty())  // they are read: drawing them would be in vain
    for (plan::ParameterSpec& spec : weights.specs) spec.init = plan::Init::Zero;
  std::optional<parallel::PooledValues> in_turn;
  if (weights.pool)
    in_turn = {std::move(*weights.pool), plan::shards(weights.layout, plan::owners_of(run, context.rank()))};
  parameters.add_frozen(std::make_shared<const parallel::ParameterStore>(
      std::move(weights.specs), std::move(weights.layout), precision.values, context.device(), config.train.seed,
      parallel::ParameterStore::Gradients::None, std::nullopt, std::move(in_turn)));
  return parameters;
}

std::shared_ptr<parallel::Fp8Scaling> make_fp8(const plan::ResolvedRun& run, at::Device device) {
  const auto recipe = plan::fp8_recipe(run.config.fp8);
  if (!recipe) return nullptr;
  if (device.is_cuda()) parallel::require_fp8_units(*recipe, device.index());
  return std::make_shared<parallel::Fp8Scaling>(*recipe, plan::fp8_layers(run.shape), device);
}

std::vector<model::TransformerStage> make_stages(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                                                 const parallel::ParameterStore& parameters,
                                                 const std::shared_ptr<parallel::Fp8Scaling>& fp8) {
  model::TransformerOptions options = model::transformer_options(run.config, run.shape);
  options.fp8 = fp8;
  options.experts = context.experts();
  if (plan::roles_of(run).split_otherwise()) options.expert_slices = context.expert_slices().size();
  options.sequence = {.ranks = context.sequence(), .exchange = plan::sequence_exchange(run.config, run.shape)};
  std::vector<model::TransformerStage> stages;
  for (const auto& part : plan::parts_of_rank(run.parts, run.placement, context.pipeline().rank()))
    stages.emplace_back(options, part, parameters, context.tensor());
  return stages;
}

/// What this rank updates: everything, or with the distributed optimizer its part of each bucket.
std::vector<plan::Shard> owned_shards(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                                      const parallel::ParameterStore& parameters) {
  return plan::shards(parameters.layout(), plan::owners_of(run, context.rank()));
}

/// What this rank counts of figures over the model: where several hold the same gradients, the first.
plan::Counts counts_of(const plan::ResolvedRun& run, const parallel::ParallelContext& context) {
  const bool distributed = run.config.optimizer.use_distributed_optimizer;
  return {context.tensor().rank() == 0, distributed || context.gradients().rank() == 0,
          distributed || context.expert_gradients().rank() == 0, context.expert_slices().rank() == 0};
}

optim::SharedGradients make_shared_gradients(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                                             const parallel::ParameterStore& parameters,
                                             const std::vector<plan::Shard>& owned) {
  std::vector<optim::SharedParameter> shared;
  const auto copied = run.shape.lora ? std::vector<plan::SharedCopies>()  // of weights, which are not trained
                                     : plan::shared_copies(run.shape, run.parts, run.placement);
  for (const plan::SharedCopies& copies : copied) {
    const auto holders = optim::holders_group(context.pipeline(), copies.pipeline_ranks);
    if (holders.size() > 1) shared.push_back({parameters.get(copies.name), holders});
  }
  const comm::Group& tp = context.tensor();
  return {parameters,
          owned,
          {.sequence = run.config.parallel.sp ? tp : comm::Group(),
           .copies = optim::copies_group(parameters, tp),
           .heads = tp,
           .experts = context.expert_slices()},
          std::move(shared)};
}

optim::OptimizerOptions optimizer_options(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                                          const parallel::ParameterStore& parameters) {
  const config::RunConfig& config = run.config;
  const config::OptimizerConfig& optimizer = config.optimizer;
  std::vector<plan::ParameterSpec> specs;
  std::vector<std::vector<plan::MatrixRows>> matrices;
  const plan::MatrixSplits splits{.qkv = optimizer.muon_split_qkv, .gated = optimizer.muon_split_gated};
  for (const auto& parameter : parameters.all()) {
    specs.push_back(parameter->spec);
    matrices.push_back(parameter->spec.is_layer_matrix() ? plan::matrices_of(parameter->spec, run.shape, splits)
                                                         : std::vector<plan::MatrixRows>());
  }
  return {.weight_decay = optimizer.weight_decay,
          .decoupled = optimizer.decoupled_weight_decay,
          .bf16_state = optimizer.state_dtype == "bf16",
          .stochastic_rounding = optimizer.stochastic_rounding,
          .seed = config.train.seed,
          .multipliers =
              plan::multipliers(optimizer, specs, plan::mup_width(config.model), config.schedule.decoupled_lr > 0),
          .matrices = std::move(matrices),
          .owners = context.state(optimizer.use_distributed_optimizer),
          .expert_owners = context.expert_state(optimizer.use_distributed_optimizer),
          .slices = context.tensor(),
          .expert_slices = context.expert_slices()};
}

/// Names of the routers' biases that are moved, one for each layer that has experts; empty without biases, and where
/// adapters alone are trained.
std::vector<std::string> router_biases(const plan::ModelShape& shape) {
  std::vector<std::string> names;
  if (!shape.experts || !shape.experts->router.bias || shape.lora) return names;
  for (const std::int64_t layer : shape.expert_layers())
    names.push_back(shape.layer_prefix(layer) + plan::Experts::kBias);
  return names;
}

std::optional<optim::LossScaler> loss_scaler(const config::RunConfig& config) {
  if (config.train.dtype != "fp16") return std::nullopt;
  const config::OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.loss_scale > 0) return optim::LossScaler::constant(optimizer.loss_scale);
  return optim::LossScaler({.initial = optimizer.initial_loss_scale,
                            .min = optimizer.min_loss_scale,
                            .window = optimizer.loss_scale_window,
                            .hysteresis = optimizer.hysteresis});
}

}  // namespace

at::ScalarType scalar_type(const config::RunConfig& config) {
  const std::string& name = config.train.dtype;
  return name == "fp64" ? at::kDouble : name == "bf16" ? at::kBFloat16 : name == "fp16" ? at::kHalf : at::kFloat;
}

at::ScalarType loss_type(const config::RunConfig& config) {
  return config.train.dtype == "fp64" ? at::kDouble : at::kFloat;
}

Engine::Engine(const plan::ResolvedRun& run, comm::Group world, at::Device device)
    : context(run.grid, of_one_recipe(run, std::move(world)), device, plan::expert_layout(run.config.parallel)),
      parameters(taking_memory_for("parameters and gradients", [&] { return make_parameters(run, context); })),
      fp8(make_fp8(run, context.device())),
      stages(make_stages(run, context, parameters, fp8)),
      owned(owned_shards(run, context, parameters)),
      reducer(parameters, context.gradients(), owned, run.config.optimizer.overlap_grad_reduce,
              context.expert_gradients()),
      shared(make_shared_gradients(run, context, parameters, owned)),
      norm(parameters, owned, counts_of(run, context)),
      figures(parameters, owned, counts_of(run, context), run.shape.vocab),
      optimizer(taking_memory_for("the optimizer's state",
                                  [&] {
                                    return optim::Optimizer(parameters, owned, run.config.optimizer,
                                                            optimizer_options(run, context, parameters));
                                  })),
      gatherer(parameters, context.gradients(), owned, run.config.optimizer.overlap_param_gather,
               context.expert_gradients()),
      scaler(loss_scaler(run.config)),
      timers(run.config.log.timing_level, run.config.log.timing_barrier, run.config.log.straggler, context.world()),
      pipeline(run, context, parameters, stages, &reducer, gatherer, timers),
      step({.pipeline = pipeline,
            .context = context,
            .reducer = reducer,
            .shared = shared,
            .norm = norm,
            .figures = figures,
            .optimizer = optimizer,
            .gatherer = gatherer,
            .scaler = scaler ? &*scaler : nullptr,
            .fp8 = fp8 && fp8->keeps_magnitudes() ? fp8.get() : nullptr,
            .timers = timers},
           {.clip_grad = run.config.optimizer.clip_grad,
            .clip_norm = config::norm_order(run.config.optimizer.clip_norm).value(),
            .microbatch_tokens = run.config.train.micro_batch_size *
                                 (run.shape.encoder_decoder()   ? run.config.data.decoder_seq_length
                                  : run.shape.predicts_tokens() ? run.config.data.seq_length
                                                                : 1) *
                                 run.grid.sample_shares(),
            .sentence_head = run.shape.sentence_head,
            .params_norm = run.config.log.params_norm,
            .num_zeros_in_grad = run.config.log.num_zeros_in_grad,
            .mtp_depths = run.shape.mtp_depths,
            .num_experts = run.shape.experts ? run.shape.experts->count : 0,
            .router_biases = router_biases(run.shape),
            .bias_update_rate = run.config.model.moe_router_bias_update_rate,
            .copy_distance = run.config.guard.rerun_interval > 0 ? plan::copy_distance(plan::roles_of(run)) : 0}) {
  if (run.config.lora.base.empty()) set_magnitudes(run, *this);  // else the weights are not there before start_run()
}

TrainStep::Open begin_synthetic_step(Engine& engine, const plan::ResolvedRun& run, std::int64_t i) {
  const auto& train = run.config.train;
  const auto samples = plan::batch_plan(i * train.global_batch_size, train.global_batch_size, train.micro_batch_size,
                                        run.grid.sample_shares(), engine.context.samples().rank())
                           .microbatches;
  return engine.step.begin(static_cast<int>(samples.size()), [&](std::size_t m) {
    return model_samples(run.config.model.architecture).synthetic(run, samples[m], engine.context.device());
  });
}

StepResult synthetic_step(Engine& engine, const plan::ResolvedRun& run, std::int64_t i,
                          const plan::LearningRates& rates) {
  TrainStep::Open open = begin_synthetic_step(engine, run, i);
  engine.step.update(open, rates);
  return engine.step.end(std::move(open));
}

}  // namespace megatron::train
