#include <nlohmann/json.hpp>
#include <tuple>

#include "megatron/families/hf_config.h"
#include "megatron/families/hf_family.h"
#include "megatron/plan/parameters/parameters.h"
#include "tests/interchange/support.h"

// config.json of single families: what is read of it, refused in it and written again.
namespace megatron::interchange {
namespace {

using nlohmann::json;

json sizes(const std::string& type, const std::string& model_class) {
  return {{"model_type", type},        {"architectures", {model_class + "ForCausalLM"}},
          {"hidden_size", 64},         {"intermediate_size", 96},
          {"num_attention_heads", 4},  {"num_hidden_layers", 4},
          {"vocab_size", 256},         {"max_position_embeddings", 128},
          {"initializer_range", 0.02}, {"attention_dropout", 0.0}};
}

json with(json object, const json& more) {
  object.update(more);
  return object;
}

json yarn() { return {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 64}}; }

json longrope() {
  return {{"original_max_position_embeddings", 32},
          {"rope_scaling",
           {{"type", "longrope"},
            {"short_factor", {1.0, 1.0, 1.1, 1.25, 1.5, 1.5, 2.0, 2.0}},
            {"long_factor", {1.0, 1.5, 2.0, 3.0, 4.5, 8.0, 12.0, 16.0}}}}};
}

json falcon() {
  json object = sizes("falcon", "Falcon");
  object.erase("intermediate_size");
  return object;
}

json roberta(const char* type = "roberta", const char* model_class = "RobertaForMaskedLM") {
  json object = with(sizes(type, ""), {{"architectures", {model_class}}, {"type_vocab_size", 1}, {"pad_token_id", 3}});
  object.erase("attention_dropout");
  return object;
}

json modernbert() {
  json object = with(sizes("modernbert", ""), {{"architectures", {"ModernBertForMaskedLM"}}, {"num_hidden_layers", 7}});
  return object;
}

json gemma2() { return with(sizes("gemma2", "Gemma2"), {{"num_key_value_heads", 2}, {"head_dim", 24}}); }

json gemma3() {
  return with(sizes("gemma3_text", "Gemma3"), {{"num_key_value_heads", 2}, {"head_dim", 24}, {"sliding_window", 16}});
}

json latent_fields() {
  return {{"kv_lora_rank", 32},       {"qk_nope_head_dim", 16},      {"qk_rope_head_dim", 8},
          {"v_head_dim", 24},         {"n_routed_experts", 8},       {"n_shared_experts", 2},
          {"num_experts_per_tok", 4}, {"moe_intermediate_size", 48}, {"first_k_dense_replace", 1},
          {"num_key_value_heads", 4}};
}

json deepseek2(const json& more = json::object()) {
  return with(with(sizes("deepseek_v2", "DeepseekV2"), with(latent_fields(), {{"q_lora_rank", nullptr}})), more);
}

json deepseek3(const json& more = json::object()) {
  return with(with(sizes("deepseek_v3", "DeepseekV3"),
                   with(latent_fields(), {{"q_lora_rank", 40}, {"n_group", 4}, {"topk_group", 2}})),
              more);
}

config::ModelConfig read(const json& object) { return families::parse_config(object.dump(), "config.json").model; }

void expect_refused_by_name(json object, const std::string& field, const json& value) {
  object[field] = value;
  expect_refused([&] { read(object); }, {"config.json", field});
}

TEST(HuggingFaceFamilies, AreWrittenAsTheyWereRead) {
  const json grouped = {{"num_key_value_heads", 2}, {"head_dim", 16}};
  const std::vector<json> folders = {
      with(sizes("gemma", "Gemma"), grouped),
      gemma2(),
      gemma3(),
      with(sizes("olmo2", "Olmo2"), grouped),
      with(with(sizes("olmo3", "Olmo3"), grouped), {{"sliding_window", 9}}),
      with(with(sizes("olmo3", "Olmo3"), grouped), {{"rope_scaling", yarn()}}),
      with(with(sizes("mixtral", "Mixtral"), grouped), {{"num_local_experts", 4},
                                                        {"num_experts_per_tok", 2},
                                                        {"output_router_logits", true},
                                                        {"router_aux_loss_coef", 0.5}}),
      with(sizes("gpt_oss", "GptOss"), {{"num_local_experts", 4}, {"num_experts_per_tok", 2}}),
      with(with(sizes("gpt_oss", "GptOss"), grouped), {{"num_local_experts", 4},
                                                       {"num_experts_per_tok", 2},
                                                       {"attention_bias", false},
                                                       {"rope_scaling", with(yarn(), {{"truncate", false}})}}),
      with(with(sizes("smollm3", "SmolLM3"), grouped), {{"no_rope_layers", {1, 0, 1, 0}}}),
      with(with(sizes("smollm3", "SmolLM3"), grouped), {{"num_hidden_layers", 3}}),  // fewer than the interval
      with(with(sizes("phi3", "Phi3"), grouped), {{"partial_rotary_factor", 0.75}}),
      with(with(sizes("phi3", "Phi3"), grouped), longrope()),
      with(with(sizes("phi3", "Phi3"), grouped),
           {{"original_max_position_embeddings", 32},
            {"rope_scaling", with(longrope()["rope_scaling"], {{"factor", 2.0}, {"attention_factor", 1.25}})}}),
      modernbert(),
      with(modernbert(),
           {{"norm_bias", true}, {"classifier_bias", true}, {"attention_bias", true}, {"mlp_bias", true}}),
      with(modernbert(), {{"global_attn_every_n_layers", 1}, {"global_rope_theta", 5e4}}),
      with(modernbert(), {{"global_attn_every_n_layers", 9}, {"local_attention", 12}, {"local_rope_theta", 3e3}}),
      roberta(),
      roberta("xlm-roberta", "XLMRobertaModel"),
      with(roberta("roberta", "RobertaForSequenceClassification"),
           {{"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}}}),
      sizes("gpt_neox", "GPTNeoX"),
      falcon(),
      with(falcon(), {{"new_decoder_architecture", true}, {"num_kv_heads", 2}, {"bias", true}}),
      with(falcon(), {{"new_decoder_architecture", true}, {"num_kv_heads", 2}, {"num_ln_in_parallel_attn", 1}}),
      with(falcon(), {{"multi_query", false}, {"ffn_hidden_size", 96}, {"tie_word_embeddings", false}}),
      with(with(sizes("starcoder2", "Starcoder2"), grouped), {{"use_bias", false}}),
      with(with(sizes("llama", "Llama"), grouped),
           {{"mlp_bias", true}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
      with(with(sizes("llama", "Llama"), grouped),
           {{"attention_bias", true},
            {"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 20.0}, {"rope_theta", 5.0}}}}),
      deepseek2(),
      deepseek2({{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}, {"q_lora_rank", 24}}),
      deepseek2({{"rope_scaling", with(yarn(), {{"mscale", 0.7}, {"mscale_all_dim", 0.8}})}}),
      deepseek3(),
      deepseek3({{"rope_interleave", false}, {"n_group", 1}, {"topk_group", 1}, {"first_k_dense_replace", 0}}),
  };
  for (const json& folder : folders) {
    SCOPED_TRACE(folder["model_type"].get<std::string>());
    const families::FolderConfig first = families::parse_config(folder.dump(), "c");
    EXPECT_EQ(families::find_family(first.model), first.family);
    const std::string written = families::config_json(first, "float32");
    const families::FolderConfig second = families::parse_config(written, "d");
    EXPECT_EQ(second.family, first.family);
    EXPECT_EQ(families::config_json(second, "float32"), written);
    EXPECT_TRUE(second.model == static_cast<const config::AttentionVariant&>(first.model));
    EXPECT_TRUE(second.model == static_cast<const config::LayerVariant&>(first.model));
    EXPECT_TRUE(second.model == static_cast<const config::LatentVariant&>(first.model));
    EXPECT_TRUE(second.model == static_cast<const config::ExpertsVariant&>(first.model));
    EXPECT_EQ(second.model.rotary_interleaved, first.model.rotary_interleaved);
    EXPECT_EQ(second.model.rotary_base, first.model.rotary_base);
    EXPECT_EQ(second.model.moe_aux_loss_coeff, first.model.moe_aux_loss_coeff);
    EXPECT_EQ(second.model.rotary_percent, first.model.rotary_percent);
    EXPECT_EQ(second.model.rope_scaling_type, first.model.rope_scaling_type);
    EXPECT_EQ(second.model.longrope_short_factor, first.model.longrope_short_factor);
    EXPECT_EQ(second.model.longrope_long_factor, first.model.longrope_long_factor);
    EXPECT_EQ(second.model.longrope_attention_factor, first.model.longrope_attention_factor);
    EXPECT_EQ(second.model.rope_scaling_factor, first.model.rope_scaling_factor);
    EXPECT_EQ(second.model.activation, first.model.activation);
    EXPECT_EQ(second.model.yarn_correction_range_round_to_int, first.model.yarn_correction_range_round_to_int);
    EXPECT_EQ(second.model.layernorm_epsilon, first.model.layernorm_epsilon);
  }
}

TEST(HuggingFaceFamilies, HaveTransformersDefaults) {
  const json first = with(sizes("gemma", "Gemma"), {{"num_key_value_heads", 2}, {"head_dim", 24}});
  EXPECT_EQ(read(first).activation, "gelu_tanh");
  EXPECT_EQ(read(with(first, {{"hidden_act", "gelu"}, {"hidden_activation", nullptr}})).activation, "gelu");
  EXPECT_EQ(read(with(first, {{"hidden_act", "gelu"}, {"hidden_activation", "silu"}})).activation, "gelu");
  EXPECT_EQ(read(with(gemma2(), {{"hidden_act", "gelu"}})).activation, "gelu_tanh");
  EXPECT_EQ(read(with(gemma2(), {{"hidden_act", "silu"}, {"hidden_activation", "gelu"}})).activation, "gelu");
  const auto second = read(gemma2());
  EXPECT_EQ(second.query_pre_attn_scalar, 256);
  EXPECT_EQ(second.attn_logit_softcapping, 50);
  EXPECT_EQ(second.final_logit_softcapping, 30);
  EXPECT_EQ(second.sliding_window, 4096);
  EXPECT_EQ(second.window_attn_skip_freq, 2);
  EXPECT_EQ(second.activation, "gelu_tanh");
  EXPECT_FALSE(second.untie_embeddings_and_output_weights);
  EXPECT_EQ(read(with(gemma2(), {{"attn_logit_softcapping", nullptr}})).attn_logit_softcapping, 0);
  const auto third = read(with(gemma3(), {{"num_hidden_layers", 12}}));
  EXPECT_EQ(third.rotary_base, 1e6);
  EXPECT_EQ(third.rotary_base_local, 1e4);
  EXPECT_EQ(third.window_attn_skip_freq, 6);
  EXPECT_EQ(third.final_logit_softcapping, 0);
  const auto neox = read(sizes("gpt_neox", "GPTNeoX"));
  EXPECT_EQ(neox.rotary_percent, 0.25);
  EXPECT_TRUE(neox.parallel_residual);
  EXPECT_TRUE(neox.untie_embeddings_and_output_weights);
  EXPECT_EQ(read(sizes("smollm3", "SmolLM3")).no_rope_freq, 4);
  const auto modern = read(modernbert());
  EXPECT_EQ(modern.sliding_window, 65);
  EXPECT_EQ(modern.window_attn_skip_freq, 3);
  EXPECT_EQ(modern.rotary_base, 160000);
  EXPECT_EQ(modern.rotary_base_local, 10000);
  EXPECT_EQ(modern.layernorm_epsilon, 1e-5);
  EXPECT_TRUE(modern.window_attn_skip_first && modern.embedding_layernorm && modern.gated_linear_unit);
  EXPECT_FALSE(modern.norm_bias || modern.masked_lm_bias || modern.add_bias_linear || modern.bert_binary_head);
  EXPECT_EQ(read(roberta()).position_offset, 4);
  EXPECT_EQ(read(roberta()).max_position_embeddings, 124);
  EXPECT_FALSE(read(roberta()).bert_binary_head);
  json unpadded = roberta();
  unpadded.erase("pad_token_id");
  EXPECT_EQ(read(unpadded).position_offset, 2);
  const auto one_key = read(falcon());
  EXPECT_EQ(one_key.num_query_groups, 1);
  EXPECT_EQ(one_key.ffn_hidden_size, 4 * 64);
  EXPECT_TRUE(one_key.parallel_residual && one_key.parallel_shared_norm && !one_key.add_bias_linear);
  EXPECT_FALSE(one_key.untie_embeddings_and_output_weights);
  const auto groups = read(with(falcon(), {{"new_decoder_architecture", true}, {"num_kv_heads", 2}}));
  EXPECT_EQ(groups.num_query_groups, 2);
  EXPECT_TRUE(groups.parallel_residual && !groups.parallel_shared_norm);
  const json experts = {{"num_local_experts", 4}, {"num_experts_per_tok", 2}};
  const auto oss = read(with(sizes("gpt_oss", "GptOss"), experts));
  EXPECT_EQ(oss.sliding_window, 128);
  EXPECT_EQ(oss.window_attn_skip_freq, 2);
  EXPECT_EQ(oss.kv_channels, 64);
  EXPECT_EQ(oss.rotary_base, 150000);
  EXPECT_EQ(oss.rope_scaling_factor, 32);
  EXPECT_EQ(oss.rope_original_positions, 4096);
  EXPECT_FALSE(oss.yarn_correction_range_round_to_int);
  EXPECT_EQ(oss.linear_bias_in, "all");
  EXPECT_TRUE(oss.add_bias_linear && oss.untie_embeddings_and_output_weights);
}

TEST(HuggingFaceFamilies, OfMixtralHaveTransformersDefaultsToo) {
  const auto mixtral = read(with(sizes("mixtral", "Mixtral"), {{"num_local_experts", 4}, {"num_experts_per_tok", 2}}));
  EXPECT_EQ(mixtral.rotary_base, 1e6);
  EXPECT_EQ(mixtral.layernorm_epsilon, 1e-5);
  const auto qwen = read(with(sizes("qwen3_moe", "Qwen3Moe"),
                              {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}}));
  EXPECT_EQ(qwen.rotary_base, 1e4);
  EXPECT_EQ(qwen.layernorm_epsilon, 1e-6);
}

// transformers 5: rope_parameters = rope_scaling or rope_parameters, and rope_theta of the fields around them.
TEST(HuggingFaceFamilies, TakeARopeScalingInPlaceOfRopeParameters) {
  const json parameters = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const json five = with(sizes("qwen3", "Qwen3"), {{"rope_parameters", parameters}});
  for (const json& nothing : {json(), json::object()}) {
    EXPECT_EQ(read(with(five, {{"rope_scaling", nothing}})).rope_scaling_factor, 1);
    EXPECT_EQ(read(with(five, {{"rope_scaling", nothing}})).rotary_base, 5e5);
  }
  const auto stretched = read(with(five, {{"rope_scaling", yarn()}}));
  EXPECT_EQ(stretched.rope_scaling_type, "yarn");
  EXPECT_EQ(stretched.rope_scaling_factor, 2);
  EXPECT_EQ(stretched.rotary_base, 1e4) << "of rope_parameters nothing is read";
  EXPECT_EQ(read(with(five, {{"rope_scaling", yarn()}, {"rope_theta", 3e5}})).rotary_base, 3e5);
  EXPECT_EQ(read(with(five, {{"rope_scaling", with(yarn(), {{"rope_theta", 7e5}})}})).rotary_base, 7e5);
  const auto neox = read(with(sizes("gpt_neox", "GPTNeoX"), {{"rope_parameters", parameters},
                                                             {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}},
                                                             {"rotary_emb_base", 2e4},
                                                             {"rope_theta", 3e5},
                                                             {"rotary_pct", 0.5}}));
  EXPECT_EQ(neox.rope_scaling_factor, 4);
  EXPECT_EQ(neox.rotary_base, 2e4);
  EXPECT_EQ(neox.rotary_percent, 0.5);
  // What is exported has both.
  families::FolderConfig folder =
      families::parse_config(with(five, {{"rope_scaling", yarn()}, {"rope_theta", 3e5}}).dump(), "c");
  const auto again = families::parse_config(families::config_json(folder, "float32"), "d").model;
  EXPECT_EQ(again.rope_scaling_factor, 2);
  EXPECT_EQ(again.rotary_base, 3e5);
}

TEST(HuggingFaceFamilies, OfGemma3HaveSingleFieldsReplacedByARopeScaling) {
  const json five = with(gemma3(), {{"rope_parameters",
                                     {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 3e5}}},
                                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7e3}}}}}});
  const auto model = read(with(five, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}));
  EXPECT_EQ(model.rope_scaling_type, "linear");
  EXPECT_EQ(model.rope_scaling_factor, 8);
  EXPECT_EQ(model.rotary_base, 3e5);
  EXPECT_EQ(model.rotary_base_local, 7e3);
  expect_refused_by_name(gemma3(), "rope_parameters", {{"rope_type", "linear"}, {"factor", 8.0}});
  expect_refused_by_name(gemma3(), "rope_scaling", {{"type", "linear"}, {"factor", 8.0}});
}

TEST(HuggingFaceFamilies, RefuseAYarnThatStretchesNothingAndScalesSomething) {
  json folder = with(sizes("llama", "Llama"), {{"rope_scaling", with(yarn(), {{"factor", 1.0}})}});
  EXPECT_EQ(read(folder).rope_scaling_factor, 1);
  folder["rope_scaling"]["attention_factor"] = 1.0;
  EXPECT_EQ(read(folder).rope_scaling_factor, 1);
  for (const double factor : {1.5, 0.0}) {
    folder["rope_scaling"]["attention_factor"] = factor;
    expect_refused([&] { read(folder); }, {"rope_scaling.attention_factor"});
  }
}

TEST(HuggingFaceFamilies, WithWindowsSayHowLongTheyAre) {
  const json oss = with(sizes("gpt_oss", "GptOss"), {{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  const json full = {"full_attention", "full_attention", "full_attention", "full_attention"};
  for (const json& folder : {oss, gemma2(), gemma3(), sizes("olmo3", "Olmo3")}) {
    expect_refused_by_name(folder, "sliding_window", nullptr);
    json without = with(folder, {{"sliding_window", nullptr}, {"layer_types", full}});
    EXPECT_EQ(read(without).sliding_window, 0) << folder["model_type"];
    const json written = json::parse(families::config_json(families::parse_config(without.dump(), "c"), "float32"));
    if (written["model_type"] != "olmo2") {
      EXPECT_TRUE(written["sliding_window"].is_number()) << written["model_type"];
      EXPECT_EQ(written["layer_types"], full);
    }
    EXPECT_EQ(read(written).sliding_window, 0);
  }
}

TEST(HuggingFaceFamilies, RefuseWhatNoGptOssHas) {
  const json oss =
      with(sizes("gpt_oss", "GptOss"),
           {{"num_local_experts", 4},
            {"num_experts_per_tok", 2},
            {"swiglu_limit", 7},
            {"experts_per_token", 2},
            {"initial_context_length", 4096},
            {"quantization_config", {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}}}});
  EXPECT_EQ(read(oss).activation_func_clamp_value, 7);
  expect_refused_by_name(oss, "swiglu_limit", 6.5);
  expect_refused_by_name(oss, "hidden_act", "gelu");
  expect_refused_by_name(oss, "experts_per_token", 3);
  expect_refused_by_name(oss, "output_router_logits", true);
  expect_refused_by_name(oss, "expert_capacity", 2);
  expect_refused_by_name(oss, "rope_scaling", nullptr);  // none in transformers 4, YaRN in 5
  json other = oss;
  other["quantization_config"]["quant_method"] = "gptq";
  expect_refused([&] { read(other); }, {"quantization_config.quant_method", "mxfp4"});
  other = oss;
  other["quantization_config"]["bits"] = 3;
  expect_refused([&] { read(other); }, {"quantization_config.bits"});
}

TEST(HuggingFaceFamilies, ReadBothFormsOfGemma3sPositions) {
  const json scaled = {{"rope_type", "linear"}, {"factor", 8.0}};
  const json four = with(gemma3(), {{"rope_theta", 3e5}, {"rope_local_base_freq", 7e3}, {"rope_scaling", scaled}});
  const json five = with(gemma3(), {{"rope_parameters",
                                     {{"full_attention", with(scaled, {{"rope_theta", 3e5}})},
                                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7e3}}}}}});
  for (const json& object : {four, five}) {
    const auto model = read(object);
    EXPECT_EQ(model.rotary_base, 3e5);
    EXPECT_EQ(model.rotary_base_local, 7e3);
    EXPECT_EQ(model.rope_scaling_type, "linear");
    EXPECT_EQ(model.rope_scaling_factor, 8);
  }
}

TEST(HuggingFaceFamilies, StretchNoPositionsOfAnOlmo3sLayersWithAWindow) {
  const auto model = read(with(sizes("olmo3", "Olmo3"), {{"rope_theta", 3e5}, {"rope_scaling", yarn()}}));
  EXPECT_EQ(model.rope_scaling_factor, 2);
  EXPECT_EQ(model.rotary_base_local, 3e5);  // layers with a base of their own are not stretched
  EXPECT_EQ(read(sizes("olmo3", "Olmo3")).rotary_base_local, 0);
}

TEST(HuggingFaceFamilies, HoldNoModelWithAnOptionThatTheyCannotSay) {
  const json grouped = {{"num_key_value_heads", 2}, {"head_dim", 16}};
  for (const json& folder : {with(sizes("qwen3", "Qwen3"), grouped), with(sizes("mistral", "Mistral"), grouped)}) {
    auto model = read(folder);
    ASSERT_NE(families::find_family(model), nullptr);
    model.no_rope_freq = 2;
    EXPECT_EQ(families::find_family(model), nullptr) << folder["model_type"];
  }
  auto third = read(with(gemma3(), {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}));
  ASSERT_NE(families::find_family(third), nullptr);
  third.rotary_base_local = 0;  // then its windows are stretched too
  EXPECT_EQ(families::find_family(third), nullptr);
  auto capped = read(gemma3());
  ASSERT_NE(families::find_family(capped), nullptr);
  capped.attn_logit_softcapping = 30;
  EXPECT_EQ(families::find_family(capped), nullptr);
}

TEST(HuggingFaceFamilies, RefuseWhatIsNotComputedByName) {
  expect_refused_by_name(gemma2(), "use_bidirectional_attention", true);
  expect_refused_by_name(gemma2(), "attention_bias", true);
  expect_refused_by_name(gemma2(), "query_pre_attn_scalar", 0);
  expect_refused_by_name(gemma2(), "attn_logit_softcapping", -1);
  expect_refused_by_name(gemma3(), "attn_logit_softcapping", 30.0);
  expect_refused_by_name(gemma2(), "no_rope_layers", {1, 1, 1, 0});
  expect_refused_by_name(gemma3(), "layer_types", {"full_attention"});  // of one layer
  expect_refused_by_name(gemma3(), "layer_types", "sliding_attention");
  expect_refused_by_name(gemma3(), "layer_types",
                         {"sliding_attention", "full_attention", "full_attention", "sliding_attention"});
  expect_refused_by_name(gemma3(), "layer_types", {1, 2, 3, 4});
  expect_refused_by_name(gemma3(), "rope_parameters", {{"full_attention", 3}});
  expect_refused_by_name(gemma3(), "rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}}}});
  expect_refused_by_name(sizes("phi3", "Phi3"), "rope_scaling",
                         {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}});
  expect_refused_by_name(sizes("phi3", "Phi3"), "partial_rotary_factor", 1.5);
  expect_refused_by_name(sizes("phi3", "Phi3"), "rope_scaling", yarn());
  for (const auto& [field, value] :
       std::initializer_list<std::pair<const char*, json>>{{"short_factor", {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0}},
                                                           {"long_factor", "none"},
                                                           {"factor", 1.0},
                                                           {"attention_factor", -1.0},
                                                           {"original_max_position_embeddings", 16},
                                                           {"mscale", 2.0}}) {
    json folder = with(with(sizes("phi3", "Phi3"), {{"num_key_value_heads", 2}, {"head_dim", 16}}), longrope());
    folder["rope_scaling"][field] = value;
    expect_refused([&] { read(folder); }, {"config.json", std::string("rope_scaling.") + field});
  }
  expect_refused_by_name(modernbert(), "mlp_bias", true);
  expect_refused_by_name(modernbert(), "decoder_bias", false);
  expect_refused_by_name(modernbert(), "hidden_activation", "silu");
  expect_refused_by_name(modernbert(), "local_attention", 1);
  expect_refused_by_name(modernbert(), "mlp_dropout", 0.1);
  expect_refused_by_name(modernbert(), "layer_types", {"full_attention"});
  expect_refused_by_name(modernbert(), "architectures", {"ModernBertForSequenceClassification"});
  expect_refused_by_name(modernbert(), "rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}}}});
  expect_refused_by_name(modernbert(), "rope_parameters", {{"rope_type", "default"}});
  json uneven = modernbert();
  for (int layer = 0; layer < 7; ++layer)
    uneven["layer_types"].push_back(layer == 0 || layer == 2 || layer == 5 ? "full_attention" : "sliding_attention");
  expect_refused([&] { read(uneven); }, {"layer_types"});
  expect_refused_by_name(roberta(), "type_vocab_size", 2);
  expect_refused_by_name(roberta(), "pad_token_id", -1);
  expect_refused_by_name(roberta(), "pad_token_id", 1e30);
  expect_refused_by_name(roberta(), "max_position_embeddings", 4);
  expect_refused_by_name(roberta(), "position_embedding_type", "relative_key");
  expect_refused_by_name(roberta(), "hidden_act", "relu");
  expect_refused_by_name(roberta(), "architectures", {"RobertaForCausalLM"});
  expect_refused_by_name(falcon(), "alibi", true);
  expect_refused_by_name(falcon(), "parallel_attn", false);
  expect_refused_by_name(falcon(), "num_ln_in_parallel_attn", 2);
  expect_refused_by_name(with(falcon(), {{"new_decoder_architecture", true}}), "num_ln_in_parallel_attn", 3);
  expect_refused_by_name(falcon(), "num_key_value_heads", 2);
  expect_refused_by_name(sizes("smollm3", "SmolLM3"), "no_rope_layers", {1, 0, 0, 1});
  expect_refused_by_name(sizes("smollm3", "SmolLM3"), "use_sliding_window", true);
  expect_refused_by_name(sizes("starcoder2", "Starcoder2"), "mlp_type", "gated");
  expect_refused_by_name(sizes("gpt_neox", "GPTNeoX"), "num_key_value_heads", 2);
  expect_refused_by_name(sizes("olmo2", "Olmo2"), "sliding_window", 9);
  const json mixtral = with(sizes("mixtral", "Mixtral"), {{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  expect_refused_by_name(mixtral, "num_local_experts", 5000);
  expect_refused_by_name(mixtral, "num_experts_per_tok", 5);
  expect_refused_by_name(mixtral, "router_aux_loss_coef", -5);
  expect_refused_by_name(mixtral, "router_aux_loss_coef", 1e308);
  expect_refused_by_name(sizes("llama", "Llama"), "rope_scaling",
                         {{"rope_type", "yarn"}, {"factor", 2.0}, {"mscale", 0.7}});
  expect_refused_by_name(sizes("llama", "Llama"), "rope_scaling",
                         {{"rope_type", "yarn"}, {"factor", 2.0}, {"mscale_all_dim", 1.0}});
}

TEST(HuggingFaceFamilies, OfDeepSeekHaveTransformersDefaults) {
  const config::ModelConfig third =
      read(with(sizes("deepseek_v3", "DeepseekV3"), {{"num_hidden_layers", 5}, {"num_attention_heads", 3}}));
  EXPECT_EQ(std::tuple(third.q_lora_rank, third.kv_lora_rank, third.qk_head_dim, third.qk_pos_emb_head_dim,
                       third.v_head_dim, third.rotary_interleaved),
            std::tuple(1536, 512, 128, 64, 128, true));
  EXPECT_EQ(std::tuple(third.num_experts, third.moe_router_topk, third.moe_router_num_groups,
                       third.moe_router_group_topk, third.moe_router_group_best, third.first_k_dense_replace),
            std::tuple(256, 8, 8, 4, 2, 3));
  EXPECT_EQ(std::tuple(third.moe_shared_expert_intermediate_size, third.moe_router_topk_scaling_factor,
                       third.moe_router_score_function, third.moe_router_enable_expert_bias),
            std::tuple(2048, 2.5, "sigmoid", true));
  const config::ModelConfig second = read(with(sizes("deepseek_v2", "DeepseekV2"), {{"num_experts_per_tok", 6}}));
  EXPECT_EQ(std::tuple(second.q_lora_rank, second.num_experts, second.moe_shared_expert_intermediate_size,
                       second.first_k_dense_replace, second.moe_router_num_groups, second.moe_router_pre_softmax),
            std::tuple(1536, 64, 2814, 0, 0, true));
  EXPECT_EQ(read(deepseek2()).q_lora_rank, 0);
  const config::ModelConfig limited =
      read(deepseek2({{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}}));
  EXPECT_EQ(std::tuple(limited.moe_router_num_groups, limited.moe_router_group_topk, limited.moe_router_group_best),
            std::tuple(4, 2, 1));
  const config::ModelConfig stretched = read(deepseek3({{"rope_scaling", with(yarn(), {{"mscale", 1.0}})}}));
  EXPECT_EQ(std::tuple(stretched.mscale, stretched.mscale_all_dim), std::tuple(1, 0));
}

TEST(HuggingFaceFamilies, OfDeepSeekAreRefusedByNameWhereTheyComputeSomethingElse) {
  const json second = deepseek2(), third = deepseek3();
  EXPECT_NO_THROW(read(with(third, {{"num_nextn_predict_layers", 1}, {"ep_size", 1}, {"seq_aux", true}})));
  for (const json& folder : {second, third}) {
    expect_refused_by_name(folder, "attention_bias", true);
    expect_refused_by_name(folder, "num_key_value_heads", 2);
    expect_refused_by_name(folder, "head_dim", 16);
    expect_refused_by_name(folder, "rms_norm_eps", 1e-5);
    expect_refused_by_name(folder, "moe_layer_freq", 2);
    expect_refused_by_name(folder, "first_k_dense_replace", 4);
    expect_refused_by_name(folder, "n_shared_experts", 0);
    expect_refused_by_name(folder, "quantization_config", {{"quant_method", "fp8"}});
    expect_refused_by_name(folder, "rope_scaling", with(yarn(), {{"mscale", 0.7}}));
    expect_refused_by_name(folder, "rope_scaling", with(yarn(), {{"mscale_all_dim", 0.7}}));
    expect_refused_by_name(folder, "index_topk", 4);
  }
  expect_refused_by_name(second, "norm_topk_prob", true);
  expect_refused_by_name(second, "scoring_func", "sigmoid");
  expect_refused_by_name(second, "topk_method", "noaux_tc");
  expect_refused_by_name(second, "mlp_bias", true);
  expect_refused_by_name(third, "norm_topk_prob", false);
  expect_refused_by_name(third, "scoring_func", "softmax");
  expect_refused_by_name(third, "topk_method", "greedy");
  expect_refused_by_name(third, "num_experts_per_tok", 1);
  expect_refused_by_name(third, "n_group", 3);
  expect_refused_by_name(third, "n_group", 8);
  expect_refused_by_name(third, "topk_group", 5);
}

TEST(HuggingFaceFamilies, OfDeepSeekNameAllParametersOnce) {
  for (const json& folder : {deepseek2(), deepseek3()}) {
    const plan::ModelShape shape = families::shape_of(read(folder));
    const families::Mapping table =
        families::hf_family("deepseek").table(shape, [](const std::string&) { return true; });
    const auto specs = plan::model_parameters(shape, 1, 0);
    EXPECT_EQ(table.size(), specs.size());
    for (const plan::ParameterSpec& spec : specs) {
      ASSERT_TRUE(table.contains(spec.name)) << spec.name;
      EXPECT_EQ(table.at(spec.name).shape, spec.shape) << spec.name;
    }
  }
  const families::FolderConfig config = families::parse_config(deepseek3().dump(), "c");
  const auto unread = [&](const char* name) { return config.family->needs_no_reading(config, name); };
  EXPECT_TRUE(unread("model.layers.4.self_attn.q_a_proj.weight")) << "of a layer that predicts further tokens";
  EXPECT_FALSE(unread("model.layers.3.self_attn.q_a_proj.weight"));
  EXPECT_FALSE(unread("model.layers.x"));
}

}  // namespace
}  // namespace megatron::interchange
