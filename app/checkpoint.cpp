#include "megatron/checkpoint/checkpoint.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/config/options.h"

namespace megatron::app {
namespace {

using nlohmann::json;

struct CheckpointOptions {
  bool as_json = false;
  bool tensors = false;

  void visit(auto& v) {
    v("json", as_json, "Print one JSON object.");
    v("tensors", tensors, "List every tensor too (--json always does).");
  }
};

struct Command {
  CheckpointOptions options;
  std::string folder;
};

Command parse(const Args& args, const std::string& usage) {
  Command command;
  const std::vector<std::string> words = config::parse_command_line(command.options, args, usage);
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("checkpoint: one folder must be named: a run's, its checkpoints' or one checkpoint.",
                                   concat(words.size(), " folders"), usage));
  command.folder = words[0];
  return command;
}

/// Whether a tensor is a weight, not the optimizer's.
bool is_parameter(const std::string& name) { return !name.starts_with("optimizer."); }

json describe(const std::filesystem::path& folder, const checkpoint::Manifest& manifest) {
  std::uint64_t bytes = 0, parameters = 0;
  json tensors = json::array();
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::uint64_t elements = checkpoint::shape_elements(tensor.shape, name);
    if (is_parameter(name)) parameters += elements;
    tensors.push_back(
        {{"name", name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"slices", tensor.slices.size()}});
  }
  for (const checkpoint::FileRecord& file : manifest.files) bytes += file.size;
  return {
      {"folder", folder.string()},      {"iteration", manifest.iteration}, {"parameters", parameters}, {"bytes", bytes},
      {"files", manifest.files.size()}, {"metadata", manifest.metadata},   {"tensors", tensors}};
}

int info(const Args& args) {
  const auto [options, folder] = parse(args, "megatron checkpoint info DIR [--tensors] [--json]");
  const std::filesystem::path found = checkpoint::find_checkpoint(folder);
  const json about = describe(found, checkpoint::read_manifest(found));
  if (options.as_json) {
    std::printf("%s\n", about.dump().c_str());
    return kDone;
  }
  std::printf("%s\n  iteration   %s\n  parameters  %s\n  size        %.1f MB in %s files, %zu tensors\n", found.c_str(),
              about["iteration"].dump().c_str(), about["parameters"].dump().c_str(), about["bytes"].get<double>() / 1e6,
              about["files"].dump().c_str(), about["tensors"].size());
  for (const auto& [key, value] : about["metadata"].items())
    if (const std::string text = value; text.size() <= 60) std::printf("  %s: %s\n", key.c_str(), text.c_str());
  if (options.tensors)
    for (const json& tensor : about["tensors"])
      std::printf("  %-4s %-18s %s\n", tensor["dtype"].get<std::string>().c_str(), tensor["shape"].dump().c_str(),
                  tensor["name"].get<std::string>().c_str());
  return kDone;
}

int verify(const Args& args) {
  const auto [options, folder] = parse(args, "megatron checkpoint verify DIR [--json]");
  const std::filesystem::path found = checkpoint::find_checkpoint(folder);
  const std::vector<std::string> problems = checkpoint::verify(found);
  if (options.as_json) {
    std::printf("%s\n",
                json({{"folder", found.string()}, {"whole", problems.empty()}, {"problems", problems}}).dump().c_str());
  } else {
    for (const std::string& problem : problems) std::printf("%s\n", problem.c_str());
    if (problems.empty()) std::printf("%s: whole: every byte is what was written\n", found.c_str());
  }
  return problems.empty() ? kDone : kDifference;
}

}  // namespace

int checkpoint(const Args& args) {
  return dispatch(
      "megatron checkpoint",
      {{"info", "Says what a checkpoint holds.", info}, {"verify", "Compares every byte with its checksum.", verify}},
      args);
}

}  // namespace megatron::app
