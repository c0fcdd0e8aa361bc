#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/megatron/yaml_words.h"
#include "megatron/config/options.h"
#include "megatron/interchange/weights.h"
#include "megatron/run/ranks.h"
#include "megatron/run/training.h"

// Megatron-LM's programs under their own arguments.
namespace megatron::app {
namespace {

namespace fs = std::filesystem;

const char* type_of(config::FlagKind kind) {
  switch (kind) {
    case config::FlagKind::Switch:
      return "";
    case config::FlagKind::Int:
      return " INT";
    case config::FlagKind::Float:
      return " FLOAT";
    case config::FlagKind::String:
      return " STRING";
    default:
      return " STRING...";
  }
}

/// The flags that stand for options, each with these.
std::string help_of(const std::string& program) {
  std::string text =
      concat("megatron ", program,
             " ARGUMENTS…\n\n"
             "Trains as Megatron-LM's ",
             program,
             ".py would with these arguments, its defaults included: the words of a launch\n"
             "script stay as they are. Options of this program may stand among them by their whole name:\n"
             "--train.out DIR, --parallel.world_size 2. megatron plan --megatron-args FILE shows what they mean;\n"
             "docs/from_megatron_lm.md lists every flag, also those that are ignored or not here.\n\n"
             "flags, and the options of a recipe that they set\n");
  constexpr std::size_t kColumn = 52;
  for (const config::MegatronFlag& flag : config::megatron_flags()) {
    if (flag.use != config::FlagUse::Maps) continue;
    const std::string line = concat("  ", flag.flag(), type_of(flag.kind));
    text += line + std::string(line.size() + 2 > kColumn ? 2 : kColumn - line.size(), ' ') + flag.text + "\n";
  }
  return text;
}

bool has_weights(const fs::path& folder) {
  return checkpoint::has_checkpoint(folder) || interchange::is_foreign(folder);
}

/// As there: a folder without checkpoint is no error, nor is one that is not there yet. Returns what to say of it.
std::string settle_load(config::MegatronTranslation& translation) {
  config::CheckpointConfig& saved = translation.config.checkpoint;
  if (saved.load.empty() || has_weights(saved.load)) return "";
  const std::string absent = saved.load;
  if (!translation.pretrained.empty() && translation.pretrained != absent) {
    saved.load = translation.pretrained;
    saved.finetune = true;
    return concat("note: ", absent, " has no checkpoint: the run begins with the weights of ", saved.load);
  }
  if (translation.load_must_exist || !translation.pretrained.empty()) return "";  // said where it is opened
  saved.load.clear();
  saved.finetune = saved.no_load_optim = false;
  return concat("warning: --load ", absent, " has no checkpoint: the run starts from scratch");
}

/// Checkpoints in the folder of --save are resumed by a run here, but not there: only those of --load are.
void refuse_other_checkpoints(const config::CheckpointConfig& saved) {
  if (saved.save.empty() || !checkpoint::has_checkpoint(saved.save)) return;
  const auto whole = [](const fs::path& path) { return (fs::absolute(path) / "").lexically_normal(); };
  if (!saved.load.empty() && whole(saved.load) == whole(saved.save)) return;
  throw ConfigError(
      rule_got_fix("the folder of --save must have no checkpoints but those that --load names.",
                   concat("checkpoints in ", saved.save, ", --load ", saved.load.empty() ? "not given" : saved.load),
                   concat("--load ", saved.save, " to resume from them, or --save of another folder")));
}

int run_pretrain(const std::string& program, const Args& args) {
  const config::MegatronArguments arguments(args);
  if (arguments.asks_for_help()) throw config::HelpRequested(help_of(program));
  config::RunConfig own;  // to know the ranks that this program starts itself
  config::parse_words(config::fields_of(own), arguments.own_words(), "");
  const auto place = comm::place_from(comm::process_environment());
  const bool gpus = gpu_present() && !cuda_plugin().empty();
  const int ranks = place ? place->world_size : std::max(1, own.parallel.world_size);
  config::MegatronLaunch launch{.world_size = ranks, .device = gpus ? "cuda" : "cpu"};
  constexpr std::uint64_t kMaxYaml = std::uint64_t{1} << 20;
  if (const std::string yaml = config::yaml_file_of(args); !yaml.empty()) launch.yaml = read_file(yaml, kMaxYaml);
  auto translation = config::translate_megatron_arguments(program, args, launch);
  if (place) translation.config.parallel.world_size = 0;  // the launcher's holds
  config::parse_words(config::fields_of(translation.config), translation.own, "");
  const std::string of_load = settle_load(translation);
  refuse_other_checkpoints(translation.config.checkpoint);
  const run::TrainingJob job = run::open_training(translation.config);
  if (run::speaks_for(job)) {
    const std::string ignored = config::ignored_line(translation);
    for (const std::string& line : {of_load, ignored})
      if (!line.empty()) write_line(stderr, concat(program, ": ", line));
    for (const std::string& note : job.notes) write_line(stderr, concat(program, ": ", note));
    if (!gpus && translation.config.parallel.device == "cpu")
      write_line(stderr, concat(program, ": no GPU here: the ranks compute on the CPU"));
  }
  return run::train(job, {.stop_on_signals = true});
}

}  // namespace

int pretrain_gpt(const Args& args) {
  return run::run_job_of_ranks([&] { return run_pretrain("pretrain_gpt", args); });
}

int pretrain_bert(const Args& args) {
  return run::run_job_of_ranks([&] { return run_pretrain("pretrain_bert", args); });
}

int pretrain_t5(const Args& args) {
  return run::run_job_of_ranks([&] { return run_pretrain("pretrain_t5", args); });
}

}  // namespace megatron::app
