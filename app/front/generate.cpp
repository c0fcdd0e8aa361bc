#include "app/generate/generate_options.h"

#include <filesystem>
#include <optional>
#include <string>

#include "app/front/front.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/tables/model_kinds.h"
#include "megatron/families/folder.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;

/// Whether the model that a run has saved in `folder` is an encoder-decoder, as far as its recipe says so.
std::optional<bool> by_recipe(const fs::path& folder) {
  if (!fs::exists(folder / "recipe.toml") || !fs::exists(folder / "checkpoints/latest")) return std::nullopt;
  try {
    config::RunConfig run;
    config::load_toml(run, (folder / "recipe.toml").string());
    return config::model_traits(run.model.architecture).encoder_decoder;
  } catch (const std::exception&) {  // megatron-torch says what it needs of it
    return std::nullopt;
  }
}

}  // namespace

void check_generate(const Args& args) {
  const GenerateFlags flags = generate_flags(args);
  if (const auto model = families::network_of_folder(flags.load)) {
    const bool pair = config::model_traits(model->architecture).encoder_decoder;
    check_kind(flags, pair);
    return check_model(flags, *model, "generate", pair ? recipe::Writes::TextsOrAnswers : recipe::Writes::Texts);
  }
  try {
    if (const auto pair = by_recipe(flags.load)) check_kind(flags, *pair);
  } catch (const fs::filesystem_error&) {  // a folder that may not be entered: megatron-torch says so
  }
}

}  // namespace megatron::app
