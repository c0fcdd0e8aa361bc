#include "app/front/front.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>

#include "app/train/finetune_options.h"
#include "app/train/pretrain_options.h"
#include "app/train/train_options.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/config/options.h"
#include "megatron/families/folder.h"
#include "megatron/families/format_words.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/resolve.h"

namespace megatron::app {
namespace {

/// Whether weights from `folder` leave the options as they are: none, or a Hugging Face folder's where the tokenizer is
/// named. Runs that resume take their batch along, Megatron-LM's the rows of their vocabulary.
bool changes_nothing(const std::string& folder, const config::DataConfig& data) {
  if (folder.empty()) return true;
  std::error_code unknown;
  const std::filesystem::path path(folder);
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name, unknown) || unknown; };
  return !data.tokenizer.empty() && std::filesystem::is_regular_file(path / "config.json", unknown) &&
         !has("manifest.json") && !has("latest") && !has("checkpoints") && !has("latest_checkpointed_iteration.txt") &&
         !has(".metadata");
}

/// Whether rules hold of what the options say: neither another run's files nor the folders of its own change it.
bool stands_alone(const config::RunConfig& run) {
  const config::CheckpointConfig& checkpoint = run.checkpoint;
  std::error_code unknown;
  return changes_nothing(checkpoint.load, run.data) && checkpoint.save.empty() && !checkpoint.use_checkpoint_args &&
         run.lora.base.empty() && !std::filesystem::exists(run.train.out, unknown) && !unknown;
}

/// Whether a rule is broken, or looks so: the tokenizer, which takes longer to read than all rules, is taken to have
/// the model's vocabulary.
bool looks_broken(const config::RunConfig& given, plan::Facts facts) {
  const config::RunConfig config = recipe::with_null_tokenizer(given);
  facts.tokenizer_vocab = std::max<std::int64_t>(1, config.model.vocab_size);
  try {
    facts.schedule_file = recipe::read_schedule_file(config.parallel.pp_schedule);
  } catch (const ConfigError&) {
    return true;
  }
  return !plan::broken_rules(config, facts).empty();
}

}  // namespace

void check_train(const Args& args) {
  TrainOptions options;
  bool is_read = false, alone = false, broken = false;
  const auto parse = [&](const std::function<void()>& check) {
    options = {};
    config::parse_recipe_command(options, &TrainOptions::run, args, kTrainUsage, check);
  };
  const plan::Facts facts{.needs_data = true};
  try {
    parse([&] {
      is_read = true;
      alone = options.layout == "given" && options.hardware.empty() && options.fit.empty() && stands_alone(options.run);
      broken = alone && looks_broken(options.run, facts);
    });
    if (!broken) return;
  } catch (const ConfigError&) {
    if (is_read && !alone) return;  // megatron-torch knows more of the run, and says all of it together
  }
  parse([&] { recipe::resolve_with_tokenizer(options.run, facts); });
}

void check_finetune(const Args& args) {
  std::optional<config::ModelConfig> network;  // of the weights
  if (const std::string load = finetune_words(args).recipe.checkpoint.load; !load.empty()) {
    std::error_code unknown;
    if (!std::filesystem::exists(load, unknown) && !unknown) throw ConfigError(families::no_weights(load));
    network = families::network_of_folder(load);
    if (!network) return;  // megatron-torch reads the folder
  }
  const FinetuneOptions options =
      finetune_options(args, {.network = [&](const std::string&) { return *network; }, .tokenizer = companions_of});
  if (looks_broken(options.recipe, {})) recipe::resolve_with_tokenizer(options.recipe, {});
}

void check_pretrain(const std::string& program, const Args& args) {
  const config::RunConfig run = pretrain_options(program, args).config;
  if (gpu_present() && cuda_plugin().empty()) return;  // which megatron-torch may find beside libtorch
  const plan::Facts facts{.needs_data = true};
  if (stands_alone(run) && looks_broken(run, facts)) recipe::resolve_with_tokenizer(run, facts);
}

}  // namespace megatron::app
