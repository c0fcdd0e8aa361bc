#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "megatron/plan/model_kind.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

/// The next width above the model's that its heads divide, or below where that is too large.
std::int64_t width_for_heads(const config::ModelConfig& model) {
  const std::int64_t heads = std::max<std::int64_t>(1, model.num_attention_heads);
  const std::int64_t below = model.hidden_size / heads * heads;
  return below + heads <= kMaxWidth ? below + heads : below;
}

void check_attention(const config::ModelConfig& model, Rules& rules) {
  const std::int64_t heads = model.num_attention_heads;
  rules.range<std::int64_t>("model.num_attention_heads", heads, 1, kMaxWidth);
  rules.range<std::int64_t>("model.kv_channels", model.kv_channels, 0, kMaxWidth);
  if (model.kv_channels == 0 && !model.multi_latent_attention && model.hidden_size >= 1 &&
      model.hidden_size <= kMaxWidth)
    rules.require(heads < 1 || heads > kMaxWidth || model.hidden_size % heads == 0,
                  "model.hidden_size must divide by model.num_attention_heads.",
                  concat(model.hidden_size, " and ", heads), concat("--model.hidden_size ", width_for_heads(model)));
  rules.require(heads > kMaxWidth || model.kv_channels > kMaxWidth || heads * model.kv_channels <= kMaxWidth,
                concat("model.num_attention_heads x model.kv_channels must be at most ", kMaxWidth, "."),
                concat(heads, " x ", model.kv_channels), "--kv-channels 0 (the default)");
  rules.range<std::int64_t>("model.sliding_window", model.sliding_window, 0, kMaxPositions);
  rules.require(model.sliding_window == 0 || !config::model_traits(model.architecture).encoder_decoder,
                concat("model.sliding_window is for models of one stack: not model.architecture ",
                       config::names_with(&config::ModelTraits::encoder_decoder, " or "), "."),
                concat("sliding_window ", model.sliding_window, ", ", model.architecture),
                "--model.sliding_window 0 (the default)");
  rules.range<std::int64_t>("model.num_query_groups", model.num_query_groups, 0, kMaxWidth);
  if (model.num_query_groups > 0 && heads > 0)
    rules.require(heads % model.num_query_groups == 0,
                  "model.num_attention_heads must divide by model.num_query_groups.",
                  concat(heads, " heads, ", model.num_query_groups, " groups"),
                  concat("--model.num_query_groups ", std::gcd(heads, model.num_query_groups)));
}

/// `rotated`: the features of a head that have positions.
void check_longrope(const config::ModelConfig& model, std::int64_t rotated, Rules& rules) {
  rules.range("model.longrope_attention_factor", model.longrope_attention_factor, 0.0, 1e6);
  if (model.rope_scaling_type != "longrope" || model.rope_scaling_factor == 1) return;
  const auto fits = [&](const std::vector<double>& factors) {
    return std::ssize(factors) == rotated / 2 && std::ranges::all_of(factors, [](double f) { return f > 0; });
  };
  rules.require(fits(model.longrope_short_factor) && fits(model.longrope_long_factor),
                "model.longrope_short_factor and model.longrope_long_factor must have a number above 0 for each pair "
                "of features that rope rotates.",
                concat(model.longrope_short_factor.size(), " and ", model.longrope_long_factor.size(), " numbers, ",
                       rotated / 2, " pairs"),
                "--model.rope_scaling_factor 1 (no stretch)");
  rules.require(model.rope_original_positions > 1, "longrope needs model.rope_original_positions above 1.",
                concat(model.rope_original_positions), "--model.rope_original_positions 4096");
}

void check_positions(const config::ModelConfig& model, Rules& rules) {
  const std::int64_t buckets = model.relative_attention_num_buckets;
  rules.range<std::int64_t>("model.relative_attention_num_buckets", buckets, 4, kMaxWidth);
  rules.range<std::int64_t>("model.relative_attention_max_distance", model.relative_attention_max_distance,
                            std::clamp<std::int64_t>(buckets, 4, kMaxWidth) / 2 + 1, kMaxPositions);
  rules.range<std::int64_t>("model.position_offset", model.position_offset, 0, kMaxPositions);
  rules.require(model.position_offset == 0 || model.position_embedding_type == "learned_absolute",
                "model.position_offset needs model.position_embedding_type learned_absolute.",
                concat(model.position_offset, ", ", model.position_embedding_type),
                "--model.position_offset 0 (the default)");
  rules.range("model.rotary_base", model.rotary_base, 1.0, 1e12);
  rules.option("model.rotary_percent", model.rotary_percent > 0 && model.rotary_percent <= 1,
               "must be above 0 and at most 1.", concat(model.rotary_percent));
  rules.range("model.rope_scaling_factor", model.rope_scaling_factor, 1.0, 1e6);
  rules.range("model.rope_low_freq_factor", model.rope_low_freq_factor, 1e-6, 1e6);
  rules.require(model.rope_high_freq_factor > model.rope_low_freq_factor && model.rope_high_freq_factor <= 1e9,
                "model.rope_high_freq_factor must be above model.rope_low_freq_factor.",
                concat(model.rope_high_freq_factor, " and ", model.rope_low_freq_factor),
                "--model.rope_low_freq_factor 1 --model.rope_high_freq_factor 4 (the defaults)");
  rules.range<std::int64_t>("model.rope_original_positions", model.rope_original_positions, 1, kMaxPositions);
  const std::int64_t heads = std::max<std::int64_t>(1, model.num_attention_heads);
  const std::int64_t head = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / heads;
  rules.require(
      model.position_embedding_type == "rope" || (!model.rotary_interleaved && model.rope_scaling_factor == 1),
      "model.rotary_interleaved and model.rope_scaling_factor need model.position_embedding_type rope.",
      model.position_embedding_type, "--position-embedding-type rope");
  if (model.position_embedding_type != "rope" || head < 1 || model.rotary_percent > 1 || model.multi_latent_attention)
    return;
  const std::int64_t rotated = rotary_features(head, model.rotary_percent);
  rules.require(rotated >= 2 && rotated % 2 == 0,
                "rope rotates pairs: model.rotary_percent of a head's features must be an even number.",
                concat(rotated, " of ", head),
                head % 2 == 0 ? "--model.rotary_percent 1 (the default)"
                              : concat("--model.kv_channels ", head + 1, " --model.rotary_percent 1"));
  check_longrope(model, rotated, rules);
}

/// Sizes of latent attention, and what excludes it.
void check_latents(const config::ModelConfig& model, Rules& rules) {
  for (const auto& [name, value, least] : {std::tuple{"model.q_lora_rank", model.q_lora_rank, 0},
                                           {"model.kv_lora_rank", model.kv_lora_rank, 1},
                                           {"model.qk_head_dim", model.qk_head_dim, 1},
                                           {"model.qk_pos_emb_head_dim", model.qk_pos_emb_head_dim, 2},
                                           {"model.v_head_dim", model.v_head_dim, 1}})
    rules.range<std::int64_t>(name, value, least, kMaxHeadOfLatents);
  rules.range("model.mscale", model.mscale, 0.0, 1e3);
  rules.range("model.mscale_all_dim", model.mscale_all_dim, 0.0, 1e3);
  if (!model.multi_latent_attention) return;
  constexpr const char* kOff = "--model.multi_latent_attention false (the default)";
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  rules.require(traits.causal && !traits.encoder_decoder,
                concat("model.multi_latent_attention is for model.architecture ",
                       config::names_with(&config::ModelTraits::causal, " or "), "."),
                model.architecture, kOff);
  const std::int64_t widest =
      std::max(model.qk_head_dim + model.qk_pos_emb_head_dim, model.qk_head_dim + model.v_head_dim);
  rules.require(
      model.num_attention_heads > kMaxWidth || widest > 2 * kMaxHeadOfLatents ||
          model.num_attention_heads * widest <= kMaxRowOfLatents,
      concat("model.num_attention_heads x what a head has of queries, or of keys and values, must be at most ",
             kMaxRowOfLatents, "."),
      concat(model.num_attention_heads, " x ", widest), "--qk-head-dim 128 --v-head-dim 128 (the defaults)");
  check_longrope(model, model.qk_pos_emb_head_dim, rules);
  rules.require(model.qk_pos_emb_head_dim % 2 == 0, "rope rotates pairs: model.qk_pos_emb_head_dim must be even.",
                concat(model.qk_pos_emb_head_dim), concat("--qk-pos-emb-head-dim ", model.qk_pos_emb_head_dim + 1));
  rules.require(
      model.position_embedding_type == "rope",
      "model.multi_latent_attention rotates a part of each head: it needs model.position_embedding_type rope.",
      model.position_embedding_type, "--position-embedding-type rope");
  rules.require(model.qk_layernorm && !model.qk_layernorm_full,
                "model.multi_latent_attention normalizes what it compresses: it needs model.qk_layernorm, and excludes "
                "model.qk_layernorm_full.",
                concat("qk_layernorm ", model.qk_layernorm, ", qk_layernorm_full ", model.qk_layernorm_full),
                "--model.qk_layernorm true --model.qk_layernorm_full false");
  const std::int64_t groups = model.num_query_groups;
  rules.require(groups == 0 || groups == model.num_attention_heads,
                "model.multi_latent_attention makes a key and a value of each head: it excludes "
                "model.num_query_groups.",
                concat(groups, " groups of ", model.num_attention_heads, " heads"),
                "--model.num_query_groups 0 (the default)");
  rules.require(model.kv_channels == 0 && model.rotary_percent == 1,
                "model.multi_latent_attention has sizes of its own: it excludes model.kv_channels and "
                "model.rotary_percent.",
                concat("kv_channels ", model.kv_channels, ", rotary_percent ", model.rotary_percent),
                "--model.kv_channels 0 --model.rotary_percent 1 (the defaults)");
  rules.require((!model.add_bias_linear || model.linear_bias_in == "mlp") && !model.add_qkv_bias,
                "model.multi_latent_attention has no biases.",
                concat("add_bias_linear ", model.add_bias_linear, ", add_qkv_bias ", model.add_qkv_bias),
                "--model.add_bias_linear false --model.add_qkv_bias false");
  rules.require(!model.use_mup && model.query_pre_attn_scalar == 0,
                "model.multi_latent_attention has a scale of its own: it excludes model.use_mup and "
                "model.query_pre_attn_scalar.",
                concat("use_mup ", model.use_mup, ", query_pre_attn_scalar ", model.query_pre_attn_scalar),
                "--model.use_mup false --model.query_pre_attn_scalar 0 (the defaults)");
}

/// What a GPT's layers, and what is before and behind them, may have besides.
void check_variants(const config::ModelConfig& model, Rules& rules) {
  constexpr double kMaxNumber = 1e6;
  rules.range<std::int64_t>("model.window_attn_skip_freq", model.window_attn_skip_freq, 0, kMaxLayers);
  rules.range<std::int64_t>("model.no_rope_freq", model.no_rope_freq, 0, kMaxLayers);
  rules.range("model.query_pre_attn_scalar", model.query_pre_attn_scalar, 0.0, kMaxNumber);
  rules.range("model.attn_logit_softcapping", model.attn_logit_softcapping, 0.0, kMaxNumber);
  rules.range("model.final_logit_softcapping", model.final_logit_softcapping, 0.0, kMaxNumber);
  rules.range("model.activation_func_clamp_value", model.activation_func_clamp_value, 0.0, kMaxNumber);
  rules.range("model.glu_linear_offset", model.glu_linear_offset, -kMaxNumber, kMaxNumber);
  rules.require(model.gated_linear_unit || (model.activation_func_clamp_value == 0 && model.glu_linear_offset == 0),
                "model.activation_func_clamp_value and model.glu_linear_offset need model.gated_linear_unit.",
                "gated_linear_unit false", "--model.activation_func_clamp_value 0 --model.glu_linear_offset 0");
  rules.option("model.rotary_base_local",
               model.rotary_base_local == 0 || (model.rotary_base_local >= 1 && model.rotary_base_local <= 1e12),
               "must be 0 or from 1 to 1e12.", concat(model.rotary_base_local));
  rules.range("model.yarn_beta_slow", model.yarn_beta_slow, 1e-6, kMaxNumber);
  rules.require(model.yarn_beta_fast > model.yarn_beta_slow && model.yarn_beta_fast <= 1e9,
                "model.yarn_beta_fast must be above model.yarn_beta_slow.",
                concat(model.yarn_beta_fast, " and ", model.yarn_beta_slow),
                "--model.yarn_beta_slow 1 --model.yarn_beta_fast 32 (the defaults)");
  rules.range("model.yarn_attention_factor", model.yarn_attention_factor, 0.0, kMaxNumber);
  rules.require(!model.qk_layernorm_full || model.normalization == "RMSNorm",
                "model.qk_layernorm_full needs model.normalization RMSNorm.", model.normalization,
                "--model.qk_layernorm_full false");
  rules.require(!model.qk_l2_norm || (!model.qk_layernorm && !model.multi_latent_attention),
                "model.qk_l2_norm excludes model.qk_layernorm and model.multi_latent_attention.",
                concat("qk_layernorm ", model.qk_layernorm, ", multi_latent_attention ", model.multi_latent_attention),
                "--model.qk_l2_norm false (the default)");
  rules.require(!model.attention_output_gate || !model.multi_latent_attention,
                "model.attention_output_gate excludes model.multi_latent_attention.", "both",
                "--model.attention_output_gate false (the default)");
  const bool another_order = model.apply_residual_connection_post_layernorm || model.embedding_layernorm ||
                             model.norm_position == "behind" || model.mtp_num_layers > 0;
  rules.require(
      !model.fp32_residual_connection || (!another_order && !config::model_traits(model.architecture).encoder_decoder),
      concat("model.fp32_residual_connection needs layers of one stack whose branches read norms of the stream, and "
             "excludes model.mtp_num_layers: not model.architecture ",
             config::names_with(&config::ModelTraits::encoder_decoder, " or "), "."),
      concat(model.architecture, ", norm_position ", model.norm_position, ", embedding_layernorm ",
             model.embedding_layernorm, ", apply_residual_connection_post_layernorm ",
             model.apply_residual_connection_post_layernorm, ", mtp_num_layers ", model.mtp_num_layers),
      "--model.fp32_residual_connection false (the default)");
  rules.require(
      !model.apply_residual_connection_post_layernorm || (model.norm_position == "before" && !model.parallel_residual),
      "model.apply_residual_connection_post_layernorm excludes model.norm_position and "
      "model.parallel_residual.",
      concat("norm_position ", model.norm_position, ", parallel_residual ", model.parallel_residual),
      "--model.norm_position before --model.parallel_residual false");
  rules.require(!model.parallel_shared_norm || (model.parallel_residual && model.norm_position != "behind"),
                "model.parallel_shared_norm needs model.parallel_residual and norms before the branches.",
                concat("parallel_residual ", model.parallel_residual, ", norm_position ", model.norm_position),
                "--model.parallel_shared_norm false (the default)");
  const bool has_causal_kind = config::model_traits(model.architecture).causal;
  rules.require(
      !model.embedding_layernorm || (model.norm_position == "before" && !model.parallel_residual &&
                                     model.num_experts == 0 && !model.apply_residual_connection_post_layernorm),
      "model.embedding_layernorm needs norms before branches that follow one another, without experts.",
      concat("norm_position ", model.norm_position, ", parallel_residual ", model.parallel_residual, ", num_experts ",
             model.num_experts, ", apply_residual_connection_post_layernorm ",
             model.apply_residual_connection_post_layernorm),
      "--model.embedding_layernorm false (the default)");
  // An encoder may have what a ModernBERT has.
  const bool two_stacks = config::model_traits(model.architecture).encoder_decoder;
  const config::AttentionVariant plain{.add_qkv_bias = model.add_qkv_bias,
                                       .qk_layernorm = model.qk_layernorm,
                                       .sliding_window = model.sliding_window,
                                       .window_attn_skip_freq = two_stacks ? 0 : model.window_attn_skip_freq,
                                       .window_attn_skip_first = !two_stacks && model.window_attn_skip_first,
                                       .rotary_base_local = two_stacks ? 0 : model.rotary_base_local};
  const config::LayerVariant plain_layers{.position_offset = model.position_offset,
                                          .norm_bias = two_stacks || model.norm_bias,
                                          .embedding_layernorm = !two_stacks && model.embedding_layernorm,
                                          .masked_lm_bias = two_stacks || model.masked_lm_bias};
  rules.require(
      has_causal_kind || (model == plain && model == plain_layers),
      concat(
          "norm_position, apply_layernorm_1p, parallel_residual, parallel_shared_norm, linear_bias_in, "
          "scale_embeddings, qk_layernorm_full, qk_l2_norm, attention_output_gate, query_pre_attn_scalar, softcapping, "
          "softmax_type, "
          "activation_func_clamp_value, glu_linear_offset, and layers without positions are for "
          "model.architecture ",
          config::names_with(&config::ModelTraits::causal),
          "; layers without a window, rotary_base_local, norm_bias, embedding_layernorm and masked_lm_bias are not "
          "for ",
          config::names_with(&config::ModelTraits::encoder_decoder), "."),
      model.architecture,
      "--model.norm_position before --model.apply_layernorm_1p false --model.parallel_residual false "
      "--model.parallel_shared_norm false --model.linear_bias_in all --model.scale_embeddings false "
      "--model.qk_layernorm_full false --model.qk_l2_norm false --model.attention_output_gate false "
      "--model.query_pre_attn_scalar 0 "
      "--model.attn_logit_softcapping 0 "
      "--model.final_logit_softcapping 0 --model.window_attn_skip_freq 0 --model.window_attn_skip_first false "
      "--model.no_rope_freq 0 --model.rotary_base_local 0 --model.softmax_type vanilla "
      "--model.activation_func_clamp_value 0 --model.glu_linear_offset 0 --model.norm_bias true "
      "--model.embedding_layernorm false --model.masked_lm_bias true");
  rules.require(!model.use_mup || model.query_pre_attn_scalar == 0,
                "model.use_mup scales attention itself, which excludes model.query_pre_attn_scalar.",
                concat(model.query_pre_attn_scalar), "--model.query_pre_attn_scalar 0");
}

/// What only an encoder-decoder has.
void check_stacks(const config::ModelConfig& model, Rules& rules) {
  if (config::model_traits(model.architecture).encoder_decoder) return;
  const std::string pair = config::names_with(&config::ModelTraits::encoder_decoder, " or ");
  rules.require(model.position_embedding_type != "relative",
                concat("model.position_embedding_type relative and model.architecture ", pair, " need each other."),
                concat(model.position_embedding_type, " and ", model.architecture),
                "--position-embedding-type learned_absolute");
  rules.require(model.decoder_num_layers == 0, concat("model.decoder_num_layers needs model.architecture ", pair, "."),
                concat(model.decoder_num_layers), "--model.decoder_num_layers 0 (the default)");
}

void check_multi_token(const config::ModelConfig& model, Rules& rules) {
  constexpr std::int64_t kMaxDepths = 64;
  constexpr const char* kOff = "--mtp-num-layers 0 (the default)";
  rules.range<std::int64_t>("model.mtp_num_layers", model.mtp_num_layers, 0, kMaxDepths);
  rules.range("model.mtp_loss_scaling_factor", model.mtp_loss_scaling_factor, 0.0, 1e6);
  if (model.mtp_num_layers <= 0) return;
  rules.require(
      config::model_traits(model.architecture).causal,
      concat("model.mtp_num_layers is for model.architecture ", config::names_with(&config::ModelTraits::causal), "."),
      model.architecture, kOff);
  rules.require(model.head == "tokens", "model.mtp_num_layers needs model.head tokens, which are what is predicted.",
                model.head, kOff);
}

void check_mup(const config::ModelConfig& model, Rules& rules) {
  rules.range<std::int64_t>("model.mup_base_hidden_size", model.mup_base_hidden_size, 0, kMaxWidth);
  rules.range("model.mup_embedding_mult", model.mup_embedding_mult, 1e-6, 1e6);
  rules.range("model.mup_output_mult", model.mup_output_mult, 1e-6, 1e6);
  rules.range("model.mup_base_head_dim", model.mup_base_head_dim, 0.0, 1e6);
  rules.range("model.mup_attn_scale_power", model.mup_attn_scale_power, 0.0, 8.0);
  rules.require(
      !model.use_mup || config::model_traits(model.architecture).causal,
      concat("model.use_mup is for model.architecture ", config::names_with(&config::ModelTraits::causal), "."),
      model.architecture, "--model.use_mup false");
}

}  // namespace

void check_model(const config::ModelConfig& model, Rules& rules) {
  rules.choices("model", model);
  rules.range<std::int64_t>("model.num_layers", model.num_layers, 1, kMaxLayers);
  rules.range<std::int64_t>("model.hidden_size", model.hidden_size, 1, kMaxWidth);
  rules.range<std::int64_t>("model.ffn_hidden_size", model.ffn_hidden_size, 0, kMaxFfn);
  rules.range<std::int64_t>("model.max_position_embeddings", model.max_position_embeddings, 0, kMaxPositions);
  rules.range<std::int64_t>("model.vocab_size", model.vocab_size, 0, kMaxVocab);
  rules.range<std::int64_t>("model.make_vocab_size_divisible_by", model.make_vocab_size_divisible_by, 1, kMaxVocab);
  rules.range<std::int64_t>("model.decoder_num_layers", model.decoder_num_layers, 0, kMaxLayers);
  rules.range<std::int64_t>("model.num_tokentypes", model.num_tokentypes, 0, kMaxWidth);
  rules.range<std::int64_t>("model.num_classes", model.num_classes, model.head == "classes" ? 2 : 0, kMaxWidth);
  check_attention(model, rules);
  check_positions(model, rules);
  check_latents(model, rules);
  check_variants(model, rules);
  check_stacks(model, rules);
  check_experts(model, rules);
  check_multi_token(model, rules);
  check_mup(model, rules);
  if (const auto check = model_kind(model.architecture).check; check != nullptr) check(model, rules);
  rules.option("model.layernorm_epsilon", model.layernorm_epsilon > 0, "must be above 0.",
               concat(model.layernorm_epsilon));
  rules.range("model.init_method_std", model.init_method_std, 0.0, 1e3);
  rules.range("model.embedding_init_method_std", model.embedding_init_method_std, 0.0, 1e3);
  const auto probability = [&](const char* option, double p) {
    rules.option(option, p >= 0 && p < 1, "must be from 0 to below 1.", concat(p));
  };
  probability("model.hidden_dropout", model.hidden_dropout);
  probability("model.attention_dropout", model.attention_dropout);
}

namespace {

/// 0.1 m ln(stretch) + 1 (Peng et al. 2023).
double yarn_mscale(const config::ModelConfig& model, double m) {
  return 0.1 * m * std::log(std::max(1.0, model.rope_scaling_factor)) + 1;
}

}  // namespace

std::int64_t rotary_features(const config::ModelConfig& model, const ModelShape& shape) {
  return shape.latents ? shape.latents->rope : rotary_features(shape.head(), model.rotary_percent);
}

double rotary_scale(const config::ModelConfig& model) {
  if (!model.multi_latent_attention || model.yarn_attention_factor > 0) return model.yarn_attention_factor;
  return yarn_mscale(model, model.mscale) / yarn_mscale(model, model.mscale_all_dim);
}

void add_latents(const config::ModelConfig& model, ModelShape& shape) {
  if (!model.multi_latent_attention) return;
  const Latents latents{.q_rank = model.q_lora_rank,
                        .kv_rank = model.kv_lora_rank,
                        .nope = model.qk_head_dim,
                        .rope = model.qk_pos_emb_head_dim,
                        .value = model.v_head_dim};
  shape.latents = latents;
  shape.num_groups = shape.num_heads;
  shape.head_size = latents.head_size();
  const double factor = model.rope_scaling_type == "yarn" ? yarn_mscale(model, model.mscale_all_dim) : 1;
  shape.attention_scale = factor * factor / std::sqrt(static_cast<double>(latents.query()));
}

}  // namespace megatron::plan
