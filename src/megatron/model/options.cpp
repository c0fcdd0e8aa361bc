#include "megatron/model/options.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "megatron/plan/cost/memory.h"
#include "megatron/plan/rules.h"

namespace megatron::model {
namespace {

kernels::Activation::Kind activation_of(const std::string& name) {
  using kernels::Activation;
  if (name == "gelu_tanh") return Activation::GeluTanh;
  if (name == "gelu") return Activation::GeluErf;
  if (name == "silu") return Activation::Silu;
  if (name == "relu") return Activation::Relu;
  if (name == "squared_relu") return Activation::SquaredRelu;
  if (name == "quick_gelu") return Activation::QuickGelu;
  throw std::logic_error("an activation that the rules let through: " + name);
}

kernels::RopeScaling::Kind scaling_of(const std::string& type) {
  using Kind = kernels::RopeScaling::Kind;
  return type == "linear"     ? Kind::Linear
         : type == "yarn"     ? Kind::Yarn
         : type == "longrope" ? Kind::LongRope
                              : Kind::Llama3;
}

kernels::RopeOptions rope_options(const config::ModelConfig& model, const plan::ModelShape& shape) {
  if (model.position_embedding_type != "rope") return {};
  return {.rotary_dim = plan::rotary_features(model, shape),
          .base = model.rotary_base,
          .interleaved = model.rotary_interleaved,
          .scaling = {.kind = scaling_of(model.rope_scaling_type),
                      .factor = model.rope_scaling_factor,
                      .low_freq_factor = model.rope_low_freq_factor,
                      .high_freq_factor = model.rope_high_freq_factor,
                      .beta_fast = model.yarn_beta_fast,
                      .beta_slow = model.yarn_beta_slow,
                      .attention_factor = model.rope_scaling_type == "longrope" ? model.longrope_attention_factor
                                                                                : plan::rotary_scale(model),
                      .whole_pairs = model.yarn_correction_range_round_to_int,
                      .original_positions = model.rope_original_positions,
                      .short_factor = model.longrope_short_factor,
                      .long_factor = model.longrope_long_factor}};
}

/// Those of layers with a window, where they have a base of their own.
kernels::RopeOptions local_rope_options(const config::ModelConfig& model, const plan::ModelShape& shape) {
  kernels::RopeOptions rope = rope_options(model, shape);
  if (model.rotary_base_local == 0 || model.sliding_window == 0) return {};
  rope.base = model.rotary_base_local;
  rope.scaling = {};
  return rope;
}

Recompute recompute_options(const config::TrainConfig& train, std::int64_t num_layers) {
  const auto& modules = train.recompute_modules;
  const auto selected = [&](const char* name) {
    return train.recompute == "selective" && std::find(modules.begin(), modules.end(), name) != modules.end();
  };
  const plan::LayerRecomputation whole = plan::layer_recomputation(train, num_layers);
  return {.layers = whole.method,
          .num_layers = whole.num_layers,
          .some_partial = train.recompute_partial_microbatches > 0,
          .listed = whole.listed,
          .distribute_inputs = train.distribute_saved_activations,
          .attention_core = selected("core_attn"),
          .mlp = selected("mlp"),
          .gelu = train.recompute_gelu};
}

}  // namespace

TransformerOptions transformer_options(const config::RunConfig& config, const plan::ModelShape& shape) {
  return {.shape = shape,
          .activation = {activation_of(config.model.activation), config.model.activation_func_clamp_value,
                         config.model.glu_linear_offset},
          .rope = rope_options(config.model, shape),
          .local_rope = local_rope_options(config.model, shape),
          .rope_positions = config.data.seq_length,
          .layernorm_epsilon = config.model.layernorm_epsilon,
          .hidden_dropout = config.model.hidden_dropout,
          .attention_dropout = config.model.attention_dropout,
          .label_smoothing = config.train.label_smoothing,
          .mtp_loss_scaling_factor = config.model.mtp_loss_scaling_factor,
          .loss_chunk_tokens = plan::loss_chunk_tokens(config),
          .sequence_parallel = config.parallel.sp,
          .recompute = recompute_options(config.train, shape.num_layers),
          .seed = config.train.seed};
}

}  // namespace megatron::model
