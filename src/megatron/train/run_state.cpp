#include "megatron/train/run_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/config/options.h"

namespace megatron::train {
namespace {

// Rows of the full tensor that mean something: for a matrix over the vocabulary its tokens, else all.
std::int64_t true_rows(const plan::ParameterSpec& spec, const plan::GptShape& shape) {
  const bool over_vocabulary = spec.name == "embedding.word_embeddings.weight" || spec.name == "output_layer.weight";
  return over_vocabulary ? shape.vocab : spec.shape.at(0);
}

checkpoint::ShardedTensor sharded(std::string name, const plan::ParameterSpec& spec, const plan::GptShape& shape,
                                  const at::Tensor& data) {
  checkpoint::ShardedTensor tensor{.name = std::move(name),
                                   .global_shape = spec.shape,
                                   .offset = std::vector<std::int64_t>(spec.shape.size(), 0),
                                   .data = data};
  if (!spec.replicated()) tensor.offset.at(static_cast<std::size_t>(spec.split_dim)) = spec.offset;
  const std::int64_t rows = true_rows(spec, shape);
  tensor.global_shape[0] = rows;
  tensor.offset[0] = std::min(tensor.offset[0], rows);
  tensor.data = data.narrow(0, 0, std::min(data.size(0), rows - tensor.offset[0]));
  return tensor;
}

std::int64_t counter(const checkpoint::Metadata& metadata, const std::string& name,
                     const std::filesystem::path& folder) {
  const auto found = metadata.find(name);
  const auto value = found == metadata.end() ? nlohmann::json() : nlohmann::json::parse(found->second, nullptr, false);
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
    throw ConfigError(rule_got_fix(
        concat("The checkpoint in ", folder.string(), " must hold the counter \"", name, "\" of a training run."),
        found == metadata.end() ? "nothing" : found->second));
  return value.get<std::int64_t>();
}

}  // namespace

std::vector<checkpoint::ShardedTensor> sharded_tensors(const Engine& engine) {
  const auto& shape = engine.model.options().shape;
  const auto& store = engine.parameters;
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const auto& slot : store.layout().slots) {
    const auto& parameter = *store.all().at(static_cast<std::size_t>(slot.parameter));
    const auto& spec = parameter.spec;
    const auto state = [&](const at::Tensor& flat) {
      return flat.narrow(0, slot.begin, spec.local_size()).view(spec.local_shape());
    };
    tensors.push_back(sharded(spec.name, spec, shape, parameter.value.detach()));
    tensors.push_back(sharded("optimizer.exp_avg." + spec.name, spec, shape, state(engine.optimizer.exp_avg())));
    tensors.push_back(sharded("optimizer.exp_avg_sq." + spec.name, spec, shape, state(engine.optimizer.exp_avg_sq())));
  }
  return tensors;
}

void save_run(const std::filesystem::path& folder, const RunState& state, const Engine& engine,
              const std::string& recipe, int keep_last) {
  const checkpoint::Metadata metadata = {
      {"consumed_samples", std::to_string(state.consumed_samples)},
      {"schedule_samples", std::to_string(state.schedule_samples)},
      {"skipped_iterations", std::to_string(state.skipped_iterations)},
      {"validated_iteration", std::to_string(state.validated_iteration)},
      {"optimizer_steps", std::to_string(engine.optimizer.steps())},
      {"recipe", nlohmann::json(recipe).dump()},
  };
  checkpoint::save(folder, state.iteration, sharded_tensors(engine), metadata, engine.context.world(), keep_last);
}

config::RunConfig saved_recipe(const std::filesystem::path& folder) {
  const auto found = checkpoint::find_checkpoint(folder);
  const auto metadata = checkpoint::read_manifest(found).metadata;
  const auto entry = metadata.find("recipe");
  const auto recipe = entry == metadata.end() ? nlohmann::json() : nlohmann::json::parse(entry->second, nullptr, false);
  if (!recipe.is_string())
    throw ConfigError(
        rule_got_fix(concat("The checkpoint ", found.string(), " must hold the recipe of its run."), "none"));
  config::RunConfig config;
  config::read_toml(config::fields_of(config), recipe.get<std::string>(), "the recipe in " + found.string());
  return config;
}

RunState load_run(const std::filesystem::path& folder, Engine& engine) {
  const auto loaded = checkpoint::load(folder, sharded_tensors(engine));
  const auto read = [&](const char* name) { return counter(loaded.metadata, name, folder); };
  engine.optimizer.set_steps(read("optimizer_steps"));
  return {.iteration = loaded.iteration,
          .consumed_samples = read("consumed_samples"),
          .schedule_samples = read("schedule_samples"),
          .skipped_iterations = read("skipped_iterations"),
          .validated_iteration = read("validated_iteration")};
}

}  // namespace megatron::train
