#include "megatron/train/engine.h"

#include <algorithm>

#include "megatron/plan/buffer_layout.h"

namespace megatron::train {
namespace {

using config::RunConfig;

plan::GptShape shape_of(const RunConfig& config) {
  const auto& model = config.model;
  return {.num_layers = model.num_layers,
          .hidden = model.hidden_size,
          .num_heads = model.num_attention_heads,
          .ffn_hidden = model.ffn_hidden_size,
          .vocab = model.vocab_size,
          .padded_vocab = plan::pad_vocab(model.vocab_size, model.make_vocab_size_divisible_by, config.parallel.tp),
          .max_positions = model.max_position_embeddings,
          .tied_output = !model.untie_embeddings_and_output_weights,
          .init_std = model.init_method_std};
}

model::GptOptions model_options(const RunConfig& config) {
  return {.shape = shape_of(config),
          .gelu = config.model.gelu == "erf" ? kernels::Gelu::Erf : kernels::Gelu::Tanh,
          .layernorm_epsilon = config.model.layernorm_epsilon,
          .hidden_dropout = config.model.hidden_dropout,
          .attention_dropout = config.model.attention_dropout,
          .label_smoothing = config.train.label_smoothing,
          .loss_chunk_tokens = config.train.loss_chunk_tokens,
          .recompute_gelu = config.train.recompute_gelu,
          .seed = config.train.seed};
}

parallel::ParameterStore make_parameters(const RunConfig& config, const parallel::ParallelContext& context) {
  const int dp = context.grid().size(plan::Axis::Dp);
  // Without overlap there is nothing to gain from more than one reduction.
  std::int64_t bucket_size = 0;
  if (config.optimizer.overlap_grad_reduce)
    bucket_size = config.optimizer.bucket_size > 0 ? config.optimizer.bucket_size
                                                   : std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * dp);
  auto specs =
      plan::gpt_parameters(shape_of(config), context.grid().size(plan::Axis::Tp), context.index(plan::Axis::Tp));
  auto layout = plan::buffer_layout(specs, bucket_size);
  return {std::move(specs), std::move(layout), scalar_type(config), context.device(), config.train.seed};
}

}  // namespace

at::ScalarType scalar_type(const RunConfig& config) { return config.train.dtype == "fp64" ? at::kDouble : at::kFloat; }

Engine::Engine(const RunConfig& config, const plan::RankGrid& grid, comm::Group world, at::Device device)
    : context(grid, std::move(world), device),
      parameters(make_parameters(config, context)),
      model(model_options(config), parameters, context.group(plan::Axis::Tp)),
      reducer(parameters, context.group(plan::Axis::Dp), config.optimizer.overlap_grad_reduce),
      optimizer(parameters, {.beta1 = config.optimizer.adam_beta1,
                             .beta2 = config.optimizer.adam_beta2,
                             .eps = config.optimizer.adam_eps,
                             .weight_decay = config.optimizer.weight_decay}),
      step(model, parameters, context, reducer, optimizer,
           {.clip_grad = config.optimizer.clip_grad,
            .clip_norm = config.optimizer.clip_norm == "inf" ? optim::NormKind::Inf : optim::NormKind::L2}) {}

}  // namespace megatron::train
