#include "megatron/interchange/hugging_face/hugging_face.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/families/folder.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/hugging_face/fused_experts.h"
#include "megatron/interchange/hugging_face/safetensors_folder.h"
#include "megatron/interchange/mapped_source.h"

namespace megatron::interchange {
namespace {

/// transformers 5 computes with both where they differ, and 4 with the first alone.
void check_second_name(const checkpoint::WeightSource& raw, const families::Mapping& mapping,
                       const families::FolderConfig& config, const std::string& name) {
  const char* const ours = families::second_name_of(config, name);
  const auto found = ours == nullptr ? mapping.end() : mapping.find(ours);
  if (found == mapping.end() || found->second.pieces.size() != 1) return;
  const std::string& first = found->second.pieces[0].source;
  if (first == name || raw.shape(first) == nullptr || hold_the_same(raw, first, name)) return;
  const std::string out = concat("take \"", printable(name), "\" out of the file");
  throw ConfigError(rule_got_fix(
      concat(raw.name(), ": \"", printable(name), "\" must hold what \"", first, "\" does, to which it is tied."),
      "other numbers",
      families::is_tied_head(config, name) && !config::model_traits(config.model.architecture).encoder_decoder
          ? concat("\"tie_word_embeddings\": false in config.json computes with it; or else ", out)
          : out));
}

void check_all_are_used(const checkpoint::WeightSource& raw, const families::Mapping& mapping,
                        const families::FolderConfig& config) {
  const auto used = families::source_shapes(mapping);
  std::string unused;
  std::size_t count = 0;
  for (const std::string& name : raw.tensors()) {
    if (used.contains(name)) continue;
    if (config.family->needs_no_reading(config, name)) {
      check_second_name(raw, mapping, config, name);
      continue;
    }
    if (++count <= 5) unused += concat(count == 1 ? "" : ", ", "\"", printable(name), "\"");
  }
  if (count > 5) unused += concat(" and ", count - 5, " more");
  if (count > 0)
    throw ConfigError(
        rule_got_fix(concat(raw.name(), ": every tensor must belong to the model that config.json describes."), unused,
                     "merge adapters and undo quantization first; a model with other parts cannot be read"));
}

/// Whether what export_hugging_face() writes of the model has its depths of multi-token prediction.
bool folder_holds_depths(const families::FolderConfig& config) {
  const families::HfFamily* const family =
      config.family != nullptr ? config.family : families::find_family(config.model);
  if (family == nullptr || config.model.mtp_num_layers == 0) return false;
  const plan::ModelShape shape = families::shape_of(config.model);
  const auto has_none = [](const std::string&) { return false; };
  return family->written_table(shape, has_none)
      .contains(concat(shape.prediction_depth(0).prefix, plan::PredictionDepth::kProjection, ".weight"));
}

}  // namespace

families::FolderConfig read_config(const std::filesystem::path& folder) {
  families::FolderConfig config = families::read_config_json(folder);
  // transformers leaves depths of prediction out and keeps the field that counts them.
  const auto is_of_depth = [](const std::string& name) { return name.ends_with(".eh_proj.weight"); };
  if (config.model.mtp_num_layers > 0 && std::ranges::none_of(SafetensorsFolder(folder).tensors(), is_of_depth))
    config.model.mtp_num_layers = 0;
  return config;
}

std::unique_ptr<checkpoint::WeightSource> open_hugging_face(const std::filesystem::path& folder) {
  const families::FolderConfig config = read_config(folder);
  auto raw = std::make_shared<SafetensorsFolder>(folder);
  const std::int64_t layers = families::shape_of(config.model).num_layers;
  if (layers > static_cast<std::int64_t>(raw->tensors().size()))
    throw ConfigError(
        rule_got_fix(concat(folder.string(), ": must hold the tensors of ", layers, " layers, as config.json says."),
                     concat(raw->tensors().size(), " tensors")));
  std::shared_ptr<const checkpoint::WeightSource> tensors = std::move(raw);
  if (config.family->fuses_experts) tensors = apart_experts(std::move(tensors));
  families::Mapping mapping = config.family->table(
      families::shape_of(config.model), [&](const std::string& name) { return tensors->shape(name) != nullptr; });
  check_all_are_used(*tensors, mapping, config);
  return std::make_unique<MappedSource>(std::move(tensors), std::move(mapping));
}

WeightFormat hugging_face_format() {
  namespace fs = std::filesystem;
  return {.words = families::kHuggingFaceWords,
          .detect =
              [](const fs::path& folder) {
                return fs::is_regular_file(folder / "config.json") && !checkpoint::has_checkpoint(folder);
              },
          .model = [](const fs::path& folder) { return read_config(folder).model; },
          .config = read_config,
          .weights = open_hugging_face,
          .knows_training = false,
          .labels = [](const fs::path& folder) { return read_config(folder).labels; },
          .config_json = [](const fs::path& folder) { return read_file(folder / "config.json"); },
          .holds_depths = folder_holds_depths,
          .write = export_hugging_face};
}

}  // namespace megatron::interchange
