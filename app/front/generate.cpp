#include "app/generate/generate_options.h"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app/front/front.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/tables/model_kinds.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;

/// Of a run's folder.
std::optional<bool> by_recipe(const fs::path& recipe) {
  try {
    config::RunConfig run;
    config::load_toml(run, recipe.string());
    return config::model_traits(run.model.architecture).encoder_decoder;
  } catch (const std::exception&) {  // megatron-torch says what it needs of it
    return std::nullopt;
  }
}

/// Of a Hugging Face folder.
std::optional<bool> by_config(const fs::path& file) {
  constexpr std::uint64_t kMaxBytes = 1 << 20;
  try {
    const auto config = try_parse_json(read_file(file, kMaxBytes));
    if (!config || !config->is_object() || !config->contains("model_type")) return std::nullopt;
    if (const auto pair = config->find("is_encoder_decoder"); pair != config->end())
      return pair->is_boolean() ? std::optional(pair->get<bool>()) : std::nullopt;
    // The field may be left out where it is as the kind of model has it: that is told by one that all others lack.
    if (config->contains("d_kv") || config->contains("num_decoder_layers")) return std::nullopt;
    return false;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// Whether the model in `folder` is an encoder-decoder, as far as its recipe or config.json says so in a moment.
std::optional<bool> is_encoder_decoder(const fs::path& folder) {
  if (fs::exists(folder / "recipe.toml") && fs::exists(folder / "checkpoints/latest"))
    return by_recipe(folder / "recipe.toml");
  const bool others = fs::exists(folder / "manifest.json") || fs::exists(folder / "latest") ||
                      fs::exists(folder / "adapter_config.json") || fs::exists(folder / "checkpoints");
  return others || !fs::is_regular_file(folder / "config.json") ? std::nullopt : by_config(folder / "config.json");
}

}  // namespace

void check_generate(const Args& args) {
  const GenerateFlags flags = generate_flags(args);
  try {
    if (const auto pair = is_encoder_decoder(flags.load)) check_kind(flags, *pair);
  } catch (const fs::filesystem_error&) {  // a folder that may not be entered: megatron-torch says so
  }
}

}  // namespace megatron::app
