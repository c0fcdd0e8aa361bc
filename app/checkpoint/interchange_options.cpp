#include "app/checkpoint/interchange_options.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/families/format_words.h"

namespace megatron::app {
namespace {

/// The formats that export writes, or those of other programs that import reads.
std::vector<const families::FormatWords*> formats(bool written) {
  std::vector<const families::FormatWords*> chosen;
  for (const families::FormatWords& format : families::kFormatWords)
    if (*(written ? format.output : format.models) != '\0') chosen.push_back(&format);
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

void check_folders(const std::vector<std::string>& rest, const std::string& input, const std::string& output,
                   const std::string& usage) {
  if (!rest.empty())
    throw ConfigError(rule_got_fix("checkpoint: import and export take options alone.", rest[0],
                                   concat("leave '", rest[0], "' out")));
  if (input.empty() || output.empty())
    throw ConfigError(rule_got_fix("checkpoint: input and output folders must be named.",
                                   input.empty() ? "no input" : "no --output", command_of(usage)));
}

/// config.json's name of a dtype that may be given by ours, or one of `more`.
std::string dtype_in_config(const std::string& name, std::span<const char* const> more = {}) {
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
const families::FormatWords& format_to_write(const CheckpointExportFlags& flags) {
  const auto written = formats(true);
  const auto is_meant = [&](const families::FormatWords* format) {
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

std::string export_outputs() {
  std::string outputs;
  for (const auto* format : formats(true))
    outputs += concat(outputs.empty() ? "" : "; ", format->name, ": ", format->output);
  return outputs + ".";
}

std::string export_formats() {
  return concat(format_names(), "; empty: by the ending of --output, else ", formats(true)[0]->name, ".");
}

std::string export_dtypes() {
  std::string dtypes = "fp32, bf16 or fp16";
  for (const auto* format : formats(true))
    for (const char* more : format->dtypes) dtypes += concat("; ", format->name, " also ", more);
  return dtypes + "; empty: as it is.";
}

CheckpointImportFlags checkpoint_import_flags(const Args& args) {
  CheckpointImportFlags flags;
  const std::string usage = import_usage();
  check_folders(config::parse_command_line(flags, args, usage), flags.from, flags.output, usage);
  flags.dtype = dtype_in_config(flags.dtype);
  return flags;
}

CheckpointExportFlags checkpoint_export_flags(const Args& args) {
  CheckpointExportFlags flags;
  const std::string usage = export_usage();
  check_folders(config::parse_command_line(flags, args, usage), flags.load, flags.output, usage);
  const families::FormatWords& format = format_to_write(flags);
  flags.dtype = dtype_in_config(flags.dtype, format.dtypes);
  if (flags.padded_vocab_size != 0 && !format.pads_vocabulary)
    throw ConfigError(rule_got_fix("checkpoint: --padded-vocab-size needs --format torch_dist.",
                                   concat("--format ", format.name), "--padded-vocab-size 0 (the default)"));
  flags.format = format.name;
  return flags;
}

}  // namespace megatron::app
