// megatron checkpoint import | export: weights of other programs, both ways.
#include <cstdio>
#include <string>
#include <utility>

#include "app/checkpoint_interchange.h"
#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/config/options.h"
#include "megatron/interchange/companions.h"
#include "megatron/interchange/hugging_face.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/labels.h"
#include "megatron/interchange/weights.h"

namespace megatron::app {
namespace {

constexpr const char* kImportUsage =
    "megatron checkpoint import --from DIR --output DIR [--dtype fp32|bf16|fp16]\n\n"
    "Makes a checkpoint of this program from a Hugging Face folder (GPT-2, Llama, Mistral and Qwen2 without sliding\n"
    "windows, T5, BERT also with the head of a task) or from Megatron-LM's checkpoint of format torch (GPT; any\n"
    "tensor and pipeline parallelism).";
constexpr const char* kExportUsage =
    "megatron checkpoint export --load DIR --output DIR [--dtype fp32|bf16|fp16]\n\n"
    "Writes the weights of a run, of a checkpoint or of any folder that can be imported as a Hugging Face folder.";

struct ImportFlags {
  std::string from, output, dtype;
  void visit(auto& v) {
    v("from", from, "Hugging Face folder, or Megatron-LM's folder of checkpoints.");
    v("output", output, "Folder that becomes one of checkpoints, with one of iteration 0.");
    v("dtype", dtype, "fp32, bf16 or fp16; empty: as it is.");
  }
};

struct ExportFlags {
  std::string load, output, dtype;
  void visit(auto& v) {
    v("load", load, "Folder of a run, of checkpoints, or one checkpoint.");
    v("output", output, "Hugging Face folder to write; must not exist, or be empty.");
    v("dtype", dtype, "fp32, bf16 or fp16; empty: as it is.");
  }
};

void check(const std::vector<std::string>& rest, const std::string& input, const std::string& output,
           const char* usage) {
  if (!rest.empty())
    throw ConfigError(rule_got_fix("checkpoint: import and export take options alone.", rest[0],
                                   concat("leave '", rest[0], "' out")));
  if (input.empty() || output.empty())
    throw ConfigError(rule_got_fix("checkpoint: input and output folders must be named.",
                                   input.empty() ? "no input" : "no --output", command_of(usage)));
}

/// config.json's name of a dtype that may be given by ours.
std::string dtype_of(const std::string& name) {
  for (const auto& [ours, theirs] : {std::pair{"", ""}, {"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}})
    if (name == ours || name == theirs) return theirs;
  throw ConfigError(rule_got_fix("checkpoint: --dtype must be fp32, bf16 or fp16.", name,
                                 "leave --dtype out, and it stays as it is"));
}

}  // namespace

int checkpoint_import(const Args& args) {
  ImportFlags flags;
  check(config::parse_command_line(flags, args, kImportUsage), flags.from, flags.output, kImportUsage);
  interchange::import_weights(flags.from, flags.output, {.dtype = dtype_of(flags.dtype)});
  std::printf("%s: imported from %s\n", flags.output.c_str(), flags.from.c_str());
  return kDone;
}

int checkpoint_export(const Args& args) {
  ExportFlags flags;
  check(config::parse_command_line(flags, args, kExportUsage), flags.load, flags.output, kExportUsage);
  interchange::ExportOptions options;
  options.dtype = dtype_of(flags.dtype);
  options.tokenizer = interchange::companion_folder(flags.load);
  checkpoint::read_newest(flags.load, [&] {
    interchange::FolderConfig config = interchange::export_config(flags.load);
    if (config.labels.empty()) config.labels = interchange::labels_of(flags.load);
    interchange::export_hugging_face(*interchange::open_weights(flags.load), config, flags.output, options);
  });
  std::printf("%s: exported from %s\n", flags.output.c_str(), flags.load.c_str());
  return kDone;
}

}  // namespace megatron::app
