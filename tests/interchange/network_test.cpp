#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/config/run_config.h"
#include "megatron/config/unused_options.h"
#include "megatron/config/value.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/weights.h"
#include "megatron/plan/parameters/parameters.h"
#include "tests/interchange/support.h"

// What tells one network from another: every option that says what weights mean, or the shapes of parameters.
namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;
using config::ModelConfig;

ModelConfig gpt2() {
  ModelConfig model;
  model.vocab_size = 100;
  model.max_position_embeddings = 64;
  model.ffn_hidden_size = 128;
  model.hidden_size = 64;
  return model;
}

ModelConfig llama() {
  ModelConfig model = gpt2();
  model.normalization = "RMSNorm";
  model.activation = "silu";
  model.gated_linear_unit = model.untie_embeddings_and_output_weights = true;
  model.add_bias_linear = false;
  model.position_embedding_type = "rope";
  model.rope_scaling_factor = 8;
  model.num_query_groups = 2;
  return model;
}

/// With options that have no effect without others.
ModelConfig stretched(ModelConfig model) {
  model.qk_layernorm = true;
  model.sliding_window = 8;
  model.rope_scaling_type = "yarn";
  return model;
}

ModelConfig with_latents(ModelConfig model) {
  model.multi_latent_attention = model.qk_layernorm = model.rotary_interleaved = true;
  model.num_query_groups = 0;
  model.rope_scaling_type = "yarn";
  return model;
}

/// Branches side by side, some layers without a window, and a factor of each wavelength.
ModelConfig with_factors(ModelConfig model) {
  model.parallel_residual = true;
  model.sliding_window = 8;
  model.window_attn_skip_freq = 2;
  model.rope_scaling_type = "longrope";
  model.longrope_short_factor = model.longrope_long_factor = {1, 1, 2, 2, 3, 3, 4, 4};
  return model;
}

ModelConfig bert() {
  ModelConfig model = gpt2();
  model.architecture = "bert";
  model.apply_residual_connection_post_layernorm = true;
  return model;
}

ModelConfig t5() {
  ModelConfig model = llama();
  model.architecture = "t5";
  model.position_embedding_type = "relative";
  model.rope_scaling_factor = 1;
  model.num_query_groups = 0;
  return model;
}

ModelConfig classes(ModelConfig model) {
  model.head = "classes";
  model.num_classes = 3;
  return model;
}

ModelConfig scaled_with_width(ModelConfig model) {
  model.use_mup = true;
  model.mup_base_hidden_size = 8;
  return model;
}

/// Another value that the option can have.
void perturb(const config::Field& option) {
  std::visit(
      [&](auto* value) {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>)
          *value = !*value;
        else if constexpr (std::is_same_v<T, std::string>)
          *value = option.meaning.choices.at(option.meaning.choices[0] == *value ? 1 : 0);
        else if constexpr (std::is_same_v<T, std::vector<double>>)
          value->push_back(2);
        else if constexpr (std::is_arithmetic_v<T>)
          *value = *value == 0 ? T{2} : T{2} * *value;
        else
          FAIL() << option.path << " is a list: perturb it here too";
      },
      option.value);
}

std::map<std::string, std::vector<std::int64_t>> parameters_of(const ModelConfig& model) {
  std::map<std::string, std::vector<std::int64_t>> parameters;
  for (const plan::ParameterSpec& spec : plan::model_parameters(families::shape_of(model), 1, 0))
    parameters[spec.name] = spec.shape;
  return parameters;
}

ModelConfig of_experts(ModelConfig model) {
  model.add_bias_linear = false;
  model.num_experts = 4;
  model.moe_shared_expert_intermediate_size = 16;
  return model;
}

ModelConfig in_groups(ModelConfig model) {
  model.moe_router_num_groups = 2;
  model.moe_router_group_topk = 1;
  return model;
}

TEST(Network, EveryOptionThatWeightsDependOnIsToldByItsNameOrByShapes) {
  std::set<std::string> seen, all;
  for (const ModelConfig& model :
       {gpt2(), llama(), bert(), t5(), classes(llama()), classes(bert()), scaled_with_width(gpt2()), stretched(llama()),
        of_experts(llama()), in_groups(of_experts(llama())), with_latents(llama()), with_factors(llama())}) {
    EXPECT_TRUE(differences(model, model).empty());
    config::RunConfig base, other;
    base.model = model;
    const config::Fields fields = config::fields_of(other);
    const auto parameters = parameters_of(model);
    for (const config::Field& option : fields.fields) {
      other = base;
      if (option.meaning.affects != config::Affects::Weights) continue;
      if (option.path.starts_with("lora.")) continue;  // adapters lie beside the weights of a network
      all.insert(option.path);
      if (!config::is_read(option, fields)) continue;
      perturb(option);
      const auto found = differences(base.model, other.model);
      const bool named = std::ranges::any_of(found, [&](const auto& each) { return each.option == option.path; });
      const bool by_shapes = parameters != parameters_of(other.model);
      if (named || by_shapes) seen.insert(option.path);
      // A table of positions that is not there has no size.
      const bool without = option.meaning.sizes_alone && model.position_embedding_type != "learned_absolute";
      EXPECT_TRUE(named || by_shapes || without) << option.path << " in a model with " << model.position_embedding_type;
    }
  }
  EXPECT_EQ(seen, all) << "one of the models above must read each";
}

TEST(Network, SizesThatAreSpelledOutAreNoDifference) {
  for (ModelConfig model : {gpt2(), t5()}) {
    const ModelConfig short_form = model;
    model.num_query_groups = model.num_attention_heads;
    model.kv_channels = model.hidden_size / model.num_attention_heads;
    if (model.architecture == "t5") model.decoder_num_layers = model.num_layers;
    EXPECT_TRUE(differences(short_form, model).empty());
    EXPECT_TRUE(differences(model, short_form).empty());
  }
}

TEST(Network, HeadsThatTogetherLeaveShapesAsTheyAreAreNamed) {
  const ModelConfig model = llama();
  ModelConfig other = model;
  other.num_attention_heads *= 2;
  other.num_query_groups *= 2;
  ASSERT_EQ(parameters_of(model), parameters_of(other));
  std::vector<std::string> options;
  for (const NetworkDifference& each : differences(model, other)) options.push_back(each.option);
  EXPECT_EQ(options,
            (std::vector<std::string>{"model.num_attention_heads", "model.num_query_groups", "model.kv_channels"}));
  other.head = "options";  // which is seen in what follows the layers, and may be another
  EXPECT_EQ(differences(model, other).size(), 3u);
}

TEST(Network, AnotherKindOfModelIsAllThatIsSaid) {
  const auto found = differences(gpt2(), t5());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].option + " " + found[0].ours + " " + found[0].theirs, "model.architecture gpt t5");
}

TEST(Network, AWindowThatTheRecipeDoesNotHaveIsRefused) {
  const fs::path llama = golden_model("tiny_llama");
  if (llama.empty()) GTEST_SKIP() << "tiny_llama is not there";
  const TemporaryFolder folder;
  fs::copy_file(llama / "model.safetensors", folder.path() / "model.safetensors");
  auto config = nlohmann::json::parse(read_file(llama / "config.json"));
  config.update({{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}}, {"sliding_window", 5}});
  write_file(folder.path() / "config.json", config.dump());
  ModelConfig model = model_config_of(folder.path());
  EXPECT_EQ(refusal([&] { check_same_network(model, folder.path()); }), "");
  model.sliding_window = 0;
  expect_refused([&] { check_same_network(model, folder.path()); },
                 {"model.sliding_window: 0, and 5 in the folder", "fix:  --model.sliding_window 5"});
}

}  // namespace
}  // namespace megatron::interchange
