#include "megatron/interchange/import.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/checkpoint/save/streamed.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/data/samples/masking_vocabulary.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/native.h"
#include "megatron/interchange/stored_tensor.h"
#include "megatron/interchange/weights.h"
#include "megatron/text/tokenizer.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLeaveOut = "copy the whole folder again, or leave the optimizer's state out: --weights-only";

config::RunConfig recipe_of(const config::ModelConfig& model, at::ScalarType type) {
  config::RunConfig recipe;
  recipe.model = model;
  recipe.data.seq_length = model.max_position_embeddings;
  recipe.train.dtype = type == at::kBFloat16 ? "bf16"
                       : type == at::kHalf   ? "fp16"
                       : type == at::kDouble ? "fp64"
                                             : "fp32";
  return recipe;
}

/// The ids that belong to the weights in `folder`: of the files beside them, else of the config.json that they were
/// imported from, and of adapters that have none those of their base.
struct KnownIds {
  TokenIds ids;
  bool trained_here = false;
};

KnownIds known_ids(const fs::path& folder) {
  const bool native = format_of(folder).native;
  const fs::path companions = native ? companion_folder(folder) : folder;
  TokenIds ids = companions.empty() ? TokenIds() : read_token_ids(companions);
  std::optional<families::FolderConfig> imported;
  if (native) imported = imported_config(checkpoint::find_checkpoint(folder));
  if (!ids.contains("eos_token_id") && imported) ids = imported->token_ids;
  if (!ids.contains("eos_token_id") && holds_adapter(folder)) {
    const std::string base = adapter_base(folder);
    if (!base.empty() && !holds_adapter(base))
      return known_ids(base);  // what is wrong with another is said where it is opened
  }
  return {std::move(ids), native && !imported};
}

/// The tensors of another program's folder.
class SourceStream final : public checkpoint::TensorStream {
 public:
  explicit SourceStream(const checkpoint::WeightSource& source) : source_(source) {}
  void read(const checkpoint::HeldSlice& slice, const checkpoint::Box& box, const at::Tensor& into) const override {
    source_.read(slice.name, box, into);
  }

 private:
  const checkpoint::WeightSource& source_;
};

/// A tensor as it is stored, whole.
checkpoint::HeldSlice whole_tensor(const checkpoint::WeightSource& source, const std::string& name) {
  const std::vector<std::int64_t>& shape = *source.shape(name);
  const auto type = scalar_type(source.dtype(name), source.name() + ": \"" + name + "\"");
  return {name, checkpoint::dtype_name(type), shape, {std::vector<std::int64_t>(shape.size(), 0), shape}};
}

/// The files that belong to the weights in `folder`; of adapters that have none those of their base, and its ends of
/// texts where the adapters' files name none.
void copy_files_beside(const fs::path& folder, const fs::path& output) {
  constexpr const char* kEnds = "generation_config.json";
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 24;
  const auto beside = [](const fs::path& model) {
    const fs::path companions = companion_folder(model);
    return companions.empty() ? model : companions;
  };
  copy_companions(beside(folder), output);
  if (!holds_adapter(folder) || fs::exists(output / kEnds)) return;
  const fs::path of_base = beside(adapter_base(folder)) / kEnds;
  if (fs::is_regular_file(of_base)) write_file(output / kEnds, read_file(of_base, kMaxBytes));
}

std::int64_t import_training(const fs::path& folder, const fs::path& output, const TrainingState& training) {
  std::vector<checkpoint::HeldSlice> tensors;
  for (const std::string& name : training.tensors->tensors()) {
    tensors.push_back(whole_tensor(*training.tensors, name));
    for (const std::string& kind : training.kinds)
      if (const std::string state = state_name(kind, name); training.tensors->shape(state) != nullptr)
        tensors.push_back(whole_tensor(*training.tensors, state));
  }
  checkpoint::Metadata metadata = training.metadata();
  metadata["imported_from"] = nlohmann::json(fs::absolute(folder).lexically_normal().filename().string()).dump();
  make_folder(output);
  const checkpoint::FolderLock lock(output, "name another --output");
  copy_files_beside(folder, output);
  write_file(output / "recipe.toml", config::save_toml(training.recipe));
  checkpoint::save_streamed(output, training.iteration, metadata, {tensors}, SourceStream(*training.tensors));
  return training.iteration;
}

}  // namespace

std::int64_t import_weights(const fs::path& folder, const fs::path& output, const ImportOptions& options) {
  checkpoint::check_new_folder(output, "checkpoint import");
  if (!options.weights_only && options.dtype.empty())
    if (const auto training = with_fix(kLeaveOut, [&] { return training_state_of(folder); });
        training && !format_of(folder).native)
      return import_training(folder, output, *training);
  const auto source = open_weights(folder);
  const config::ModelConfig model = model_config_of(folder);
  std::vector<checkpoint::HeldSlice> tensors;
  for (const std::string& name : source->tensors()) {
    tensors.push_back(whole_tensor(*source, name));
    if (!options.dtype.empty()) tensors.back().dtype = checkpoint::dtype_name(scalar_type(options.dtype, "--dtype"));
  }
  checkpoint::Metadata metadata = {
      {"recipe",
       nlohmann::json(config::save_toml(recipe_of(model, checkpoint::dtype_of(tensors.front().dtype)))).dump()},
      {"imported_from", nlohmann::json(fs::absolute(folder).lexically_normal().filename().string()).dump()}};
  const fs::path whole = holds_adapter(folder) ? fs::path(adapter_base(folder)) : folder;
  if (const auto& config_json = format_of(whole).config_json)
    metadata[kConfigKey] = nlohmann::json(config_json(whole)).dump();
  make_folder(output);
  const checkpoint::FolderLock lock(output, "name another --output");
  copy_files_beside(folder, output);
  checkpoint::save_streamed(output, 0, metadata, {tensors}, SourceStream(*source));
  return 0;
}

std::vector<std::int64_t> end_tokens(const fs::path& folder, const text::Tokenizer& tokenizer) {
  const auto [ids, trained_here] = known_ids(folder);
  std::vector<std::int64_t> ends = ids_of(ids, "eos_token_id");
  if (!ends.empty() && !trained_here) return ends;
  for (const auto& end : {tokenizer.find_eod_id(), tokenizer.token_to_id("<|endoftext|>")})
    if (end && std::ranges::count(ends, *end) == 0) ends.push_back(*end);
  return ends;
}

AnswerFrame answer_frame(const fs::path& folder, const text::Tokenizer& tokenizer) {
  const auto [ids, trained_here] = known_ids(folder);
  const auto starts = ids_of(ids, "decoder_start_token_id"), ends = ids_of(ids, "eos_token_id");
  if (trained_here || starts.empty() || ends.empty()) {
    const data::MaskingVocabulary vocabulary = data::t5_vocabulary(tokenizer);
    return {.start = vocabulary.begin, .ends = {vocabulary.end}, .text_end = std::nullopt};
  }
  AnswerFrame frame{.start = starts.front(), .ends = ends, .text_end = std::nullopt};
  if (const auto end = tokenizer.token_to_id("</s>"); end && std::ranges::count(ends, *end) > 0) frame.text_end = *end;
  return frame;
}

families::FolderConfig export_config(const fs::path& folder) { return format_of(folder).config(folder); }

}  // namespace megatron::interchange
