#include "megatron/interchange/weights.h"

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/hf_config.h"

namespace megatron::interchange {
namespace {

constexpr const char* kCopyAnew =
    "copy the whole folder again; docs/interchange.md says which models and files can be read";

}  // namespace

bool is_foreign(const std::filesystem::path& folder) {
  const WeightFormat* format = find_format(folder);
  return format != nullptr && !format->native;
}

std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& folder) {
  return with_fix(kCopyAnew, [&] { return format_of(folder).weights(folder); });
}

config::ModelConfig model_config_of(const std::filesystem::path& folder) {
  return with_fix(kCopyAnew, [&] { return format_of(folder).model(folder); });
}

std::vector<std::string> differences(const config::ModelConfig& model, const std::filesystem::path& folder) {
  const config::ModelConfig theirs = model_config_of(folder);
  std::vector<std::string> lines;
  const auto compare = [&](const char* option, const auto& a, const auto& b) {
    if (a != b) lines.push_back(concat("model.", option, ": ", a, ", and ", b, " in the folder"));
  };
  const plan::ModelShape shape = shape_of(model), their_shape = shape_of(theirs);
  compare("num_attention_heads", shape.num_heads, their_shape.num_heads);
  compare("num_query_groups", shape.groups(), their_shape.groups());
  compare("architecture", model.architecture, theirs.architecture);
  compare("apply_residual_connection_post_layernorm", model.apply_residual_connection_post_layernorm,
          theirs.apply_residual_connection_post_layernorm);
  compare("normalization", model.normalization, theirs.normalization);
  compare("layernorm_epsilon", model.layernorm_epsilon, theirs.layernorm_epsilon);
  compare("activation", model.activation, theirs.activation);
  compare("relative_attention_max_distance", shape.position_max_distance, their_shape.position_max_distance);
  compare("position_embedding_type", model.position_embedding_type, theirs.position_embedding_type);
  if (model.position_embedding_type != "rope" || theirs.position_embedding_type != "rope") return lines;
  compare("rotary_base", model.rotary_base, theirs.rotary_base);
  compare("rotary_percent", model.rotary_percent, theirs.rotary_percent);
  compare("rotary_interleaved", model.rotary_interleaved, theirs.rotary_interleaved);
  compare("rope_scaling_factor", model.rope_scaling_factor, theirs.rope_scaling_factor);
  if (model.rope_scaling_factor == 1) return lines;
  compare("rope_low_freq_factor", model.rope_low_freq_factor, theirs.rope_low_freq_factor);
  compare("rope_high_freq_factor", model.rope_high_freq_factor, theirs.rope_high_freq_factor);
  compare("rope_original_positions", model.rope_original_positions, theirs.rope_original_positions);
  return lines;
}

void check_same_network(const config::ModelConfig& model, const std::filesystem::path& folder) {
  std::string all;
  for (const std::string& line : differences(model, folder)) all += concat(all.empty() ? "" : "\n        ", line);
  if (!all.empty())
    throw ConfigError(
        rule_got_fix(concat("The recipe must describe the network whose weights are in ", folder.string(), "."), all,
                     "give the options the folder's values"));
}

}  // namespace megatron::interchange
