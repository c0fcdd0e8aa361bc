#include "megatron/train/run_state.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/checkpoint/model_state.h"

namespace megatron::train {
namespace {

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
  const auto& shape = engine.stages.front().options().shape;
  const auto& store = engine.parameters;
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const optim::StateSlice& slice : engine.optimizer.state()) {
    const auto& spec = store.all().at(slice.parameter)->spec;
    const std::string name = slice.kind.empty() ? spec.name : "optimizer." + slice.kind + "." + spec.name;
    const auto data = slice.flat.detach().view(spec.local_shape());
    for (auto& tensor : checkpoint::model_tensor(name, spec, shape, data)) tensors.push_back(std::move(tensor));
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
