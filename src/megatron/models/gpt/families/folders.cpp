#include "megatron/models/gpt/families/folders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/families/hf_classes.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/rules.h"

namespace megatron::models::gpt {

using namespace families;
using config::ModelConfig;
using nlohmann::json;

namespace {

constexpr std::array<std::pair<const char*, const char*>, 9> kActivations = {{{"gelu", "gelu"},
                                                                              {"gelu_new", "gelu_tanh"},
                                                                              {"gelu_pytorch_tanh", "gelu_tanh"},
                                                                              {"gelu_fast", "gelu_tanh"},
                                                                              {"silu", "silu"},
                                                                              {"swish", "silu"},
                                                                              {"relu", "relu"},
                                                                              {"relu2", "squared_relu"},
                                                                              {"quick_gelu", "quick_gelu"}}};

constexpr const char *kRopeParameters = "rope_parameters", *kRopeScaling = "rope_scaling";
constexpr const char *kSlidingAttention = "sliding_attention", *kFullAttention = "full_attention";

void read_llama3(JsonFields& rope, ModelConfig& model) {
  model.rope_low_freq_factor = rope.number("low_freq_factor", 0);
  model.rope_high_freq_factor = rope.number("high_freq_factor", 0);
  model.rope_original_positions = rope.size("original_max_position_embeddings", kMaxPositions);
  if (!(model.rope_low_freq_factor > 0)) rope.refuse("low_freq_factor", "above 0");
  if (!(model.rope_high_freq_factor > model.rope_low_freq_factor))
    rope.refuse("high_freq_factor", "above low_freq_factor");
}

/// Latent attention's factors of what is rotated and of scores, of which transformers takes both or neither.
void read_mscales(JsonFields& rope, ModelConfig& model) {
  const double rotated = rope.number("mscale", 0), scores = rope.number("mscale_all_dim", 0);
  if (scores < 0) rope.refuse("mscale_all_dim", "at least 0");
  if (scores == 0 ? rotated != 0 && rotated != 1 : !(rotated > 0))
    rope.refuse("mscale", scores == 0 ? "1 without mscale_all_dim" : "above 0 with mscale_all_dim");
  model.mscale = rotated > 0 ? rotated : 1;
  model.mscale_all_dim = scores;
}

void read_yarn(JsonFields& rope, ModelConfig& model) {
  model.rope_original_positions =
      rope.size("original_max_position_embeddings", kMaxPositions, model.max_position_embeddings);
  model.yarn_beta_fast = rope.number("beta_fast", 32);
  model.yarn_beta_slow = rope.number("beta_slow", 1);
  model.yarn_attention_factor = rope.number("attention_factor", 0);
  if (!(model.yarn_beta_slow > 0)) rope.refuse("beta_slow", "above 0");
  if (!(model.yarn_beta_fast > model.yarn_beta_slow)) rope.refuse("beta_fast", "above beta_slow");
  if (rope.has("attention_factor") && !(model.yarn_attention_factor > 0)) rope.refuse("attention_factor", "above 0");
  if (model.rope_scaling_factor == 1 && model.yarn_attention_factor != 0 && model.yarn_attention_factor != 1)
    rope.refuse("attention_factor", "1 with factor 1, which stretches nothing here");
  model.yarn_correction_range_round_to_int = rope.flag("truncate", true);
}

/// A number above 0 for each pair of features that are rotated.
std::vector<double> factors_of(JsonFields& rope, const char* key, std::int64_t pairs) {
  const json& list = rope.value(key);
  const bool fits = list.is_array() && std::ssize(list) == pairs && std::ranges::all_of(list, [](const json& factor) {
                      return factor.is_number() && std::isfinite(factor.get<double>()) && factor.get<double>() > 0;
                    });
  if (!fits) rope.refuse(key, concat("a list of ", pairs, " numbers above 0, one for each pair of rotated features"));
  return list.get<std::vector<double>>();
}

void read_longrope(JsonFields& rope, ModelConfig& model, std::int64_t positions) {
  if (!(model.rotary_percent > 0 && model.rotary_percent <= 1)) rope.refuse("partial_rotary_factor", "from 0 to 1");
  if (rope.size("original_max_position_embeddings", kMaxPositions, positions) != positions)
    rope.refuse("original_max_position_embeddings", concat("the model's own, ", positions));
  const std::int64_t head = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / model.num_attention_heads;
  const std::int64_t pairs = plan::rotary_features(head, model.rotary_percent) / 2;
  model.rope_scaling_type = "longrope";
  model.rope_original_positions = positions;
  model.rope_scaling_factor =
      rope.number("factor", static_cast<double>(model.max_position_embeddings) / static_cast<double>(positions));
  model.longrope_short_factor = factors_of(rope, "short_factor", pairs);
  model.longrope_long_factor = factors_of(rope, "long_factor", pairs);
  model.longrope_attention_factor = rope.number("attention_factor", 0);
  if (!(model.rope_scaling_factor > 1)) rope.refuse("factor", "above 1: of so many times the positions before");
  if (rope.has("attention_factor") && !(model.longrope_attention_factor > 0))
    rope.refuse("attention_factor", "above 0");
  rope.finish();
}

/// The fields of one kind of layer: of rope_parameters, or of an object in it.
void read_positions(JsonFields& rope, ModelConfig& model, const RopeDefaults& defaults) {
  model.rotary_base = rope.number("rope_theta", model.rotary_base);
  if (defaults.partial)
    model.rotary_percent = rope.number("partial_rotary_factor", model.rotary_percent);
  else
    rope.must_be("partial_rotary_factor", 1.0);
  const bool new_name = rope.has("rope_type");  // "type" as older folders say
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") return rope.finish();
  if (defaults.longrope_positions > 0) {
    if (type != "longrope" && type != "su") rope.refuse(new_name ? "rope_type" : "type", "default or longrope");
    return read_longrope(rope, model, defaults.longrope_positions);
  }
  if (type != "llama3" && type != "linear" && type != "yarn")
    rope.refuse(new_name ? "rope_type" : "type", "default, linear, llama3 or yarn");
  model.rope_scaling_type = type;
  model.rope_scaling_factor = rope.number("factor", 0);
  if (!(model.rope_scaling_factor >= 1)) rope.refuse("factor", "at least 1");
  if (type == "llama3") read_llama3(rope, model);
  if (type == "yarn") read_yarn(rope, model);
  if (type == "yarn" && defaults.mscales) read_mscales(rope, model);
  rope.finish();
}

/// The object of config.json that says where tokens stand, and what precedes its fields in messages.
struct RopeObject {
  json fields;
  std::string prefix;
};

/// As transformers 5 chooses it: a rope_scaling that says something stands in place of all of rope_parameters; of a
/// family with an object for each kind of layer it replaces single fields of that of full_attention.
std::optional<RopeObject> rope_object(const json& object, JsonFields& fields, const RopeDefaults& defaults) {
  fields.ignore({kRopeParameters, kRopeScaling});
  for (const char* key : {kRopeParameters, kRopeScaling})
    if (fields.has(key) && !object.at(key).is_object()) fields.refuse(key, "an object");
  const json none = json::object(), scaling = fields.has(kRopeScaling) ? object.at(kRopeScaling) : none;
  if (defaults.by_kind && scaling.contains("type") && !scaling.contains("rope_type"))
    fields.refuse(kRopeScaling, "one with rope_type: transformers 5 reads no type there");
  if (!fields.has(kRopeParameters) || (!scaling.empty() && !defaults.by_kind)) {
    if (scaling.empty()) return std::nullopt;
    return RopeObject{scaling, concat(kRopeScaling, ".")};
  }
  const json& all = object.at(kRopeParameters);
  const auto full = all.find(kFullAttention);
  if (full == all.end()) {
    if (defaults.by_kind && !(all.empty() && scaling.empty()))
      fields.refuse(kRopeParameters, "objects of full_attention and sliding_attention");
    return RopeObject{all, concat(kRopeParameters, ".")};
  }
  if (!full->is_object()) fields.refuse(kRopeParameters, "an object of objects");
  json merged = *full;
  merged.update(scaling);
  return RopeObject{merged, concat(scaling.empty() ? concat(kRopeParameters, ".", kFullAttention) : kRopeScaling, ".")};
}

}  // namespace

std::string our_activation(JsonFields& fields, const std::string& key, const std::string& otherwise) {
  const std::string name = fields.text(key, otherwise);
  for (const auto& [theirs, ours] : kActivations)
    if (name == theirs) return ours;
  fields.refuse(key, "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu, swish, relu, relu2 or quick_gelu");
}

std::string their_activation(const std::string& name) {
  for (const auto& [theirs, ours] : kActivations)
    if (name == ours) return name == "gelu_tanh" ? "gelu_pytorch_tanh" : theirs;
  throw std::logic_error(concat("an activation without a name in config.json: ", name));
}

void check_architecture(const json& object, JsonFields& fields, const std::vector<std::string>& known) {
  const auto list = object.find("architectures");
  if (list == object.end() || list->is_null()) return;
  for (const std::string& name : known)
    if (*list == json::array({name})) return;
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "[\"" : "\"], [\"") + name;
  fields.refuse("architectures", names + "\"]");
}

void check_classes(const json& object, JsonFields& fields, const std::string& prefix) {
  check_architecture(object, fields, {prefix + "ForCausalLM", prefix + "Model", prefix + kClassifier});
}

json class_of(const FolderConfig& folder, const std::string& prefix) {
  return json::array({prefix + (folder.model.head == "classes" ? kClassifier : "ForCausalLM")});
}

void read_head(const json& object, JsonFields& fields, FolderConfig& folder) {
  if (const json named = object.value("architectures", json()); named.is_array() && named.size() == 1)
    if (named[0].get<std::string>().ends_with(kClassifier)) read_classes(fields, folder);
}

void write_head(const FolderConfig& folder, json& object) {
  if (folder.model.head != "classes") return;
  write_classes(folder, object);
  // Padding is what transformers looks for to find the last token, which is an end of a text here.
  const json &pad = object["pad_token_id"], &ends = object["eos_token_id"];
  if (pad == ends || (ends.is_array() && std::ranges::count(ends, pad) > 0)) object["pad_token_id"] = nullptr;
}

void read_sizes(JsonFields& fields, ModelConfig& model, bool grouped) {
  model.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  model.hidden_size = fields.size("hidden_size", kMaxWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMaxWidth);
  if (grouped) {
    model.num_query_groups = fields.size("num_key_value_heads", kMaxWidth, model.num_attention_heads);
    model.kv_channels = fields.size("head_dim", kMaxWidth, 0);
  }
  model.ffn_hidden_size = fields.size("intermediate_size", kMaxWidth);
  model.max_position_embeddings = fields.size("max_position_embeddings", kMaxPositions);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.hidden_dropout = 0;
  model.attention_dropout = fields.number("attention_dropout", 0);
}

json sizes_json(const ModelConfig& model, bool grouped) {
  const plan::ModelShape shape = shape_of(model);
  json sizes = {{"num_hidden_layers", model.num_layers},
                {"hidden_size", model.hidden_size},
                {"num_attention_heads", model.num_attention_heads},
                {"intermediate_size", shape.ffn_hidden},
                {"max_position_embeddings", model.max_position_embeddings},
                {"attention_dropout", model.attention_dropout}};
  if (grouped) sizes.update({{"num_key_value_heads", shape.groups()}, {"head_dim", shape.head()}});
  return sizes;
}

void read_gated(JsonFields& fields, ModelConfig& model, const char* activation, double epsilon) {
  model.normalization = "RMSNorm";
  model.layernorm_epsilon = fields.number("rms_norm_eps", epsilon);
  model.activation = our_activation(fields, activation, "silu");
  model.gated_linear_unit = true;
}

void set_biases(ModelConfig& model, bool attention, bool mlp) {
  model.add_bias_linear = attention || mlp;
  model.linear_bias_in = attention == mlp ? "all" : attention ? "attention" : "mlp";
}

bool attention_biased(const ModelConfig& model) { return model.add_bias_linear && model.linear_bias_in != "mlp"; }
bool mlp_biased(const ModelConfig& model) { return model.add_bias_linear && model.linear_bias_in != "attention"; }

void read_rope(const json& object, JsonFields& fields, ModelConfig& model, const RopeDefaults& defaults) {
  model.position_embedding_type = "rope";
  model.rotary_base = fields.number(defaults.theta, defaults.base);
  fields.ignore({"rope_theta"});
  model.rotary_percent = defaults.percent;
  if (defaults.partial)
    model.rotary_percent = fields.number("partial_rotary_factor", model.rotary_percent);
  else
    fields.must_be("partial_rotary_factor", 1.0);
  fields.must_be("rope_interleaved", false);
  if (const auto positions = rope_object(object, fields, defaults)) {
    JsonFields rope(positions->fields, fields.file(), positions->prefix);
    read_positions(rope, model, defaults);
  }
  if (!(model.rotary_base > 0)) fields.refuse(defaults.theta, "above 0");
  if (!(model.rotary_percent > 0 && model.rotary_percent <= 1)) fields.refuse("partial_rotary_factor", "from 0 to 1");
}

json write_rope(const ModelConfig& model, json& object) {
  json rope = {{"rope_type", "default"}};
  object["rope_scaling"] = nullptr;
  if (model.rope_scaling_factor != 1) {
    rope = {{"rope_type", model.rope_scaling_type}, {"factor", model.rope_scaling_factor}};
    if (model.rope_scaling_type == "llama3")
      rope.update({{"low_freq_factor", model.rope_low_freq_factor},
                   {"high_freq_factor", model.rope_high_freq_factor},
                   {"original_max_position_embeddings", model.rope_original_positions}});
    if (model.rope_scaling_type == "yarn") {
      rope.update({{"beta_fast", model.yarn_beta_fast},
                   {"beta_slow", model.yarn_beta_slow},
                   {"original_max_position_embeddings", model.rope_original_positions}});
      if (!model.yarn_correction_range_round_to_int) rope["truncate"] = false;
      if (model.mscale_all_dim > 0) rope.update({{"mscale", model.mscale}, {"mscale_all_dim", model.mscale_all_dim}});
      if (model.yarn_attention_factor > 0) rope["attention_factor"] = model.yarn_attention_factor;
    }
    if (model.rope_scaling_type == "longrope") {
      rope.update({{"short_factor", model.longrope_short_factor}, {"long_factor", model.longrope_long_factor}});
      const auto ratio =
          static_cast<double>(model.max_position_embeddings) / static_cast<double>(model.rope_original_positions);
      if (model.rope_scaling_factor == ratio) rope.erase("factor");
      if (model.longrope_attention_factor > 0) rope["attention_factor"] = model.longrope_attention_factor;
    }
    object["rope_scaling"] = rope;
    if (model.rope_scaling_type == "longrope") {  // as transformers 4 calls it in its three fields
      object["rope_scaling"].erase("rope_type");
      object["rope_scaling"]["type"] = "longrope";
    }
  }
  rope["rope_theta"] = model.rotary_base;
  if (model.rotary_percent != 1) rope["partial_rotary_factor"] = model.rotary_percent;
  object["rope_theta"] = model.rotary_base;
  object["rope_parameters"] = rope;
  return rope;
}

bool rotates_halves(const ModelConfig& model, bool whole) {
  return model.position_embedding_type == "rope" && !model.rotary_interleaved &&
         (!whole || model.rotary_percent == 1) &&
         (model.rope_scaling_factor == 1 || model.rope_scaling_type != "longrope");
}

std::int64_t period_of(JsonFields& fields, const char* key, const json& list, const json& odd, const json& other) {
  std::int64_t period = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i) + 1;
    if (list[i] == odd && period == 0) period = number;
    const bool expected = period > 0 && number % period == 0;
    if (list[i] != (expected ? odd : other))
      fields.refuse(key, concat("as many times ", other.dump(), " before each ", odd.dump()));
  }
  return period;
}

void read_layer_types(JsonFields& fields, ModelConfig& model, std::int64_t otherwise) {
  const json& list = fields.value("layer_types");
  model.window_attn_skip_freq = otherwise;
  if (!list.is_null()) {
    if (!list.is_array() || list.size() < static_cast<std::size_t>(model.num_layers))
      fields.refuse("layer_types", "a list with an entry for each layer");
    const json layers(list.begin(), list.begin() + model.num_layers);
    model.window_attn_skip_freq = period_of(fields, "layer_types", layers, kFullAttention, kSlidingAttention);
  }
  if (model.window_attn_skip_freq > model.num_layers) model.window_attn_skip_freq = 0;
  if (model.sliding_window == 0 && model.window_attn_skip_freq != 1)
    fields.refuse("sliding_window", "a number of tokens, as some layers have a window");
  if (model.sliding_window == 0 || model.window_attn_skip_freq == 1)  // no layer has a window
    model.sliding_window = model.window_attn_skip_freq = 0;
}

json layer_types(const ModelConfig& model) {
  json list = json::array();
  const plan::ModelShape shape = shape_of(model);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
    list.push_back(shape.layer(layer).attention().variant.sliding_window > 0 ? kSlidingAttention : kFullAttention);
  return list;
}

json write_network(const FolderConfig& folder, json& object, const std::string& type, const std::string& class_prefix,
                   const char* epsilon, bool grouped) {
  const ModelConfig& model = folder.model;
  object.update(sizes_json(model, grouped));
  object.update({{"model_type", type},
                 {"architectures", class_of(folder, class_prefix)},
                 {"hidden_act", their_activation(model.activation)},
                 {epsilon, model.layernorm_epsilon}});
  return write_rope(model, object);
}

std::int64_t read_window(const json& object, JsonFields& fields, std::int64_t otherwise) {
  return fields.size("sliding_window", kMaxPositions, object.contains("sliding_window") ? 0 : otherwise);
}

json window_or_null(const ModelConfig& model) { return model.sliding_window > 0 ? json(model.sliding_window) : json(); }

void refuse_windows(const json& object, JsonFields& fields) {
  fields.must_be("use_sliding_window", false);
  fields.ignore({"sliding_window", "max_window_layers", "use_mrope"});  // without use_sliding_window nothing uses them
  fields.must_be("use_mrope", false);
  for (const json& layer : fields.value("layer_types").is_array() ? object.at("layer_types") : json::array())
    if (layer != kFullAttention) fields.refuse("layer_types", "full_attention for every layer");
}

LayerNames llama_layer(const std::string& layer) {
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  return {{"input_layernorm", {layer + "input_layernorm"}},
          {"self_attention.linear_qkv", {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
          {"self_attention.q_layernorm", {attention + "q_norm"}},
          {"self_attention.k_layernorm", {attention + "k_norm"}},
          {"self_attention.linear_proj", {attention + "o_proj"}},
          {"pre_mlp_layernorm", {layer + "post_attention_layernorm"}},
          {"mlp.linear_fc1", {mlp + "gate_proj", mlp + "up_proj"}},
          {"mlp.linear_fc2", {mlp + "down_proj"}}};
}

LayerNames fused_heads_layer(const std::string& layer, const char* attention, const char* before_attention,
                             const char* before_mlp) {
  const std::string heads = concat(layer, attention, "."), mlp = layer + "mlp.";
  return {{"input_layernorm", {layer + before_attention}},   {"self_attention.linear_qkv", {heads + "query_key_value"}},
          {"self_attention.linear_proj", {heads + "dense"}}, {"pre_mlp_layernorm", {layer + before_mlp}},
          {"mlp.linear_fc1", {mlp + "dense_h_to_4h"}},       {"mlp.linear_fc2", {mlp + "dense_4h_to_h"}}};
}

void name_experts(LayerNames& names, const std::string& mlp, std::int64_t count, const char* gate, const char* up,
                  const char* down) {
  for (std::int64_t e = 0; e < count; ++e) {
    const std::string ours = concat("mlp.experts.local_experts.", e, "."), theirs = concat(mlp, "experts.", e, ".");
    names[ours + "linear_fc1"] = {theirs + gate, theirs + up};
    names[ours + "linear_fc2"] = {theirs + down};
  }
}

void gpt_head(MappingBuilder& build, const plan::ModelShape& shape, const std::string& output) {
  if (!shape.predicts_tokens())
    build.whole("task_head.weight", "score.weight", {shape.head_rows(), shape.hidden});
  else if (!shape.tied_output)
    build.whole("output_layer.weight", output, {shape.vocab, shape.hidden});
}

Mapping decoder_table(const plan::ModelShape& shape, const std::string& prefix, NamesOf names) {
  MappingBuilder build;
  build.whole("embedding.word_embeddings.weight", prefix + "embed_tokens.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    build.layer(shape.layer(layer), names(concat(prefix, "layers.", layer, "."), shape.layer(layer)));
  build.norm("decoder.final_layernorm", prefix + "norm", shape);
  gpt_head(build, shape);
  return build.take();
}

bool needs_no_reading(const FolderConfig& folder, const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || is_tied_head(folder, name);
}

}  // namespace megatron::models::gpt
