#include "megatron/checkpoint/model_state.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/config/options.h"

namespace megatron::checkpoint {
namespace {

// Rows of the full tensor that mean something: for a matrix over the vocabulary its tokens, else all.
std::int64_t true_rows(const plan::ParameterSpec& spec, const plan::GptShape& shape) {
  const bool over_vocabulary = spec.name == "embedding.word_embeddings.weight" || spec.name == "output_layer.weight";
  return over_vocabulary ? shape.vocab : spec.shape.at(0);
}

}  // namespace

std::vector<ShardedTensor> model_tensor(const std::string& name, const plan::ParameterSpec& spec,
                                        const plan::GptShape& shape, const at::Tensor& data) {
  const std::int64_t rows = true_rows(spec, shape);
  std::vector<ShardedTensor> tensors;
  const auto add = [&](const at::Tensor& part, std::int64_t offset) {
    ShardedTensor tensor{.name = name,
                         .global_shape = spec.shape,
                         .offset = std::vector<std::int64_t>(spec.shape.size(), 0),
                         .data = part};
    tensor.offset.at(static_cast<std::size_t>(std::max(spec.split_dim, 0))) = offset;
    tensor.global_shape[0] = rows;
    tensor.offset[0] = std::min(tensor.offset[0], rows);
    tensor.data = part.narrow(0, 0, std::min(part.size(0), rows - tensor.offset[0]));
    tensors.push_back(std::move(tensor));
  };
  if (spec.replicated()) add(data, 0);
  std::int64_t begin = 0;
  for (const plan::Piece& piece : spec.pieces) {
    add(data.narrow(spec.split_dim, begin, piece.length), piece.offset);
    begin += piece.length;
  }
  return tensors;
}

config::RunConfig saved_recipe(const std::filesystem::path& folder) {
  const auto found = find_checkpoint(folder);
  const auto metadata = read_manifest(found).metadata;
  const auto entry = metadata.find("recipe");
  const auto recipe = entry == metadata.end() ? nlohmann::json() : nlohmann::json::parse(entry->second, nullptr, false);
  if (!recipe.is_string())
    throw ConfigError(
        rule_got_fix(concat("The checkpoint ", found.string(), " must hold the recipe of its run."), "none"));
  config::RunConfig config;
  config::read_toml(config::fields_of(config), recipe.get<std::string>(), "the recipe in " + found.string());
  return config;
}

}  // namespace megatron::checkpoint
