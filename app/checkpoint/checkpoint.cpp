#include "megatron/checkpoint/checkpoint.h"
#include "app/json_line.h"
#include "app/print.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/checkpoint/checkpoint_options.h"
#include "app/checkpoint/interchange.h"
#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/difference.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::app {
namespace {

using nlohmann::json;

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
  const CheckpointInfoFlags flags = checkpoint_info_flags(args);
  const std::filesystem::path found = checkpoint::find_checkpoint(flags.folder);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(found);
  const std::vector<std::string> missing = checkpoint::missing_files(found, manifest);
  json about = describe(found, manifest);
  about["problems"] = missing;
  if (flags.json) {
    print_json(about);
    return missing.empty() ? kDone : kDifference;
  }
  print("{}\n  iteration   {}\n  parameters  {}\n  size        {:.1f} MB in {} files, {} tensors\n",
        printable(found.string()), about["iteration"].dump(), about["parameters"].dump(),
        about["bytes"].get<double>() / 1e6, about["files"].dump(), about["tensors"].size());
  for (const auto& [key, value] : about["metadata"].items())
    if (const std::string text = value; text.size() <= 60) print("  {}: {}\n", printable(key), printable(text));
  if (flags.tensors)
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
  const CheckpointVerifyFlags flags = checkpoint_verify_flags(args);
  checkpoint::find_checkpoint(flags.folder);  // a wrong name is a wrong command, no damage
  checkpoint::Verified verified;
  std::vector<std::string> problems = checkpoint::verify(flags.folder, &verified);
  if (problems.empty()) problems = faults_of_counters(verified);
  const std::filesystem::path& found = verified.folder;
  if (flags.json) {
    print_json(json({{"folder", found.string()}, {"whole", problems.empty()}, {"problems", problems}}));
  } else {
    for (const std::string& problem : problems) write_line(stdout, problem);
    if (problems.empty()) print("{}: whole: every byte is what was written\n", printable(found.string()));
  }
  return problems.empty() ? kDone : kDifference;
}

std::string stored_dtype(const std::string& name) {
  for (const auto& [given, stored] :
       {std::pair{"", ""}, {"fp32", "F32"}, {"fp64", "F64"}, {"bf16", "BF16"}, {"fp16", "F16"}})
    if (name == given) return stored;
  throw ConfigError(
      rule_got_fix("--dtype must be fp32, fp64, bf16 or fp16.", name, "leave --dtype out, and it stays as it is"));
}

int reshard(const Args& args) {
  const CheckpointReshardFlags flags = checkpoint_reshard_flags(args);
  const checkpoint::ReshardOptions options{
      .files = flags.files, .dtype = stored_dtype(flags.dtype), .weights_only = flags.weights_only};
  std::filesystem::path made;
  const std::filesystem::path beside = interchange::companion_folder(flags.from);
  checkpoint::read_newest(flags.from, [&] { made = checkpoint::reshard(flags.from, flags.to, options); });
  if (!beside.empty()) interchange::copy_companions(beside, flags.to);
  const json about = describe(made, checkpoint::read_manifest(made));
  if (flags.json)
    print_json(about);
  else
    print("{}: {:.1f} MB in {} files\n", printable(made.string()), about["bytes"].get<double>() / 1e6,
          about["files"].dump());
  return kDone;
}

int diff(const Args& args) {
  const CheckpointDiffFlags flags = checkpoint_diff_flags(args);
  std::int64_t compared = 0;
  const auto found = checkpoint::differences(flags.first, flags.second, flags.tolerance, &compared);
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

int prune(const Args& args) {
  const CheckpointPruneFlags flags = checkpoint_prune_flags(args);
  const auto folder = checkpoint::checkpoints_folder(flags.folder);
  std::optional<checkpoint::FolderLock> lock;
  if (!flags.dry_run) lock.emplace(folder, "let the run itself remove old ones (checkpoint.keep_last in its recipe)");
  const auto doomed = checkpoint::superfluous(folder, {.last = flags.keep_last, .every = flags.keep_every});
  json names = json::array();
  for (const auto& old : doomed) {
    if (!flags.dry_run) checkpoint::remove_checkpoint(old);
    names.push_back(old.filename().string());
    if (!flags.json) print("{} {}\n", flags.dry_run ? "would remove" : "removed", printable(old.string()));
  }
  if (flags.json) print_json(json({{"folder", folder.string()}, {"removed", names}, {"dry_run", flags.dry_run}}));
  return kDone;
}

}  // namespace

int checkpoint(const Args& args) {
  return dispatch("megatron checkpoint",
                  {{"info", "", info},  // what they do is said by the program without libtorch (app/front/)
                   {"verify", "", verify},
                   {"reshard", "", reshard},
                   {"diff", "", diff},
                   {"prune", "", prune},
                   {"import", "", checkpoint_import},
                   {"export", "", checkpoint_export}},
                  args);
}

}  // namespace megatron::app
