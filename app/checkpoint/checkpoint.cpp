#include "megatron/checkpoint/checkpoint.h"
#include "app/json_line.h"
#include "app/print.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/checkpoint/interchange.h"
#include "app/flags.h"
#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/difference.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/config/options.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::app {
namespace {

using nlohmann::json;

struct VerifyOptions {
  bool as_json = false;

  void visit(auto& v) { v("json", as_json, "Print one JSON object."); }
};

struct InfoOptions : VerifyOptions {
  bool tensors = false;

  void visit(auto& v) {
    VerifyOptions::visit(v);
    v("tensors", tensors, "List every tensor too (--json always does).");
  }
};

/// The options, and the folder that is named.
template <class Options>
std::pair<Options, std::string> parse(const Args& args, const std::string& usage) {
  Options options;
  const std::vector<std::string> words = config::parse_command_line(options, args, usage);
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("checkpoint: one folder must be named: a run's, its checkpoints' or one checkpoint.",
                                   concat(words.size(), " folders"), command_of(usage)));
  return {options, words[0]};
}

json describe(const std::filesystem::path& folder, const checkpoint::Manifest& manifest) {
  std::uint64_t bytes = 0, parameters = 0;
  json tensors = json::array();
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::uint64_t elements = checkpoint::shape_elements(tensor.shape, name);
    if (checkpoint::is_weight(name)) parameters += elements;
    tensors.push_back(
        {{"name", name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"slices", tensor.slices.size()}});
  }
  for (const checkpoint::FileRecord& file : manifest.files) bytes += file.size;
  return {
      {"folder", folder.string()},      {"iteration", manifest.iteration}, {"parameters", parameters}, {"bytes", bytes},
      {"files", manifest.files.size()}, {"metadata", manifest.metadata},   {"tensors", tensors}};
}

int info(const Args& args) {
  const auto [options, folder] = parse<InfoOptions>(args, "megatron checkpoint info DIR [--tensors] [--json]");
  const std::filesystem::path found = checkpoint::find_checkpoint(folder);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(found);
  const std::vector<std::string> missing = checkpoint::missing_files(found, manifest);
  json about = describe(found, manifest);
  about["problems"] = missing;
  if (options.as_json) {
    print_json(about);
    return missing.empty() ? kDone : kDifference;
  }
  print("{}\n  iteration   {}\n  parameters  {}\n  size        {:.1f} MB in {} files, {} tensors\n", found.string(),
        about["iteration"].dump(), about["parameters"].dump(), about["bytes"].get<double>() / 1e6,
        about["files"].dump(), about["tensors"].size());
  for (const auto& [key, value] : about["metadata"].items())
    if (const std::string text = value; text.size() <= 60) print("  {}: {}\n", printable(key), printable(text));
  if (options.tensors)
    for (const json& tensor : about["tensors"])
      print("  {:4} {:18} {}\n", tensor["dtype"].get<std::string>(), tensor["shape"].dump(),
            printable(tensor["name"].get<std::string>()));
  for (const std::string& problem : missing) write_line(stdout, problem);
  return missing.empty() ? kDone : kDifference;
}

/// Of a run's checkpoint, what is wrong with its counters, which no checksum shows. The folder may be gone by now.
std::vector<std::string> faults_of_counters(const checkpoint::Verified& verified) {
  const checkpoint::Manifest& manifest = verified.manifest;
  if (!manifest.metadata.contains("consumed_samples")) return {};  // weights alone
  try {
    train::run_state_of(manifest, verified.folder);
  } catch (const ConfigError& error) {
    return {error.what()};
  }
  return {};
}

int verify(const Args& args) {
  const auto [options, folder] = parse<VerifyOptions>(args, "megatron checkpoint verify DIR [--json]");
  checkpoint::find_checkpoint(folder);  // a wrong name is a wrong command, no damage
  checkpoint::Verified verified;
  std::vector<std::string> problems = checkpoint::verify(folder, &verified);
  if (problems.empty()) problems = faults_of_counters(verified);
  const std::filesystem::path& found = verified.folder;
  if (options.as_json) {
    print_json(json({{"folder", found.string()}, {"whole", problems.empty()}, {"problems", problems}}));
  } else {
    for (const std::string& problem : problems) write_line(stdout, problem);
    if (problems.empty()) print("{}: whole: every byte is what was written\n", found.string());
  }
  return problems.empty() ? kDone : kDifference;
}

struct ReshardFlags {
  int files = 1;
  std::string dtype;
  bool weights_only = false;
  bool json = false;

  void visit(auto& v) {
    v("files", files, "Files that share the rows of each tensor, for instance one per rank.");
    v("dtype", dtype, "Data type of the weights; empty: as they are.",
      config::Choices({"fp32", "fp64", "bf16", "fp16"}));
    v("weights_only", weights_only, "Leave out the optimizer's state.");
    v("json", json, "Print one JSON object.");
  }
};

std::string stored_dtype(const std::string& name) {
  for (const auto& [given, stored] :
       {std::pair{"", ""}, {"fp32", "F32"}, {"fp64", "F64"}, {"bf16", "BF16"}, {"fp16", "F16"}})
    if (name == given) return stored;
  throw ConfigError(
      rule_got_fix("--dtype must be fp32, fp64, bf16 or fp16.", name, "leave --dtype out, and it stays as it is"));
}

int reshard(const Args& args) {
  constexpr const char* kUsage =
      "megatron checkpoint reshard FROM TO [--files N] [--dtype D] [--weights-only] [--json]";
  ReshardFlags flags;
  const auto words = config::parse_command_line(flags, args, kUsage);
  if (words.size() != 2)
    throw ConfigError(rule_got_fix("checkpoint reshard: two folders must be named.", concat(words.size()), kUsage));
  if (flags.files < 1 || flags.files > 99999)
    throw ConfigError(rule_got_fix("--files must be 1 to 99999.", concat(flags.files), "--files 1 (the default)"));
  const checkpoint::ReshardOptions options{
      .files = flags.files, .dtype = stored_dtype(flags.dtype), .weights_only = flags.weights_only};
  std::filesystem::path made;
  checkpoint::read_newest(words[0], [&] { made = checkpoint::reshard(words[0], words[1], options); });
  const json about = describe(made, checkpoint::read_manifest(made));
  if (flags.json)
    print_json(about);
  else
    print("{}: {:.1f} MB in {} files\n", made.string(), about["bytes"].get<double>() / 1e6, about["files"].dump());
  return kDone;
}

struct DiffFlags {
  double tolerance = 0;
  bool json = false;

  void visit(auto& v) {
    v("tolerance", tolerance, "Maximum absolute difference that is not reported.");
    v("json", json, "Print one JSON object.");
  }
};

int diff(const Args& args) {
  constexpr const char* kUsage = "megatron checkpoint diff FIRST SECOND [--tolerance X] [--json]";
  DiffFlags flags;
  const auto words = config::parse_command_line(flags, args, kUsage);
  if (words.size() != 2)
    throw ConfigError(rule_got_fix("checkpoint diff: two folders must be named.", concat(words.size()), kUsage));
  if (!(flags.tolerance >= 0))
    throw ConfigError(
        rule_got_fix("--tolerance must be 0 or more.", concat(flags.tolerance), "--tolerance 0 (the default)"));
  std::int64_t compared = 0;
  const auto found = checkpoint::differences(words[0], words[1], flags.tolerance, &compared);
  json list = json::array();
  for (const auto& difference : found) {
    json entry = {{"name", difference.name}};
    if (!difference.what.empty())
      entry["what"] = difference.what;
    else
      entry.update({{"elements", difference.elements},
                    {"not_finite", difference.not_finite},
                    {"largest", difference.largest},
                    {"largest_relative", difference.largest_relative},
                    {"at", difference.at}});
    list.push_back(std::move(entry));
  }
  if (flags.json) {
    print_json(json({{"compared", compared}, {"equal", found.empty()}, {"different", list}}));
  } else {
    for (const auto& difference : found)
      print("{}: {}\n", printable(difference.name),
            difference.what.empty()
                ? concat(difference.elements, " elements, by at most ", difference.largest, " (relative ",
                         difference.largest_relative, "), at element ", difference.at,
                         difference.not_finite > 0
                             ? concat("; ", difference.not_finite, " of them NaN or infinite in one or both")
                             : "")
                : difference.what);
    print("{} tensors differ, {} were compared\n", found.size(), compared);
  }
  return found.empty() ? kDone : kDifference;
}

struct PruneFlags {
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  bool dry_run = false;
  bool json = false;

  void visit(auto& v) {
    v("keep_last", keep_last, "Newest checkpoints to keep, 1 or more.", config::Example{"1"}, config::Required());
    v("keep_every", keep_every, "Also keep checkpoints whose iteration is a multiple of this; 0: no others.");
    v("dry_run", dry_run, "Only print what would be removed.");
    v("json", json, "Print one JSON object.");
  }
};

int prune(const Args& args) {
  constexpr const char* kUsage = "megatron checkpoint prune DIR --keep-last K [--keep-every N] [--dry-run] [--json]";
  PruneFlags flags;
  const auto words = config::parse_command_line(flags, args, kUsage);
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("checkpoint prune: one folder must be named.", concat(words.size()), kUsage));
  if (flags.keep_last < 1 || flags.keep_every < 0)
    throw ConfigError(rule_got_fix("--keep-last must be 1 or more, --keep-every 0 or more.",
                                   concat(flags.keep_last, " and ", flags.keep_every), "--keep-last 1 --keep-every 0"));
  const auto folder = checkpoint::checkpoints_folder(words[0]);
  std::optional<checkpoint::FolderLock> lock;
  if (!flags.dry_run) lock.emplace(folder, "let the run itself remove old ones (checkpoint.keep_last in its recipe)");
  const auto doomed = checkpoint::superfluous(folder, {.last = flags.keep_last, .every = flags.keep_every});
  json names = json::array();
  for (const auto& old : doomed) {
    if (!flags.dry_run) checkpoint::remove_checkpoint(old);
    names.push_back(old.filename().string());
    if (!flags.json) print("{} {}\n", flags.dry_run ? "would remove" : "removed", old.string());
  }
  if (flags.json) print_json(json({{"folder", folder.string()}, {"removed", names}, {"dry_run", flags.dry_run}}));
  return kDone;
}

}  // namespace

int checkpoint(const Args& args) {
  return dispatch("megatron checkpoint",
                  {{"info", "Shows what a checkpoint holds.", info},
                   {"verify", "Compares every byte with its checksum.", verify},
                   {"reshard", "Rewrites a checkpoint in other files or another dtype.", reshard},
                   {"diff", "Shows which tensors of two checkpoints differ, and by how much.", diff},
                   {"prune", "Removes old checkpoints.", prune},
                   {"import", "Converts a Hugging Face folder or a Megatron-LM checkpoint.", checkpoint_import},
                   {"export", "Writes weights as a Hugging Face folder.", checkpoint_export}},
                  args);
}

}  // namespace megatron::app
