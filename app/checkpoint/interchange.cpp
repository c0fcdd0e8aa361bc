// megatron checkpoint import | export: weights of other programs, both ways.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/checkpoint/interchange.h"
#include "app/flags.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/config/options.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"

namespace megatron::app {
namespace {

/// The formats that export writes, or those of other programs that import reads.
std::vector<const interchange::WeightFormat*> formats(bool written) {
  std::vector<const interchange::WeightFormat*> chosen;
  for (const interchange::WeightFormat& format : interchange::weight_formats())
    if (written ? format.write != nullptr : format.weights != nullptr && !format.native) chosen.push_back(&format);
  return chosen;
}

std::string import_usage() {
  std::string text =
      "megatron checkpoint import --from DIR --output DIR [--dtype fp32|bf16|fp16] [--weights-only]\n\n"
      "Makes a checkpoint of this program from weights of another:";
  for (const auto* format : formats(false)) text += concat("\n  ", format->name, ": ", format->models);
  return text;
}

std::string export_usage() {
  return "megatron checkpoint export --load DIR --output PATH [--format FORMAT] [--dtype DTYPE]\n\n"
         "Writes the weights of a run, of a checkpoint or of any folder that can be imported for other programs.";
}

/// The names of what export writes: "huggingface or gguf".
std::string format_names() {
  std::string names;
  for (const auto* format : formats(true)) names += concat(names.empty() ? "" : " or ", format->name);
  return names;
}

struct ImportFlags {
  std::string from, output, dtype;
  bool weights_only = false;
  void visit(auto& v) {
    v("from", from, "Hugging Face folder, Megatron-LM's checkpoint folder, or a GGUF file.", config::Required());
    v("output", output,
      "Folder to write: checkpoints, with one of the iteration at which the run stood, of weights alone 0.",
      config::Required());
    v("dtype", dtype,
      "Data type of the weights: fp32, bf16 or fp16; empty: as they are. With it the weights alone are taken.");
    v("weights_only", weights_only, "Leave out the optimizer's state and the counters: a checkpoint of iteration 0.");
  }
};

struct ExportFlags {
  std::string load, output, format, dtype;
  bool weights_only = false;
  std::int64_t padded_vocab_size = 0;
  void visit(auto& v) {
    std::string outputs, dtypes = "fp32, bf16 or fp16";
    for (const auto* each : formats(true)) {
      outputs += concat(outputs.empty() ? "" : "; ", each->name, ": ", each->output);
      for (const char* more : each->dtypes) dtypes += concat("; ", each->name, " also ", more);
    }
    v("load", load, "Folder of a run, of its checkpoints, or one checkpoint.", config::Required());
    v("output", output, concat(outputs, "."));
    v("format", format,
      concat(format_names(), "; empty: by the ending of --output, else ", formats(true)[0]->name, "."));
    v("dtype", dtype, concat(dtypes, "; empty: as it is."));
    v("weights_only", weights_only, "torch_dist: leave out the state of training.");
    v("padded_vocab_size", padded_vocab_size,
      "torch_dist, of a BERT or a T5: rows of the vocabulary, as Megatron-LM pads it; 0: one for each token.");
  }
};

void check(const std::vector<std::string>& rest, const std::string& input, const std::string& output,
           const std::string& usage) {
  if (!rest.empty())
    throw ConfigError(rule_got_fix("checkpoint: import and export take options alone.", rest[0],
                                   concat("leave '", rest[0], "' out")));
  if (input.empty() || output.empty())
    throw ConfigError(rule_got_fix("checkpoint: input and output folders must be named.",
                                   input.empty() ? "no input" : "no --output", command_of(usage)));
}

/// config.json's name of a dtype that may be given by ours, or one of `more`.
std::string dtype_of(const std::string& name, const std::vector<const char*>& more = {}) {
  for (const auto& [ours, theirs] : {std::pair{"", ""}, {"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}})
    if (name == ours || name == theirs) return theirs;
  std::string names = "fp32, bf16 or fp16";
  for (const char* other : more) {
    if (name == other) return name;
    names += concat(", or ", other);
  }
  throw ConfigError(rule_got_fix(concat("checkpoint: --dtype must be ", names, "."), name,
                                 "leave --dtype out, and it stays as it is"));
}

/// The format to write: the one that is named, else that of the output's ending, else the first.
const interchange::WeightFormat& format_to_write(const ExportFlags& flags) {
  const auto written = formats(true);
  const auto is_meant = [&](const interchange::WeightFormat* format) {
    const std::string_view ending = format->ending;
    return flags.format.empty() ? !ending.empty() && flags.output.ends_with(ending) : flags.format == format->name;
  };
  const auto found = std::ranges::find_if(written, is_meant);
  if (found != written.end()) return **found;
  if (flags.format.empty()) return *written.front();
  throw ConfigError(rule_got_fix(concat("checkpoint: --format must be ", format_names(), "."), flags.format,
                                 concat("--format ", written.front()->name)));
}

}  // namespace

int checkpoint_import(const Args& args) {
  ImportFlags flags;
  const std::string usage = import_usage();
  check(config::parse_command_line(flags, args, usage), flags.from, flags.output, usage);
  const std::int64_t iteration = interchange::import_weights(
      flags.from, flags.output, {.dtype = dtype_of(flags.dtype), .weights_only = flags.weights_only});
  if (iteration > 0)
    print("{}: imported from {} at iteration {}\n", flags.output, flags.from, iteration);
  else
    print("{}: imported from {}\n", flags.output, flags.from);
  return kDone;
}

int checkpoint_export(const Args& args) {
  ExportFlags flags;
  const std::string usage = export_usage();
  check(config::parse_command_line(flags, args, usage), flags.load, flags.output, usage);
  const interchange::WeightFormat& format = format_to_write(flags);
  interchange::ExportOptions options;
  options.dtype = dtype_of(flags.dtype, format.dtypes);
  if (flags.padded_vocab_size != 0 && !format.pads_vocabulary)
    throw ConfigError(rule_got_fix("checkpoint: --padded-vocab-size needs --format torch_dist.",
                                   concat("--format ", format.name), "--padded-vocab-size 0 (the default)"));
  options.padded_vocab_size = flags.padded_vocab_size;
  options.tokenizer = interchange::companion_folder(flags.load);
  checkpoint::read_newest(flags.load, [&] {
    interchange::FolderConfig config = interchange::export_config(flags.load);
    const auto all = interchange::open_weights(flags.load);
    std::unique_ptr<checkpoint::WeightSource> rest;
    if (config.model.mtp_num_layers > 0 && (format.holds_depths == nullptr || !format.holds_depths(config))) {
      rest = interchange::without_depths(*all);
      write_line(stderr, concat("note: ", format.name, " has no place for depths of multi-token prediction: ",
                                config.model.mtp_num_layers, " stay in the checkpoint alone"));
      config.model.mtp_num_layers = 0;
    }
    if (config.labels.empty()) config.labels = interchange::labels_of(flags.load);
    const auto training = format.keeps_training && !flags.weights_only ? interchange::training_state_of(flags.load)
                                                                       : std::optional<interchange::TrainingState>();
    options.training = training ? &*training : nullptr;
    format.write(rest ? *rest : *all, config, flags.output, options);
  });
  print("{}: exported from {}\n", flags.output, flags.load);
  return kDone;
}

}  // namespace megatron::app
