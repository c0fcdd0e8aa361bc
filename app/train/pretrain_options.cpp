#include "app/train/pretrain_options.h"

#include <algorithm>
#include <cstdint>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/yaml_words.h"
#include "megatron/config/options.h"

namespace megatron::app {
namespace {

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

}  // namespace

bool has_gpus() { return gpu_present() && !cuda_plugin().empty(); }

config::MegatronTranslation pretrain_options(const std::string& program, const Args& args) {
  const config::MegatronArguments arguments(args);
  if (arguments.asks_for_help()) throw config::HelpRequested(help_of(program));
  config::RunConfig own;  // to know the ranks that this program starts itself
  config::parse_words(config::fields_of(own), arguments.own_words(), "");
  const auto place = place_from(process_environment());
  const int ranks = place ? place->world_size : std::max(1, own.parallel.world_size);
  config::MegatronLaunch launch{.world_size = ranks, .device = has_gpus() ? "cuda" : "cpu"};
  constexpr std::uint64_t kMaxYaml = std::uint64_t{1} << 20;
  if (const std::string yaml = config::yaml_file_of(args); !yaml.empty()) launch.yaml = read_file(yaml, kMaxYaml);
  config::MegatronTranslation translation = config::translate_megatron_arguments(program, args, launch);
  if (place) translation.config.parallel.world_size = 0;  // the launcher's holds
  config::parse_words(config::fields_of(translation.config), translation.own, "");
  return translation;
}

}  // namespace megatron::app
