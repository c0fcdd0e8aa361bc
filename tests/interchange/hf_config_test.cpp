#include "megatron/families/hf_config.h"

#include <nlohmann/json.hpp>

#include "megatron/families/hf_family.h"
#include "tests/interchange/support.h"

namespace megatron::interchange {
namespace {

using nlohmann::json;

json llama() {
  return {{"model_type", "llama"},       {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},           {"intermediate_size", 96},
          {"num_attention_heads", 4},    {"num_hidden_layers", 2},
          {"num_key_value_heads", 2},    {"max_position_embeddings", 128},
          {"vocab_size", 256},           {"rms_norm_eps", 1e-6},
          {"tie_word_embeddings", true}, {"eos_token_id", {2, 7}},
          {"dtype", "bfloat16"}};
}

json gpt2() {
  return {{"model_type", "gpt2"}, {"n_layer", 2},      {"n_embd", 64},
          {"n_head", 4},          {"n_positions", 32}, {"vocab_size", 257}};
}

json t5() {
  return {{"model_type", "t5"}, {"architectures", {"T5ForConditionalGeneration"}},
          {"num_layers", 2},    {"num_decoder_layers", 3},
          {"d_model", 64},      {"d_kv", 24},
          {"d_ff", 96},         {"num_heads", 4},
          {"vocab_size", 257},  {"feed_forward_proj", "gated-gelu"},
          {"eos_token_id", 1},  {"is_encoder_decoder", true},
          {"pad_token_id", 0},  {"decoder_start_token_id", 0},
          {"n_positions", 512}, {"tie_word_embeddings", false}};
}

config::ModelConfig model_of(const json& object) { return families::parse_config(object.dump(), "config.json").model; }

void expect_field_refused(json object, const std::string& field, const json& value) {
  object[field] = value;
  expect_refused([&] { model_of(object); }, {"config.json", field});
}

TEST(HuggingFaceConfig, ReadsGpt2) {
  const auto model = model_of(gpt2());
  EXPECT_EQ(model.ffn_hidden_size, 256);
  EXPECT_EQ(model.activation, "gelu_tanh");
  EXPECT_EQ(model.normalization, "LayerNorm");
  EXPECT_EQ(model.position_embedding_type, "learned_absolute");
  EXPECT_FALSE(model.untie_embeddings_and_output_weights);
  EXPECT_EQ(model.max_position_embeddings, 32);
}

TEST(HuggingFaceConfig, ReadsLlama) {
  const auto model = model_of(llama());
  EXPECT_EQ(model.num_query_groups, 2);
  EXPECT_EQ(model.normalization, "RMSNorm");
  EXPECT_TRUE(model.gated_linear_unit);
  EXPECT_EQ(model.activation, "silu");
  EXPECT_FALSE(model.add_bias_linear);
  EXPECT_FALSE(model.add_qkv_bias);
  EXPECT_EQ(model.rotary_base, 10000);
  EXPECT_EQ(model.rope_scaling_factor, 1);
  EXPECT_EQ(families::parse_config(llama().dump(), "c").token_ids.at("eos_token_id"), "[2,7]");
}

TEST(HuggingFaceConfig, TakesAnUntiedOutputAsTransformersDoesWhereNothingIsSaid) {
  json object = llama();
  object.erase("tie_word_embeddings");
  EXPECT_TRUE(model_of(object).untie_embeddings_and_output_weights);
  EXPECT_FALSE(model_of(gpt2()).untie_embeddings_and_output_weights);
}

TEST(HuggingFaceConfig, ReadsRotaryPositionsAsBothVersionsWriteThem) {
  json four = llama(), five = llama();
  four["rope_theta"] = 50000.0;
  four["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 64}};
  five["rope_parameters"] = four["rope_scaling"];
  five["rope_parameters"]["rope_theta"] = 50000.0;
  for (const json& object : {four, five}) {
    const auto model = model_of(object);
    EXPECT_EQ(model.rotary_base, 50000);
    EXPECT_EQ(model.rope_scaling_factor, 8);
    EXPECT_EQ(model.rope_high_freq_factor, 4);
    EXPECT_EQ(model.rope_original_positions, 64);
  }
}

TEST(HuggingFaceConfig, RefusesOtherScalingsByName) {
  for (const char* type : {"dynamic", "longrope"})
    expect_refused(
        [&] {
          json object = llama();
          object["rope_scaling"] = {{"type", type}, {"factor", 2.0}};
          model_of(object);
        },
        {"rope_scaling.type", type});
}

TEST(HuggingFaceConfig, RefusesFieldsThatChangeTheResult) {
  expect_field_refused(llama(), "max_position_embeddings", (1 << 22) + 1);
  expect_field_refused(llama(), "logits_scaling", 8.0);
  expect_field_refused(llama(), "quantization_config", {{"bits", 4}});
  expect_field_refused(llama(), "no_rope_layers", {1, 0});
  expect_field_refused(llama(), "partial_rotary_factor", 0.5);
  expect_field_refused(llama(), "rope_interleaved", true);
  expect_field_refused(llama(), "hidden_act", "gelu_10");
  expect_field_refused(llama(), "architectures", {"LlamaForTokenClassification"});
  expect_field_refused(gpt2(), "scale_attn_by_inverse_layer_idx", true);
  expect_field_refused(gpt2(), "scale_attn_weights", false);
  expect_field_refused(gpt2(), "add_cross_attention", true);
}

TEST(HuggingFaceConfig, TakesFieldsThatChangeNothing) {
  json object = llama();
  object.update({{"pretraining_tp", 2},
                 {"use_cache", false},
                 {"_name_or_path", "x"},
                 {"temperature", 0.6},
                 {"quantization_config", nullptr},
                 {"torch_dtype", "float16"}});
  EXPECT_EQ(model_of(object).num_layers, 2);
}

TEST(HuggingFaceConfig, TakesMistralAndQwen2WhereTheyAreALlama) {
  json mistral = llama(), qwen2 = llama();
  mistral.update({{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}}, {"sliding_window", nullptr}});
  qwen2.update({{"model_type", "qwen2"},
                {"architectures", {"Qwen2ForCausalLM"}},
                {"use_sliding_window", false},
                {"sliding_window", 4096},
                {"max_window_layers", 28}});
  EXPECT_FALSE(model_of(mistral).add_qkv_bias);
  EXPECT_TRUE(model_of(qwen2).add_qkv_bias);
  EXPECT_EQ(model_of(mistral).sliding_window, 0);
  mistral["sliding_window"] = 64;
  EXPECT_EQ(model_of(mistral).sliding_window, 64);
  mistral.erase("sliding_window");
  EXPECT_EQ(model_of(mistral).sliding_window, 4096) << "what transformers takes where none is named";
  expect_field_refused(qwen2, "use_sliding_window", true);
  expect_field_refused(qwen2, "layer_types", {"full_attention", "sliding_attention"});
  expect_field_refused(llama(), "model_type", "gemma4");
}

TEST(HuggingFaceConfig, RefusesSizesThatCannotBe) {
  for (const json& value : {json(0), json(-4), json(4.5), json("4"), json(1e30), json(std::uint64_t{1} << 40), json()})
    for (const char* field : {"hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"})
      expect_field_refused(llama(), field, value);
  expect_refused(
      [] {
        json o = llama();
        o["num_key_value_heads"] = 3;
        model_of(o);
      },
      {"multiple of the key"});
  expect_refused(
      [] {
        json o = llama();
        o["num_attention_heads"] = 6;
        model_of(o);
      },
      {"multiple of the attention heads"});
  expect_refused(
      [] {
        json o = gpt2();
        o["n_layer"] = 16384;
        o["n_head"] = 512;
        o["n_embd"] = 512;
        model_of(o);
      },
      {"layers times"});
  expect_field_refused(llama(), "rms_norm_eps", "small");
  expect_refused(
      [] {
        json o = llama();
        o["rms_norm_eps"] = 0;
        model_of(o);
      },
      {"epsilon"});
}

TEST(HuggingFaceConfig, RefusesWhatIsNoJsonObject) {
  for (const std::string text : {"", "[]", "{", "{\"model_type\": \"gpt2\"} x", "{\"a\": 1, \"a\": 2}", "\xff"})
    expect_refused([&] { families::parse_config(text, "config.json"); }, {"config.json"});
  expect_refused(
      [] { families::parse_config("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", "config.json"); },
      {"nested"});
  expect_refused(
      [] {
        families::parse_config(R"({"model_type": "llama", "rope_scaling": {"factor": 8, "factor": 2}})", "config.json");
      },
      {"config.json", "the key \"factor\" twice"});
}

TEST(HuggingFaceConfig, WrittenAndReadAgainIsTheSame) {
  json scaled = llama(), qwen2 = llama(), biased = llama();
  scaled["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 5e5},
                               {"factor", 32.0},          {"low_freq_factor", 1.5},
                               {"high_freq_factor", 4.5}, {"original_max_position_embeddings", 64}};
  scaled["head_dim"] = 24;
  qwen2.update({{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}});
  biased.update({{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", false}, {"hidden_act", "gelu"}});
  for (const json& object : {gpt2(), llama(), scaled, qwen2, biased, t5()}) {
    families::FolderConfig first = families::parse_config(object.dump(), "first");
    const families::FolderConfig again = families::parse_config(families::config_json(first, "float32"), "again");
    EXPECT_EQ(again.family, &families::family_of(first.model));
    // What a folder leaves open is written out.
    first.model.num_query_groups = again.model.num_query_groups;
    first.model.kv_channels = again.model.kv_channels;
    EXPECT_EQ(families::config_json(again, "float32"), families::config_json(first, "float32"));
    EXPECT_EQ(again.model.rope_scaling_factor, first.model.rope_scaling_factor);
    EXPECT_EQ(again.model.rotary_base, first.model.rotary_base);
    EXPECT_EQ(again.model.add_bias_linear, first.model.add_bias_linear);
    EXPECT_EQ(again.model.add_qkv_bias, first.model.add_qkv_bias);
    EXPECT_EQ(again.model.activation, first.model.activation);
    EXPECT_EQ(again.token_ids, first.token_ids);
    EXPECT_EQ(families::shape_of(again.model).query_rows(), families::shape_of(first.model).query_rows());
    EXPECT_EQ(families::shape_of(again.model).groups(), families::shape_of(first.model).groups());
  }
}

TEST(HuggingFaceConfig, ReadsT5) {
  const config::ModelConfig model = model_of(t5());
  EXPECT_EQ(model.architecture, "t5");
  EXPECT_EQ(model.activation, "gelu_tanh");  // what transformers makes of gated-gelu
  EXPECT_TRUE(model.gated_linear_unit && model.untie_embeddings_and_output_weights);
  EXPECT_EQ(model.relative_attention_num_buckets, 32);
  const plan::ModelShape shape = families::shape_of(model);
  EXPECT_EQ(shape.num_layers, 5);
  EXPECT_EQ(shape.encoder_layers, 2);
  EXPECT_EQ(shape.query_rows(), 96);
  json first = t5();
  for (const char* key : {"num_decoder_layers", "feed_forward_proj", "tie_word_embeddings"}) first.erase(key);
  EXPECT_EQ(model_of(first).activation, "relu");
  EXPECT_EQ(families::shape_of(model_of(first)).num_layers, 4);
  EXPECT_FALSE(model_of(first).untie_embeddings_and_output_weights);
  first["scale_decoder_outputs"] = false;  // which is how transformers 5 says that a head is not tied
  EXPECT_TRUE(model_of(first).untie_embeddings_and_output_weights);
  json multilingual = t5();  // whose head is never scaled, whatever is said of ties
  multilingual.update({{"model_type", "mt5"}, {"architectures", {"MT5ForConditionalGeneration"}}});
  multilingual.erase("feed_forward_proj");
  for (const bool tied : {false, true}) {
    multilingual["tie_word_embeddings"] = tied;
    EXPECT_TRUE(model_of(multilingual).untie_embeddings_and_output_weights);
    EXPECT_TRUE(model_of(multilingual).gated_linear_unit);
  }
  expect_field_refused(multilingual, "architectures", {"T5ForConditionalGeneration"});
  expect_field_refused(multilingual, "scale_decoder_outputs", true);
  for (const auto& [field, value] : std::map<std::string, json>{{"is_encoder_decoder", false},
                                                                {"scale_decoder_outputs", true},
                                                                {"feed_forward_proj", "gated-tanh"},
                                                                {"dense_act_fn", "gelu"},
                                                                {"is_gated_act", false},
                                                                {"relative_attention_num_buckets", 2},
                                                                {"relative_attention_max_distance", 16},
                                                                {"num_decoder_layers", 1 << 20},
                                                                {"architectures", {"T5EncoderModel"}}})
    expect_field_refused(t5(), field, value);
}

json bert(const char* architecture) {
  return {{"model_type", "bert"},
          {"architectures", {architecture}},
          {"num_hidden_layers", 2},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"intermediate_size", 128},
          {"vocab_size", 257},
          {"max_position_embeddings", 48},
          {"id2label", {{"0", "no"}, {"1", "yes"}}},
          {"label2id", {{"no", 0}, {"yes", 1}}}};
}

TEST(HuggingFaceConfig, ReadsTheHeadOfATask) {
  families::FolderConfig folder = families::parse_config(bert("BertForSequenceClassification").dump(), "config.json");
  EXPECT_EQ(folder.model.head, "classes");
  EXPECT_EQ(folder.model.num_classes, 2);
  EXPECT_EQ(folder.labels, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(families::shape_of(folder.model).head_rows(), 2);
  EXPECT_EQ(model_of(bert("BertForMultipleChoice")).head, "options");
  EXPECT_EQ(model_of(bert("BertForQuestionAnswering")).head, "span");
  EXPECT_EQ(model_of(bert("BertForPreTraining")).head, "tokens");
  for (const char* name : {"BertForSequenceClassification", "BertForMultipleChoice", "BertForQuestionAnswering"}) {
    const std::string text = families::config_json(families::parse_config(bert(name).dump(), "first"), "float32");
    EXPECT_EQ(json::parse(text)["architectures"], json({name}));
    EXPECT_EQ(families::config_json(families::parse_config(text, "again"), "float32"), text);
  }
  folder.labels.clear();
  EXPECT_EQ(json::parse(families::config_json(folder, "float32"))["id2label"],
            json({{"0", "LABEL_0"}, {"1", "LABEL_1"}}));
  json unnamed = bert("BertForSequenceClassification");
  unnamed.erase("id2label");
  unnamed["num_labels"] = 3;
  EXPECT_EQ(model_of(unnamed).num_classes, 3);
}

TEST(HuggingFaceConfig, ReadsTheClassesOfGpts) {
  for (auto [object, name] :
       {std::pair{gpt2(), "GPT2ForSequenceClassification"}, {llama(), "LlamaForSequenceClassification"}}) {
    object.update({{"architectures", {name}},
                   {"id2label", {{"0", "no"}, {"1", "maybe"}, {"2", "yes"}}},
                   {"eos_token_id", 5},
                   {"pad_token_id", 5}});
    const families::FolderConfig folder = families::parse_config(object.dump(), "config.json");
    EXPECT_EQ(folder.model.head, "classes") << name;
    EXPECT_EQ(folder.labels, (std::vector<std::string>{"no", "maybe", "yes"})) << name;
    EXPECT_EQ(families::shape_of(folder.model).head_rows(), 3) << name;
    EXPECT_EQ(&families::family_of(folder.model), folder.family) << name;
    const json written = json::parse(families::config_json(folder, "float32"));
    EXPECT_EQ(written["architectures"], json({name}));
    EXPECT_EQ(written["id2label"], object["id2label"]) << name;
    EXPECT_TRUE(written["pad_token_id"].is_null()) << "the end that is read would be taken for padding, " << name;
    for (const int pad : {0, 3}) {
      object.update({{"eos_token_id", {2, 0}}, {"pad_token_id", pad}});
      const json several =
          json::parse(families::config_json(families::parse_config(object.dump(), "config.json"), "float32"));
      EXPECT_EQ(several["pad_token_id"], pad == 0 ? json() : json(3)) << name << ", which ends with either";
    }
    config::ModelConfig options = folder.model;
    options.head = "options";
    expect_refused([&] { families::family_of(options); }, {"model.head options"});
  }
}

TEST(HuggingFaceConfig, AHeadThatIsNotComputedHereIsRefused) {
  const json classes = bert("BertForSequenceClassification");
  for (const auto& labels : {json({{"0", "score"}}), json({{"0", "no"}, {"2", "yes"}}), json({{"0", 1}, {"1", 2}}),
                             json({"no", "yes"}), json("no")})
    expect_field_refused(classes, "id2label", labels);
  expect_field_refused(classes, "problem_type", "multi_label_classification");
  expect_field_refused(bert("BertForQuestionAnswering"), "id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}});
  expect_field_refused(classes, "architectures", {"BertForTokenClassification"});
  expect_field_refused(classes, "hidden_act", "relu");
}

TEST(HuggingFaceConfig, AModelThatNoFolderCanHoldIsNotExported) {
  config::ModelConfig model = model_of(llama());
  model.rotary_interleaved = true;
  expect_refused([&] { families::family_of(model); }, {"rotary_interleaved true"});
  model = model_of(gpt2());
  model.normalization = "RMSNorm";
  expect_refused([&] { families::family_of(model); }, {"RMSNorm"});
  model = model_of(t5());
  model.activation = "gelu";
  expect_refused([&] { families::family_of(model); }, {"activation gelu"});
}

}  // namespace
}  // namespace megatron::interchange
