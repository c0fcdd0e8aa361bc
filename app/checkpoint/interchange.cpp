// megatron checkpoint import | export: weights of other programs, both ways.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "app/checkpoint/interchange.h"
#include "app/checkpoint/interchange_options.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/gguf.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"

namespace megatron::app {
namespace {

/// The format of that name. Precondition: there is one.
const interchange::WeightFormat& format_called(std::string_view name) {
  return *std::ranges::find_if(interchange::weight_formats(),
                               [&](const interchange::WeightFormat& format) { return format.words.name == name; });
}

/// Says which end tokens of the model a GGUF file, which has two entries for them, does not name.
void note_ends_left_out(const std::filesystem::path& tokenizer, interchange::TokenIds ids, const std::string& output) {
  if (tokenizer.empty() || !is_gguf(output)) return;
  interchange::TokenIds all = interchange::read_token_ids(tokenizer);
  all.merge(ids);
  const auto written = interchange::ids_of(interchange::read_token_ids(output), "eos_token_id");
  std::string missing;
  for (const std::int64_t id : interchange::ids_of(all, "eos_token_id"))
    if (std::ranges::count(written, id) == 0) missing += concat(missing.empty() ? "" : ", ", id);
  if (!missing.empty())
    write_line(stderr, concat("note: gguf has no place for more than two end tokens: texts do not end at ", missing));
}

}  // namespace

int checkpoint_import(const Args& args) {
  const CheckpointImportFlags flags = checkpoint_import_flags(args);
  const std::int64_t iteration =
      interchange::import_weights(flags.from, flags.output, {.dtype = flags.dtype, .weights_only = flags.weights_only});
  if (iteration > 0)
    print("{}: imported from {} at iteration {}\n", flags.output, flags.from, iteration);
  else
    print("{}: imported from {}\n", flags.output, flags.from);
  return kDone;
}

int checkpoint_export(const Args& args) {
  const CheckpointExportFlags flags = checkpoint_export_flags(args);
  const interchange::WeightFormat& format = format_called(flags.format);
  interchange::ExportOptions options;
  options.dtype = flags.dtype;
  options.padded_vocab_size = flags.padded_vocab_size;
  options.tokenizer = interchange::companion_folder(flags.load);
  checkpoint::read_newest(flags.load, [&] {
    families::FolderConfig config = interchange::export_config(flags.load);
    const auto all = interchange::open_weights(flags.load);
    std::unique_ptr<checkpoint::WeightSource> rest;
    if (config.model.mtp_num_layers > 0 && (format.holds_depths == nullptr || !format.holds_depths(config))) {
      rest = interchange::without_depths(*all);
      write_line(stderr, concat("note: ", format.words.name, " has no place for depths of multi-token prediction: ",
                                config.model.mtp_num_layers, " stay in the checkpoint alone"));
      config.model.mtp_num_layers = 0;
    }
    if (config.labels.empty()) config.labels = interchange::labels_of(flags.load);
    const auto training = format.words.keeps_training && !flags.weights_only
                              ? interchange::training_state_of(flags.load)
                              : std::optional<interchange::TrainingState>();
    options.training = training ? &*training : nullptr;
    format.write(rest ? *rest : *all, config, flags.output, options);
    note_ends_left_out(options.tokenizer, config.token_ids, flags.output);
  });
  print("{}: exported from {}\n", flags.output, flags.load);
  return kDone;
}

}  // namespace megatron::app
