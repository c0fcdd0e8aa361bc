#include "megatron/generate/load.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/config/options.h"

namespace megatron::generate {
namespace {

/// A parameter without the rows that pad the vocabulary: their number depends on the layout, so checkpoints have none.
checkpoint::ShardedTensor unpadded(const parallel::Parameter& parameter, const plan::GptShape& shape) {
  const plan::ParameterSpec& spec = parameter.spec;
  checkpoint::ShardedTensor tensor{.name = spec.name,
                                   .global_shape = spec.shape,
                                   .offset = std::vector<std::int64_t>(spec.shape.size(), 0),
                                   .data = parameter.value.detach()};
  if (!spec.replicated()) tensor.offset.at(static_cast<std::size_t>(spec.split_dim)) = spec.offset;
  if (spec.name == "embedding.word_embeddings.weight" || spec.name == "output_layer.weight") {
    tensor.global_shape[0] = shape.vocab;
    tensor.offset[0] = std::min(tensor.offset[0], shape.vocab);
    tensor.data = tensor.data.narrow(0, 0, std::min(tensor.data.size(0), shape.vocab - tensor.offset[0]));
  }
  return tensor;
}

}  // namespace

config::RunConfig trained_recipe(const std::filesystem::path& folder) {
  const auto found = checkpoint::find_checkpoint(folder);
  const auto metadata = checkpoint::read_manifest(found).metadata;
  const auto entry = metadata.find("recipe");
  const auto recipe = entry == metadata.end() ? nlohmann::json() : nlohmann::json::parse(entry->second, nullptr, false);
  if (!recipe.is_string())
    throw ConfigError(
        rule_got_fix(concat("the checkpoint ", found.string(), " must hold the recipe of its run."), "none"));
  config::RunConfig config;
  config::read_toml(config::fields_of(config), recipe.get<std::string>(), "the recipe in " + found.string());
  return config;
}

void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::GptShape& shape) {
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const auto& parameter : parameters.all()) tensors.push_back(unpadded(*parameter, shape));
  checkpoint::load(folder, tensors);
}

}  // namespace megatron::generate
