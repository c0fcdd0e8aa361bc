#include "megatron/interchange/weights.h"

#include <algorithm>

#include "megatron/base/attempt.h"
#include "megatron/base/error.h"
#include "megatron/base/place.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/interchange/hf_config.h"
#include "megatron/interchange/hugging_face.h"
#include "megatron/interchange/megatron_torch.h"

namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopyAnew =
    "copy the folder anew, whole; docs/interchange.md says which models and files can be read";

bool is_hugging_face(const fs::path& folder) { return fs::is_regular_file(folder / "config.json"); }

/// What to name instead of `folder`, which holds no weights.
std::string another_folder(const fs::path& folder) {
  if (!fs::exists(folder)) {
    const std::string near = nearest_beside(folder);
    return near.empty() ? "name a folder that is there" : near;
  }
  const auto holds_weights = [](const fs::path& place) {
    return checkpoint::has_checkpoint(place) || is_hugging_face(place);
  };
  if (!fs::is_directory(folder)) {
    const fs::path beside = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    return holds_weights(beside) ? beside.string() : "name a folder";
  }
  std::string inside;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied))
    if (entry.is_directory() && holds_weights(entry.path())) inside = std::max(inside, entry.path().string());
  if (!inside.empty()) return inside;
  if (fs::exists(folder / "recipe.toml"))
    return "let the run save first: it does so at its end, and each checkpoint.save_interval steps";
  return "name the folder that megatron train has written (its --train.out), or one as it was downloaded";
}

}  // namespace

FolderKind kind_of(const std::filesystem::path& folder) {
  if (!find_megatron(folder).empty()) return FolderKind::MegatronTorch;  // first: its iterations look like ours
  if (checkpoint::has_checkpoint(folder)) return FolderKind::Native;
  if (is_hugging_face(folder)) return FolderKind::HuggingFace;
  if (checkpoint::is_iteration_folder(folder)) return FolderKind::Native;  // damaged: reading it says how
  throw ConfigError(rule_got_fix(
      "Weights must be in a run's folder (latest) or one checkpoint (manifest.json), a Hugging Face folder "
      "(config.json, safetensors) or one of Megatron-LM's checkpoints (latest_checkpointed_iteration.txt, "
      "mp_rank_00/model_optim_rng.pt).",
      place_text(folder), another_folder(folder)));
}

bool is_foreign(const std::filesystem::path& folder) {
  if (!find_megatron(folder).empty()) return true;
  return !checkpoint::has_checkpoint(folder) && is_hugging_face(folder);
}

std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& folder) {
  return with_fix(kCopyAnew, [&]() -> std::unique_ptr<checkpoint::WeightSource> {
    switch (kind_of(folder)) {
      case FolderKind::HuggingFace:
        return open_hugging_face(folder);
      case FolderKind::MegatronTorch:
        return open_megatron(folder);
      default:
        return checkpoint::open_checkpoint(folder);
    }
  });
}

config::ModelConfig model_config_of(const std::filesystem::path& folder) {
  return with_fix(kCopyAnew, [&] {
    switch (kind_of(folder)) {
      case FolderKind::HuggingFace:
        return read_config(folder).model;
      case FolderKind::MegatronTorch:
        return megatron_model(folder);
      default:
        return checkpoint::saved_recipe(folder).model;
    }
  });
}

std::vector<std::string> differences(const config::ModelConfig& model, const std::filesystem::path& folder) {
  const config::ModelConfig theirs = model_config_of(folder);
  std::vector<std::string> lines;
  const auto compare = [&](const char* option, const auto& a, const auto& b) {
    if (a != b) lines.push_back(concat("model.", option, ": ", a, ", and ", b, " in the folder"));
  };
  const plan::GptShape shape = shape_of(model), their_shape = shape_of(theirs);
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
