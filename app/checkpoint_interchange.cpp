// megatron checkpoint import | export: weights of other programs, both ways.
#include <cstdio>
#include <string>

#include "app/checkpoint_interchange.h"
#include "megatron/base/error.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/config/options.h"
#include "megatron/interchange/hugging_face.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"

namespace megatron::app {
namespace {

constexpr const char* kImportUsage =
    "megatron checkpoint import --from DIR --output DIR [--dtype float32|bfloat16|float16]\n\n"
    "Makes a checkpoint of this program from a Hugging Face folder (GPT-2, Llama, Mistral and Qwen2 without sliding\n"
    "windows, BERT) or from Megatron-LM's checkpoint of format torch (GPT; any tensor and pipeline parallelism).";
constexpr const char* kExportUsage =
    "megatron checkpoint export --load DIR --output DIR [--dtype float32|bfloat16|float16]\n\n"
    "Writes the weights of a run, of a checkpoint or of any folder that can be imported as a Hugging Face folder.";

struct ImportFlags {
  std::string from, output, dtype;
  void visit(auto& v) {
    v("from", from, "Hugging Face folder, or Megatron-LM's folder of checkpoints.");
    v("output", output, "Folder that becomes one of checkpoints, with one of iteration 0.");
    v("dtype", dtype, "float32, bfloat16 or float16; empty: as it is.");
  }
};

struct ExportFlags {
  std::string load, output, dtype;
  void visit(auto& v) {
    v("load", load, "Folder of a run, of checkpoints, or one checkpoint.");
    v("output", output, "Hugging Face folder to write; must not exist, or be empty.");
    v("dtype", dtype, "float32, bfloat16 or float16; empty: as it is.");
  }
};

void check(const std::vector<std::string>& rest, const std::string& input, const std::string& output,
           const std::string& dtype, const char* usage) {
  if (!rest.empty())
    throw ConfigError(rule_got_fix("checkpoint: import and export take options alone.", rest[0], usage));
  if (input.empty() || output.empty())
    throw ConfigError(rule_got_fix("checkpoint: input and output folders must be named.",
                                   input.empty() ? "no input" : "no --output", usage));
  if (!dtype.empty() && dtype != "float32" && dtype != "bfloat16" && dtype != "float16")
    throw ConfigError(rule_got_fix("checkpoint: --dtype must be float32, bfloat16 or float16.", dtype));
}

/// Where the tokenizer's files of a checkpoint lie: beside it, or in its run's folder.
std::filesystem::path tokenizer_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path checkpoints = fs::absolute(checkpoint::find_checkpoint(folder)).parent_path();
  for (const fs::path& place : {checkpoints, checkpoints.parent_path()})
    for (const char* name : {"tokenizer.json", "vocab.txt", "encoder.json", "vocab.json"})
      if (fs::exists(place / name)) return place;
  return {};
}

}  // namespace

int checkpoint_import(const Args& args) {
  ImportFlags flags;
  check(config::parse_command_line(flags, args, kImportUsage), flags.from, flags.output, flags.dtype, kImportUsage);
  interchange::import_weights(flags.from, flags.output, {.dtype = flags.dtype});
  std::printf("%s: imported from %s\n", flags.output.c_str(), flags.from.c_str());
  return kDone;
}

int checkpoint_export(const Args& args) {
  ExportFlags flags;
  check(config::parse_command_line(flags, args, kExportUsage), flags.load, flags.output, flags.dtype, kExportUsage);
  const bool native = interchange::kind_of(flags.load) == interchange::FolderKind::Native;
  interchange::ExportOptions options;
  options.dtype = flags.dtype;
  options.tokenizer = native ? tokenizer_folder(flags.load) : std::filesystem::path(flags.load);
  interchange::export_hugging_face(*interchange::open_weights(flags.load), interchange::export_config(flags.load),
                                   flags.output, options);
  std::printf("%s: exported from %s\n", flags.output.c_str(), flags.load.c_str());
  return kDone;
}

}  // namespace megatron::app
