#include <algorithm>
#include <numeric>

#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

/// The next width above the model's that its heads divide, or below where that is too large.
std::int64_t width_for_heads(const config::ModelConfig& model) {
  const std::int64_t heads = std::max<std::int64_t>(1, model.num_attention_heads);
  const std::int64_t below = model.hidden_size / heads * heads;
  return below + heads <= kLargestWidth ? below + heads : below;
}

void check_attention(const config::ModelConfig& model, Rules& rules) {
  const std::int64_t heads = model.num_attention_heads;
  rules.range<std::int64_t>("model.num_attention_heads", heads, 1, kLargestWidth);
  rules.range<std::int64_t>("model.kv_channels", model.kv_channels, 0, kLargestWidth);
  if (model.kv_channels == 0 && model.hidden_size >= 1 && model.hidden_size <= kLargestWidth)
    rules.require(heads < 1 || heads > kLargestWidth || model.hidden_size % heads == 0,
                  "model.hidden_size must divide by model.num_attention_heads.",
                  concat(model.hidden_size, " and ", heads), concat("--model.hidden_size ", width_for_heads(model)));
  rules.require(
      heads > kLargestWidth || model.kv_channels > kLargestWidth || heads * model.kv_channels <= kLargestWidth,
      concat("model.num_attention_heads x model.kv_channels must be at most ", kLargestWidth, "."),
      concat(heads, " x ", model.kv_channels), "--kv-channels 0 (the default)");
  rules.range<std::int64_t>("model.sliding_window", model.sliding_window, 0, kMostPositions);
  rules.require(model.sliding_window == 0 || model.architecture == "gpt",
                "model.sliding_window is for tokens that see those before them: model.architecture gpt.",
                concat("sliding_window ", model.sliding_window, ", ", model.architecture),
                "--model.sliding_window 0 (the default)");
  rules.range<std::int64_t>("model.num_query_groups", model.num_query_groups, 0, kLargestWidth);
  if (model.num_query_groups > 0 && heads > 0)
    rules.require(heads % model.num_query_groups == 0,
                  "model.num_attention_heads must divide by model.num_query_groups.",
                  concat(heads, " heads, ", model.num_query_groups, " groups"),
                  concat("--model.num_query_groups ", std::gcd(heads, model.num_query_groups)));
}

void check_positions(const config::ModelConfig& model, Rules& rules) {
  const std::int64_t buckets = model.relative_attention_num_buckets;
  rules.range<std::int64_t>("model.relative_attention_num_buckets", buckets, 4, kLargestWidth);
  rules.range<std::int64_t>("model.relative_attention_max_distance", model.relative_attention_max_distance,
                            std::clamp<std::int64_t>(buckets, 4, kLargestWidth) / 2 + 1, kMostPositions);
  rules.range("model.rotary_base", model.rotary_base, 1.0, 1e12);
  rules.option("model.rotary_percent", model.rotary_percent > 0 && model.rotary_percent <= 1,
               "must be above 0 and at most 1.", concat(model.rotary_percent));
  rules.range("model.rope_scaling_factor", model.rope_scaling_factor, 1.0, 1e6);
  rules.range("model.rope_low_freq_factor", model.rope_low_freq_factor, 1e-6, 1e6);
  rules.require(model.rope_high_freq_factor > model.rope_low_freq_factor && model.rope_high_freq_factor <= 1e9,
                "model.rope_high_freq_factor must be above model.rope_low_freq_factor.",
                concat(model.rope_high_freq_factor, " and ", model.rope_low_freq_factor),
                "--model.rope_low_freq_factor 1 --model.rope_high_freq_factor 4 (the defaults)");
  rules.range<std::int64_t>("model.rope_original_positions", model.rope_original_positions, 1, kMostPositions);
  const std::int64_t heads = std::max<std::int64_t>(1, model.num_attention_heads);
  const std::int64_t head = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / heads;
  rules.require(
      model.position_embedding_type == "rope" || (!model.rotary_interleaved && model.rope_scaling_factor == 1),
      "model.rotary_interleaved and model.rope_scaling_factor need model.position_embedding_type rope.",
      model.position_embedding_type, "--position-embedding-type rope");
  if (model.position_embedding_type != "rope" || head < 1 || model.rotary_percent > 1) return;
  const std::int64_t rotated = rotary_features(head, model.rotary_percent);
  rules.require(rotated >= 2 && rotated % 2 == 0,
                "rope rotates pairs: model.rotary_percent of a head's features must be an even number.",
                concat(rotated, " of ", head),
                head % 2 == 0 ? "--model.rotary_percent 1 (the default)"
                              : concat("--model.kv_channels ", head + 1, " --model.rotary_percent 1"));
}

/// What only a T5 has, and what a T5 does not have.
void check_t5(const config::ModelConfig& model, Rules& rules) {
  const bool t5 = model.architecture == "t5", relative = model.position_embedding_type == "relative";
  rules.require(t5 == relative, "model.position_embedding_type relative and model.architecture t5 need each other.",
                concat(model.position_embedding_type, " and ", model.architecture),
                t5 ? "--position-embedding-type relative" : "--position-embedding-type learned_absolute");
  if (!t5)
    return rules.require(model.decoder_num_layers == 0, "model.decoder_num_layers needs model.architecture t5.",
                         concat(model.decoder_num_layers), "--model.decoder_num_layers 0 (the default)");
  rules.require(model.num_query_groups == 0 || model.num_query_groups == model.num_attention_heads,
                "model.architecture t5 has a key and a value for each head.",
                concat("model.num_query_groups ", model.num_query_groups), "--model.num_query_groups 0 (the default)");
  rules.require(!model.apply_residual_connection_post_layernorm && !(model.add_qkv_bias && !model.add_bias_linear),
                "model.architecture t5 has its norms before each branch, and biases of all linear layers or of none.",
                "model.apply_residual_connection_post_layernorm or model.add_qkv_bias",
                "--model.apply_residual_connection_post_layernorm false --model.add_qkv_bias false");
}

}  // namespace

void check_model(const config::ModelConfig& model, Rules& rules) {
  rules.choices("model", model);
  rules.range<std::int64_t>("model.num_layers", model.num_layers, 1, kMostLayers);
  rules.range<std::int64_t>("model.hidden_size", model.hidden_size, 1, kLargestWidth);
  rules.range<std::int64_t>("model.ffn_hidden_size", model.ffn_hidden_size, 0, kLargestFfn);
  rules.range<std::int64_t>("model.max_position_embeddings", model.max_position_embeddings, 0, kMostPositions);
  rules.range<std::int64_t>("model.vocab_size", model.vocab_size, 0, kLargestVocab);
  rules.range<std::int64_t>("model.make_vocab_size_divisible_by", model.make_vocab_size_divisible_by, 1, kLargestVocab);
  rules.range<std::int64_t>("model.decoder_num_layers", model.decoder_num_layers, 0, kMostLayers);
  rules.range<std::int64_t>("model.num_tokentypes", model.num_tokentypes, 0, kLargestWidth);
  rules.range<std::int64_t>("model.num_classes", model.num_classes, model.head == "classes" ? 2 : 0, kLargestWidth);
  rules.require(model.head == "tokens" || model.architecture != "t5",
                "the heads of tasks are for model.architecture gpt and bert.", concat("t5, model.head ", model.head),
                "--model.head tokens (the default)");
  check_attention(model, rules);
  check_positions(model, rules);
  check_t5(model, rules);
  rules.option("model.layernorm_epsilon", model.layernorm_epsilon > 0, "must be above 0.",
               concat(model.layernorm_epsilon));
  rules.range("model.init_method_std", model.init_method_std, 0.0, 1e3);
  const auto probability = [&](const char* option, double p) {
    rules.option(option, p >= 0 && p < 1, "must be from 0 to below 1.", concat(p));
  };
  probability("model.hidden_dropout", model.hidden_dropout);
  probability("model.attention_dropout", model.attention_dropout);
}

}  // namespace megatron::plan
