#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/families/hf_family.h"
#include "megatron/models/bert/families/encoders.h"
#include "megatron/plan/parameters/parameters.h"

// ModernBERT: an encoder with rotary positions, windows in most layers, gated units and norms before branches.
namespace megatron::models::bert {
namespace {

using namespace families;
using nlohmann::json;
using plan::ModelShape;

constexpr const char *kModernType = "modernbert", *kFull = "full_attention", *kSliding = "sliding_attention";
constexpr std::string_view kModernPrefix = "ModernBert";
constexpr Class kModernClasses[] = {{"ForMaskedLM", "tokens"}, {"Model", "tokens"}};
constexpr std::int64_t kModernPositions = 8192, kModernPeriod = 3, kModernWindow = 128;
constexpr double kModernBase = 160000, kModernLocalBase = 10000;

/// The base of one kind of layers: rope_parameters (transformers 5), or a field of its own (4).
double base_of(const json& object, JsonFields& fields, const char* layers, const char* field, double otherwise) {
  double base = fields.number(field, otherwise);
  const json& all = fields.value("rope_parameters");
  if (!all.is_null()) {
    if (!all.is_object()) fields.refuse("rope_parameters", "an object of objects");
    for (const auto& [name, inner] : all.items())
      if ((name != kFull && name != kSliding) || !inner.is_object())
        fields.refuse("rope_parameters", concat("objects of ", kFull, " and ", kSliding));
    if (const auto own = all.find(layers); own != all.end()) {
      JsonFields rope(*own, fields.file(), concat("rope_parameters.", layers, "."));
      base = rope.number("rope_theta", base);
      rope.must_be("rope_type", "default");
      rope.finish();
    }
  }
  if (!(base >= 1 && base <= 1e12)) fields.refuse(object.contains(field) ? field : "rope_parameters", "from 1 to 1e12");
  return base;
}

/// Of how many layers the first one sees all tokens; 0: none does.
std::int64_t period_of_layers(JsonFields& fields, std::int64_t layers) {
  const std::int64_t named = fields.size("global_attn_every_n_layers", kMaxLayers, kModernPeriod);
  const json& list = fields.value("layer_types");
  if (list.is_null()) return named;
  if (!list.is_array() || std::ssize(list) != layers)
    fields.refuse("layer_types", "a list with an entry for each layer");
  std::int64_t period = list[0] == kFull ? layers : 0;
  for (std::int64_t i = layers - 1; i > 0; --i)
    if (list[static_cast<std::size_t>(i)] == kFull) period = i;
  for (std::int64_t i = 0; i < layers; ++i)
    if (list[static_cast<std::size_t>(i)] != (period > 0 && i % period == 0 ? kFull : kSliding))
      fields.refuse("layer_types", concat("as many times ", kSliding, " behind each ", kFull));
  return period;
}

void read_modern(const json& object, JsonFields& fields, FolderConfig& folder) {
  read_encoder_head(object, fields, folder, kModernClasses, kModernPrefix);
  config::ModelConfig& model = folder.model;
  model.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  model.hidden_size = fields.size("hidden_size", kMaxWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMaxWidth);
  model.ffn_hidden_size = fields.size("intermediate_size", kMaxWidth);
  model.max_position_embeddings = fields.size("max_position_embeddings", kMaxPositions, kModernPositions);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.layernorm_epsilon = fields.number("norm_eps", 1e-5);
  // Theirs also drops what attention gives by attention_dropout.
  for (const char* dropout : {"embedding_dropout", "mlp_dropout", "attention_dropout"}) fields.must_be(dropout, 0.0);
  model.attention_dropout = model.hidden_dropout = 0;
  for (const char* activation : {"hidden_activation", "classifier_activation"}) fields.must_be(activation, "gelu");
  for (const char* on : {"tie_word_embeddings", "decoder_bias"}) fields.must_be(on, true);
  fields.must_be("rope_scaling", nullptr);
  model.activation = "gelu";
  model.gated_linear_unit = model.embedding_layernorm = true;
  model.norm_bias = fields.flag("norm_bias", false);
  model.masked_lm_bias = fields.flag("classifier_bias", false);
  model.add_bias_linear = fields.flag("attention_bias", false);
  if (fields.flag("mlp_bias", false) != model.add_bias_linear) fields.refuse("mlp_bias", "as attention_bias");
  model.num_tokentypes = 0;
  model.bert_binary_head = false;
  model.position_embedding_type = "rope";
  model.rotary_base = base_of(object, fields, kFull, "global_rope_theta", kModernBase);
  const double local = base_of(object, fields, kSliding, "local_rope_theta", kModernLocalBase);
  const std::int64_t window = fields.size("local_attention", kMaxPositions, kModernWindow);
  if (window < 2) fields.refuse("local_attention", "2 or more");
  const std::int64_t period = period_of_layers(fields, model.num_layers);
  if (period != 1) {  // some layers have the window: half of it on either side, and the token itself
    model.sliding_window = window / 2 + 1;
    model.window_attn_skip_freq = std::min(period, model.num_layers);
    model.window_attn_skip_first = period > 0;
    model.rotary_base_local = local;
  }
  // What pools for classes, and how transformers computes.
  fields.ignore({"classifier_pooling", "cls_token_id", "deterministic_flash_attn", "initializer_cutoff_factor",
                 "layer_norm_eps", "position_embedding_type", "reference_compile", "repad_logits_with_grad",
                 "sparse_prediction", "sparse_pred_ignore_index"});
}

void write_modern(const FolderConfig& folder, const HasTensor& theirs, json& object) {
  const config::ModelConfig& model = folder.model;
  const ModelShape shape = shape_of(model);
  json layers = json::array();
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
    layers.push_back(shape.layer(layer).attention().variant.sliding_window > 0 ? kSliding : kFull);
  const double local = model.rotary_base_local > 0 ? model.rotary_base_local : model.rotary_base;
  const auto positions = [](double base) { return json{{"rope_type", "default"}, {"rope_theta", base}}; };
  object.update({{"model_type", kModernType},
                 {"architectures", {concat(kModernPrefix, theirs("decoder.bias") ? "ForMaskedLM" : "Model")}},
                 {"num_hidden_layers", model.num_layers},
                 {"hidden_size", model.hidden_size},
                 {"num_attention_heads", model.num_attention_heads},
                 {"intermediate_size", shape.ffn_hidden},
                 {"max_position_embeddings", model.max_position_embeddings},
                 {"hidden_activation", "gelu"},
                 {"norm_eps", model.layernorm_epsilon},
                 {"norm_bias", model.norm_bias},
                 {"attention_bias", model.add_bias_linear},
                 {"mlp_bias", model.add_bias_linear},
                 {"classifier_bias", model.masked_lm_bias},
                 {"decoder_bias", true},
                 {"attention_dropout", 0.0},
                 {"local_attention", model.sliding_window > 0 ? 2 * (model.sliding_window - 1) : kModernWindow},
                 {"layer_types", layers},
                 {"global_attn_every_n_layers",
                  model.sliding_window > 0 ? std::max<std::int64_t>(model.window_attn_skip_freq, 1) : 1},
                 {"global_rope_theta", model.rotary_base},
                 {"local_rope_theta", local},
                 {"rope_parameters", {{kFull, positions(model.rotary_base)}, {kSliding, positions(local)}}}});
}

/// Our names made of theirs. The first layer's first norm is that of their embeddings.
Mapping modern_table(const ModelShape& shape, const std::string& prefix, bool token_head) {
  MappingBuilder build;
  const std::int64_t h = shape.hidden;
  build.whole("embedding.word_embeddings.weight", prefix + "embeddings.tok_embeddings.weight", {shape.vocab, h});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string theirs = concat(prefix, "layers.", layer, ".");
    build.layer(shape.layer(layer),
                {{"input_layernorm", {layer == 0 ? prefix + "embeddings.norm" : theirs + "attn_norm"}},
                 {"self_attention.linear_qkv", {theirs + "attn.Wqkv"}},
                 {"self_attention.linear_proj", {theirs + "attn.Wo"}},
                 {"pre_mlp_layernorm", {theirs + "mlp_norm"}},
                 {"mlp.linear_fc1", {theirs + "mlp.Wi"}},
                 {"mlp.linear_fc2", {theirs + "mlp.Wo"}}});
  }
  build.norm("encoder.final_layernorm", prefix + "final_norm", shape);
  if (!token_head) return build.take();
  build.whole("lm_head.dense.weight", "head.dense.weight", {h, h});
  if (shape.masked_lm_bias) build.whole("lm_head.dense.bias", "head.dense.bias", {h});
  build.norm("lm_head.layer_norm", "head.norm", shape);
  build.whole("output_layer.bias", "decoder.bias", {shape.vocab});
  return build.take();
}

constexpr std::string_view kModernTypes[] = {kModernType};

constexpr SecondName kModernSecondNames[] = {{"decoder.weight", plan::kWordEmbedding}};

}  // namespace

extern const HfFamily kModernBert;
constinit const HfFamily kModernBert{
    .name = "modernbert",
    .architecture = "bert",
    .form = "a ModernBERT (LayerNorm, rope, gated_linear_unit, embedding_layernorm, no token types)",
    .model_types = kModernTypes,
    .read = read_modern,
    .holds =
        [](const config::ModelConfig& model, const ModelShape& shape) {
          const config::AttentionVariant attention{.sliding_window = model.sliding_window,
                                                   .window_attn_skip_freq = model.window_attn_skip_freq,
                                                   .window_attn_skip_first = model.window_attn_skip_freq > 0,
                                                   .rotary_base_local = model.rotary_base_local};
          const config::LayerVariant layers{
              .norm_bias = model.norm_bias, .embedding_layernorm = true, .masked_lm_bias = model.masked_lm_bias};
          return model == attention && model == layers && !shape.rms_norm && shape.gated && model.head == "tokens" &&
                 model.position_embedding_type == "rope" && !model.rotary_interleaved && model.rotary_percent == 1 &&
                 model.rope_scaling_factor == 1 && shape.groups() == shape.num_heads &&
                 shape.query_rows() == shape.hidden && shape.tied_output && shape.token_types == 0 &&
                 !model.bert_binary_head && model.activation == "gelu";
        },
    .write = write_modern,
    .table =
        [](const ModelShape& shape, const HasTensor& theirs) {
          return modern_table(shape, theirs("model.embeddings.tok_embeddings.weight") ? "model." : "",
                              theirs("decoder.bias"));
        },
    .written_table =
        [](const ModelShape& shape, const HasTensor& ours) {
          const bool token_head = ours("output_layer.bias");
          return modern_table(shape, token_head ? "model." : "", token_head);
        },
    .needs_no_reading = [](const FolderConfig&, const std::string& name) { return name == "decoder.weight"; },
    .second_names = kModernSecondNames};

}  // namespace megatron::models::bert
