#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include "app/jobs.h"
#include "app/train_options.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/launcher.h"
#include "megatron/config/options.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/resolve.h"

namespace megatron::app {
namespace {

/// Whether rules hold of what the options say: the run begins, and neither a search of layouts nor another run's files
/// change it.
bool stands_alone(const TrainOptions& options) {
  const config::CheckpointConfig& checkpoint = options.run.checkpoint;
  std::error_code unknown;
  return options.layout == "given" && checkpoint.load.empty() && checkpoint.save.empty() &&
         !checkpoint.use_checkpoint_args && options.run.lora.base.empty() &&
         !std::filesystem::exists(options.run.train.out, unknown) && !unknown;
}

/// Throws ConfigError where a rule is broken, or looks so: the tokenizer, which takes longer to read than all rules, is
/// taken to have the model's vocabulary.
void check_rules(const config::RunConfig& given) {
  const config::RunConfig config = recipe::with_null_tokenizer(given);
  const std::string broken =
      plan::broken_rules(config, {.tokenizer_vocab = std::max<std::int64_t>(1, config.model.vocab_size),
                                  .needs_data = true,
                                  .schedule_file = recipe::read_schedule_file(config.parallel.pp_schedule)});
  if (!broken.empty()) throw ConfigError(broken);
}

/// Throws HelpRequested, or ConfigError with all that is wrong with words and recipe, where that is known here.
void check_words(const Args& args) {
  TrainOptions options;
  const auto parse = [&](const std::function<void()>& check) {
    options = {};
    config::parse_recipe_command(options, &TrainOptions::run, args, kTrainUsage, check);
  };
  try {
    parse([&] {
      if (stands_alone(options)) check_rules(options.run);
    });
  } catch (const ConfigError&) {
    if (!stands_alone(options)) return;
    parse([&] { recipe::resolve_with_tokenizer(options.run, {.needs_data = true}); });
  }
}

}  // namespace

int train_after_checks(const Args& args) {
  // What a rank of a launcher finds wrong it tells the others, for which it must meet them.
  if (!launcher_of(process_environment())) check_words(args);
  Args words = {"train"};
  words.insert(words.end(), args.begin(), args.end());
  return run_with_libtorch(words);
}

}  // namespace megatron::app
