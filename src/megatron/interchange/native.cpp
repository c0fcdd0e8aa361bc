#include "megatron/interchange/native.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/config/run_config.h"
#include "megatron/data/samples/masking_vocabulary.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/interchange/import.h"
#include "megatron/text/texts.h"
#include "megatron/text/tokenizer.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

/// Damage is for the reading to report: an iteration's folder is ours whatever is missing in it.
bool is_native(const fs::path& folder) {
  return checkpoint::has_checkpoint(folder) || checkpoint::is_iteration_folder(folder);
}

/// Beside the checkpoints, in the run's folder above them, or where the run was written (train.out of its recipe).
fs::path companions_of(const fs::path& folder) {
  const fs::path checkpoints = fs::absolute(checkpoint::find_checkpoint(folder)).parent_path();
  for (const fs::path& place : {checkpoints, checkpoints.parent_path()})
    if (has_tokenizer(place)) return place;
  const fs::path run = checkpoint::saved_recipe(folder).train.out;
  return !run.empty() && has_tokenizer(run) ? run : fs::path();
}

/// The ids that the files beside the weights name; where they name none, those with which the documents of a GPT began
/// and ended or, of an encoder and a decoder, those of its samples.
TokenIds token_ids_beside(const fs::path& folder, const config::ModelTraits& kind) {
  const fs::path companions = companions_of(folder);
  if (companions.empty()) return {};
  TokenIds ids = read_token_ids(companions);
  if (!ids.empty()) return ids;
  const auto tokenizer = text::Tokenizer::load(companions);
  if (kind.encoder_decoder && tokenizer.token_to_id("<extra_id_0>")) {
    const data::MaskingVocabulary vocabulary = data::t5_vocabulary(tokenizer);
    ids["pad_token_id"] = std::to_string(vocabulary.pad);
    ids["eos_token_id"] = std::to_string(vocabulary.end);
    ids["decoder_start_token_id"] = std::to_string(vocabulary.begin);
  } else if (const auto end = tokenizer.find_eod_id(); end && kind.causal) {
    const auto opening = text::opening_of(tokenizer, {});
    ids["eos_token_id"] = std::to_string(*end);
    ids["bos_token_id"] = std::to_string(opening.empty() ? *end : opening.front());
  }
  return ids;
}

/// Of a GPT that tells texts apart, whose rows ended as documents do: transformers would take that end for padding and
/// look for the last token before it.
void leave_out_padding_that_ends(TokenIds& ids, const fs::path& folder, const config::ModelConfig& model) {
  const fs::path companions = companions_of(folder);
  if (model.head != "classes" || !config::model_traits(model.architecture).causal || companions.empty()) return;
  const auto end = text::Tokenizer::load(companions).find_eod_id();
  const std::vector<std::int64_t> pad = ids_of(ids, "pad_token_id");
  if (end && pad == std::vector<std::int64_t>{*end}) ids.erase("pad_token_id");
}

/// The weights, or those of the base with the adapters that the checkpoint holds.
std::unique_ptr<checkpoint::WeightSource> open_native(const fs::path& folder) {
  if (holds_adapter(folder)) return open_adapted(folder, checkpoint::saved_recipe(folder).lora.base);
  return checkpoint::open_checkpoint(folder);
}

families::FolderConfig config_of(const fs::path& folder) {
  families::FolderConfig config;
  if (holds_adapter(folder)) {
    open_native(folder);  // says what is wrong with the base
    return export_config(checkpoint::saved_recipe(folder).lora.base);
  }
  const fs::path found = checkpoint::find_checkpoint(folder);
  if (auto imported = imported_config(found)) return *std::move(imported);
  config.model = checkpoint::saved_recipe(folder).model;
  if (config.model.max_position_embeddings == 0)
    config.model.max_position_embeddings = checkpoint::saved_recipe(folder).data.seq_length;
  const auto source = checkpoint::open_checkpoint(folder);
  if (const auto* shape = source->shape("embedding.word_embeddings.weight"); shape != nullptr)
    config.model.vocab_size = shape->at(0);
  config.family = families::find_family(config.model);
  config.token_ids = token_ids_beside(folder, config::model_traits(config.model.architecture));
  leave_out_padding_that_ends(config.token_ids, folder, config.model);
  return config;
}

std::vector<std::string> labels_in(const fs::path& folder) {
  const auto metadata = checkpoint::read_manifest(checkpoint::find_checkpoint(folder)).metadata;
  const auto found = metadata.find(kLabels);
  if (found == metadata.end()) return {};
  const json names = try_parse_json(found->second).value_or(json());
  std::vector<std::string> labels;
  for (const json& name : names.is_array() ? names : json::array({json()})) {
    if (!name.is_string())
      throw ConfigError(rule_got_fix(concat(folder.string(), ": ", kLabels, " must be a list of names."), "others"));
    labels.push_back(name.get<std::string>());
  }
  return labels;
}

/// A whole number of the metadata, from 0 on.
std::int64_t counter(const checkpoint::Metadata& metadata, const std::string& name, const fs::path& folder) {
  const auto found = metadata.find(name);
  const json value = found == metadata.end() ? json() : try_parse_json(found->second).value_or(json());
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
    throw ConfigError(rule_got_fix(
        concat("The checkpoint in ", folder.string(), " must hold the counter \"", name, "\" of a training run."),
        found == metadata.end() ? "nothing" : printable(found->second.substr(0, 80)),
        "megatron checkpoint verify with its folder says what is wrong"));
  return value.get<std::int64_t>();
}

bool is_resumable(const fs::path& folder) {
  return checkpoint::read_manifest(checkpoint::find_checkpoint(folder)).metadata.contains("consumed_samples");
}

std::optional<TrainingState> training_in(const fs::path& folder, bool with_optimizer) {
  const fs::path found = checkpoint::find_checkpoint(folder);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(found);
  if (!manifest.metadata.contains("consumed_samples") || holds_adapter(folder)) return std::nullopt;
  const auto read = [&](const char* name) { return counter(manifest.metadata, name, found); };
  TrainingState state{.iteration = manifest.iteration,
                      .consumed_samples = read("consumed_samples"),
                      .schedule_samples = read("schedule_samples"),
                      .skipped_iterations = read("skipped_iterations"),
                      .validated_iteration = read("validated_iteration"),
                      .optimizer_steps = manifest.metadata.contains("optimizer_steps") ? read("optimizer_steps") : 0};
  state.recipe = checkpoint::saved_recipe(found);
  state.optimizer = state.recipe.optimizer.name;
  for (const std::string& kind : with_optimizer ? config::state_names(state.recipe.optimizer) : config::StateNames()) {
    const auto first = manifest.tensors.lower_bound(state_name(kind, ""));
    if (first != manifest.tensors.end() && first->first.starts_with(state_name(kind, ""))) state.kinds.push_back(kind);
  }
  state.tensors = checkpoint::open_checkpoint(found);
  return state;
}

}  // namespace

std::optional<families::FolderConfig> imported_config(const fs::path& found) {
  const auto metadata = checkpoint::read_manifest(found).metadata;
  const auto saved = metadata.find(kConfigKey);
  if (saved == metadata.end()) return std::nullopt;
  const auto text = try_parse_json(saved->second);
  if (!text || !text->is_string())
    throw ConfigError(rule_got_fix(concat(found.string(), ": ", kConfigKey, " must be a string."), "something else"));
  return families::parse_config(text->get<std::string>(), concat(found.string(), ": ", kConfigKey));
}

WeightFormat native_format() {
  return {.words = families::kNativeWords,
          .detect = is_native,
          .model = [](const fs::path& folder) { return checkpoint::saved_recipe(folder).model; },
          .config = config_of,
          .weights = open_native,
          .training = training_in,
          .resumable = is_resumable,
          .companions = companions_of,
          .labels = labels_in,
          .native = true};
}

}  // namespace megatron::interchange
