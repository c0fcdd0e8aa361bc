#include "megatron/interchange/t5_config.h"

#include <nlohmann/json.hpp>
#include <string>

namespace megatron::interchange {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxLayers = 1 << 13, kMaxWidth = 1 << 24, kMaxVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMaxPositions = 1 << 22;

/// What transformers calls a feed-forward network; for "gated-gelu" it takes GELU's approximation.
struct FeedForward {
  const char *theirs, *activation;
  bool gated;
};
constexpr FeedForward kFeedForwards[] = {{"relu", "relu", false},     {"gated-gelu", "gelu_tanh", true},
                                         {"gelu", "gelu", false},     {"gelu_new", "gelu_tanh", false},
                                         {"silu", "silu", false},     {"gated-silu", "silu", true},
                                         {"gated-relu", "relu", true}};

const FeedForward* feed_forward_of(const config::ModelConfig& model) {
  for (const FeedForward& known : kFeedForwards)
    if (model.activation == known.activation && model.gated_linear_unit == known.gated) return &known;
  return nullptr;
}

void read_feed_forward(JsonFields& fields, bool multilingual, config::ModelConfig& model) {
  const std::string name = fields.text("feed_forward_proj", multilingual ? "gated-gelu" : "relu");
  const FeedForward* found = nullptr;
  for (const FeedForward& known : kFeedForwards)
    if (name == known.theirs) found = &known;
  if (found == nullptr)
    fields.refuse("feed_forward_proj", "relu, gated-gelu, gelu, gelu_new, silu, gated-silu or gated-relu");
  model.activation = found->activation;
  model.gated_linear_unit = found->gated;
  const std::string bare = found->gated ? name.substr(name.find('-') + 1) : name;
  fields.must_be("dense_act_fn", name == "gated-gelu" ? "gelu_new" : bare);  // which transformers writes beside it
  fields.must_be("is_gated_act", found->gated);
}

}  // namespace

config::ModelConfig t5_model(const json& object, JsonFields& fields) {
  const bool multilingual = fields.text("model_type", "t5") == "mt5";
  const std::string usual = multilingual ? "MT5ForConditionalGeneration" : "T5ForConditionalGeneration";
  const json named = object.value("architectures", json());
  if (!named.is_null() && named != json::array({usual}) && named != json::array({"T5WithLMHeadModel"}))
    fields.refuse("architectures", "[\"" + usual + "\"]");
  fields.ignore({"initializer_factor"});  // of weights that are drawn
  config::ModelConfig model;
  model.architecture = "t5";
  model.num_layers = fields.size("num_layers", kMaxLayers);
  model.decoder_num_layers = fields.size("num_decoder_layers", kMaxLayers, model.num_layers);
  model.hidden_size = fields.size("d_model", kMaxWidth);
  model.kv_channels = fields.size("d_kv", kMaxWidth);
  model.num_attention_heads = fields.size("num_heads", kMaxWidth);
  model.ffn_hidden_size = fields.size("d_ff", kMaxWidth);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.max_position_embeddings = fields.size("n_positions", kMaxPositions, 512);
  model.position_embedding_type = "relative";
  model.relative_attention_num_buckets = fields.size("relative_attention_num_buckets", kMaxWidth, 32);
  model.relative_attention_max_distance = fields.size("relative_attention_max_distance", kMaxPositions, 128);
  if (model.relative_attention_num_buckets < 4) fields.refuse("relative_attention_num_buckets", "at least 4");
  if (model.relative_attention_max_distance <= model.relative_attention_num_buckets / 2)
    fields.refuse("relative_attention_max_distance", "above half of relative_attention_num_buckets");
  read_feed_forward(fields, multilingual, model);
  model.normalization = "RMSNorm";
  model.add_bias_linear = false;
  model.layernorm_epsilon = fields.number("layer_norm_epsilon", 1e-6);
  model.hidden_dropout = model.attention_dropout = fields.number("dropout_rate", 0.1);
  // A tied head is scaled, by d_model^-1/2, and one of its own is not. transformers 5 says of both that they are tied;
  // an mT5's never is.
  const bool tied = fields.flag("tie_word_embeddings", true),
             scaled = fields.flag("scale_decoder_outputs", tied && !multilingual);
  if (scaled && (!tied || multilingual))
    fields.refuse("scale_decoder_outputs", multilingual ? "false" : "false where tie_word_embeddings is");
  model.untie_embeddings_and_output_weights = !scaled;
  return model;
}

void write_t5(const config::ModelConfig& model, json& object) {
  const FeedForward& feed_forward = *feed_forward_of(model);
  const bool tied = !model.untie_embeddings_and_output_weights;
  object.erase("initializer_range");
  object.update({{"model_type", "t5"},
                 {"architectures", {"T5ForConditionalGeneration"}},
                 {"is_encoder_decoder", true},
                 {"num_layers", model.num_layers},
                 {"num_decoder_layers", model.decoder_num_layers > 0 ? model.decoder_num_layers : model.num_layers},
                 {"d_model", model.hidden_size},
                 {"d_kv", model.kv_channels > 0 ? model.kv_channels : model.hidden_size / model.num_attention_heads},
                 {"num_heads", model.num_attention_heads},
                 {"d_ff", model.ffn_hidden_size > 0 ? model.ffn_hidden_size : 4 * model.hidden_size},
                 {"n_positions", model.max_position_embeddings},
                 {"relative_attention_num_buckets", model.relative_attention_num_buckets},
                 {"relative_attention_max_distance", model.relative_attention_max_distance},
                 {"feed_forward_proj", feed_forward.theirs},
                 {"layer_norm_epsilon", model.layernorm_epsilon},
                 {"dropout_rate", model.hidden_dropout},
                 {"initializer_factor", 1.0},
                 {"scale_decoder_outputs", tied}});
}

bool can_be_t5(const config::ModelConfig& model) {
  return model.normalization == "RMSNorm" && !model.add_bias_linear && model.position_embedding_type == "relative" &&
         (model.num_query_groups == 0 || model.num_query_groups == model.num_attention_heads) &&
         model == config::AttentionVariant{} && feed_forward_of(model) != nullptr;
}

}  // namespace megatron::interchange
