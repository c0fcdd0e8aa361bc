#include "app/checkpoint/checkpoint_options.h"

#include <cstddef>
#include <string>
#include <vector>

#include "app/flags.h"
#include "megatron/base/error.h"

namespace megatron::app {
namespace {

/// The flags of a job on one folder.
template <class Flags>
Flags of_one_folder(const Args& args, const std::string& usage) {
  Flags flags;
  const std::vector<std::string> words = config::parse_command_line(flags, args, usage);
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("checkpoint: one folder must be named: a run's, its checkpoints' or one checkpoint.",
                                   concat(words.size(), " folders"), command_of(usage)));
  flags.folder = words[0];
  return flags;
}

/// The folders that a job names besides its flags; so many it must.
template <class Flags>
std::vector<std::string> folders_of(Flags& flags, const Args& args, std::size_t count, const std::string& rule,
                                    const char* usage) {
  std::vector<std::string> words = config::parse_command_line(flags, args, usage);
  if (words.size() != count) throw ConfigError(rule_got_fix(rule, concat(words.size()), usage));
  return words;
}

}  // namespace

CheckpointInfoFlags checkpoint_info_flags(const Args& args) {
  return of_one_folder<CheckpointInfoFlags>(args, "megatron checkpoint info DIR [--tensors] [--json]");
}

CheckpointVerifyFlags checkpoint_verify_flags(const Args& args) {
  return of_one_folder<CheckpointVerifyFlags>(args, "megatron checkpoint verify DIR [--json]");
}

CheckpointReshardFlags checkpoint_reshard_flags(const Args& args) {
  constexpr const char* kUsage =
      "megatron checkpoint reshard FROM TO [--files N] [--dtype D] [--weights-only] [--json]";
  CheckpointReshardFlags flags;
  const auto words = folders_of(flags, args, 2, "checkpoint reshard: two folders must be named.", kUsage);
  if (flags.files < 1 || flags.files > 99999)
    throw ConfigError(rule_got_fix("--files must be 1 to 99999.", concat(flags.files), "--files 1 (the default)"));
  flags.from = words[0];
  flags.to = words[1];
  return flags;
}

CheckpointDiffFlags checkpoint_diff_flags(const Args& args) {
  constexpr const char* kUsage = "megatron checkpoint diff FIRST SECOND [--tolerance X] [--json]";
  CheckpointDiffFlags flags;
  const auto words = folders_of(flags, args, 2, "checkpoint diff: two folders must be named.", kUsage);
  if (!(flags.tolerance >= 0))
    throw ConfigError(
        rule_got_fix("--tolerance must be 0 or more.", concat(flags.tolerance), "--tolerance 0 (the default)"));
  flags.first = words[0];
  flags.second = words[1];
  return flags;
}

CheckpointPruneFlags checkpoint_prune_flags(const Args& args) {
  constexpr const char* kUsage = "megatron checkpoint prune DIR --keep-last K [--keep-every N] [--dry-run] [--json]";
  CheckpointPruneFlags flags;
  const auto words = folders_of(flags, args, 1, "checkpoint prune: one folder must be named.", kUsage);
  if (flags.keep_last < 1 || flags.keep_every < 0)
    throw ConfigError(rule_got_fix("--keep-last must be 1 or more, --keep-every 0 or more.",
                                   concat(flags.keep_last, " and ", flags.keep_every), "--keep-last 1 --keep-every 0"));
  flags.folder = words[0];
  return flags;
}

}  // namespace megatron::app
