#include "megatron/checkpoint/model_state.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/slices/placement.h"
#include "megatron/config/options.h"

namespace megatron::checkpoint {
namespace {

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

}  // namespace

std::vector<std::int64_t> true_shape(const plan::ParameterSpec& spec, const plan::ModelShape& shape) {
  std::vector<std::int64_t> result = spec.shape;
  const bool over_vocabulary =
      spec.name == "embedding.word_embeddings.weight" || spec.name.starts_with("output_layer.");
  if (over_vocabulary) result.at(0) = shape.vocab;
  return result;
}

std::vector<ShardedTensor> model_range(const std::string& name, const plan::ParameterSpec& spec,
                                       const plan::ModelShape& shape, const at::Tensor& flat, std::int64_t begin) {
  const std::vector<std::int64_t> global_shape = true_shape(spec, shape),
                                  strides = row_major_strides(spec.local_shape());
  std::vector<ShardedTensor> tensors;
  for (PlacedBox& placed : place(spec, global_shape.at(0), begin, begin + flat.numel()))
    tensors.push_back({.name = name,
                       .global_shape = global_shape,
                       .offset = std::move(placed.box.offset),
                       .data = flat.as_strided(placed.box.shape, strides, flat.storage_offset() + placed.first - begin),
                       .is_copy = placed.is_copy || spec.shared_copy});
  return tensors;
}

std::vector<ShardedTensor> model_tensor(const std::string& name, const plan::ParameterSpec& spec,
                                        const plan::ModelShape& shape, const at::Tensor& data) {
  return model_range(name, spec, shape, data.view({-1}), 0);
}

config::RunConfig saved_recipe(const std::filesystem::path& folder) {
  const auto found = find_checkpoint(folder);
  const auto metadata = read_manifest(found).metadata;
  const auto entry = metadata.find("recipe");
  const auto recipe = entry == metadata.end() ? std::nullopt : try_parse_json(entry->second);
  if (!recipe || !recipe->is_string())
    throw ConfigError(rule_got_fix(concat("The checkpoint ", found.string(), " must hold the recipe of its run."),
                                   "none",
                                   "name a checkpoint that megatron train or megatron checkpoint import has written"));
  config::RunConfig config;
  config::read_toml(config::fields_of(config), recipe->get<std::string>(), "the recipe in " + found.string());
  return config;
}

}  // namespace megatron::checkpoint
