#include "megatron/interchange/import.h"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/interchange/hugging_face.h"
#include "megatron/interchange/megatron_torch.h"
#include "megatron/interchange/stored_tensor.h"
#include "megatron/interchange/weights.h"
#include "megatron/text/tokenizer.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

// In the metadata of an imported checkpoint: the config.json it came from, which says what a recipe cannot.
constexpr const char* kConfigKey = "hugging_face_config";

config::RunConfig recipe_of(const config::ModelConfig& model, const std::vector<checkpoint::ShardedTensor>& tensors) {
  config::RunConfig recipe;
  recipe.model = model;
  recipe.data.seq_length = model.max_position_embeddings;
  const at::ScalarType type = tensors.front().data.scalar_type();
  recipe.train.dtype = type == at::kBFloat16 ? "bf16"
                       : type == at::kHalf   ? "fp16"
                       : type == at::kDouble ? "fp64"
                                             : "fp32";
  return recipe;
}

/// The ids that end and begin a text for a tokenizer that was learned here.
void add_token_ids(const fs::path& checkpoints, FolderConfig& config) {
  for (const fs::path& folder : {checkpoints, checkpoints.parent_path()}) {
    if (!fs::exists(folder / "tokenizer.json")) continue;
    if (const auto id = text::Tokenizer::load(folder).token_to_id("<|endoftext|>"))
      config.token_ids["bos_token_id"] = config.token_ids["eos_token_id"] = std::to_string(*id);
    return;
  }
}

}  // namespace

void import_weights(const fs::path& folder, const fs::path& output, const ImportOptions& options) {
  if (checkpoint::has_checkpoint(output))
    throw ConfigError(
        rule_got_fix("import: the output folder must not hold checkpoints.", output.string(), "name another --output"));
  const auto source = open_weights(folder);
  const config::ModelConfig model = model_config_of(folder);
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const std::string& name : source->tensors()) {
    const std::vector<std::int64_t>& shape = *source->shape(name);
    const std::string dtype = options.dtype.empty() ? source->dtype(name) : options.dtype;
    const std::vector<std::int64_t> origin(shape.size(), 0);
    tensors.push_back(
        {name, shape, origin, at::empty(shape, scalar_type(dtype, source->name() + ": \"" + name + "\""))});
    source->read(name, {origin, shape}, tensors.back().data);
  }
  checkpoint::Metadata metadata = {
      {"recipe", nlohmann::json(config::save_toml(recipe_of(model, tensors))).dump()},
      {"imported_from", nlohmann::json(fs::absolute(folder).lexically_normal().filename().string()).dump()}};
  if (kind_of(folder) == FolderKind::HuggingFace)
    metadata[kConfigKey] = nlohmann::json(read_file(folder / "config.json")).dump();
  make_folder(output);
  copy_tokenizer_files(folder, output);
  checkpoint::save(output, 0, tensors, metadata, comm::Group());
}

FolderConfig export_config(const fs::path& folder) {
  FolderConfig config;
  if (kind_of(folder) == FolderKind::HuggingFace) return read_config(folder);
  if (kind_of(folder) == FolderKind::MegatronTorch) {
    config.model = megatron_model(folder);
    config.family = family_of(config.model);
    return config;
  }
  const fs::path found = checkpoint::find_checkpoint(folder);
  const auto metadata = checkpoint::read_manifest(found).metadata;
  if (const auto saved = metadata.find(kConfigKey); saved != metadata.end()) {
    const auto text = nlohmann::json::parse(saved->second, nullptr, false);
    if (!text.is_string())
      throw ConfigError(rule_got_fix(concat(found.string(), ": ", kConfigKey, " must be a text."), "something else"));
    return parse_config(text.get<std::string>(), concat(found.string(), ": ", kConfigKey));
  }
  config.model = checkpoint::saved_recipe(folder).model;
  if (config.model.max_position_embeddings == 0)
    config.model.max_position_embeddings = checkpoint::saved_recipe(folder).data.seq_length;
  const auto source = checkpoint::open_checkpoint(folder);
  if (const auto* shape = source->shape("embedding.word_embeddings.weight"); shape != nullptr)
    config.model.vocab_size = shape->at(0);
  config.family = family_of(config.model);
  add_token_ids(fs::absolute(found).parent_path(), config);
  return config;
}

}  // namespace megatron::interchange
