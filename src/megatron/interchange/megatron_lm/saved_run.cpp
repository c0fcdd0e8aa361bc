#include "megatron/interchange/megatron_lm/saved_run.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/optimizers.h"
#include "megatron/interchange/megatron_lm/recipe.h"
#include "megatron/plan/steps/batch_schedule.h"

namespace megatron::interchange {
namespace {

using Kind = PickleNode::Kind;

/// A number, or a tensor of one.
std::optional<double> number_of(const TorchFile& file, const PickleNode* node) {
  if (node == nullptr) return std::nullopt;
  if (node->kind == Kind::Integer) return static_cast<double>(node->integer);
  if (node->kind == Kind::Float) return node->number;
  if (node->kind != Kind::Tensor) return std::nullopt;
  const StoredTensor stored = file.tensor(*node, "a number");
  std::int64_t elements = 1;
  for (const std::int64_t size : stored.shape) elements *= size == 1 ? 1 : 2;
  if (elements != 1) return std::nullopt;
  const at::Tensor value = at::empty(stored.shape, at::kDouble);
  read_stored(stored, {std::vector<std::int64_t>(stored.shape.size(), 0), stored.shape}, value, file.name());
  return *value.const_data_ptr<double>();
}

}  // namespace

std::optional<std::int64_t> count_of(const TorchFile& file, const PickleNode* dict, const char* name) {
  if (dict == nullptr) return std::nullopt;
  const auto number = number_of(file, file.values().find(*dict, name));
  if (!number || !(*number >= 0) || *number > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

bool keeps_state(const config::OptimizerConfig& optimizer, const std::string& kind, bool is_layer_matrix) {
  const config::StateNames kept = config::optimizer_info(optimizer.name).state(optimizer, is_layer_matrix);
  return std::ranges::find(kept, kind) != kept.end();
}

std::optional<std::int64_t> optimizer_steps(const TorchFile& file, const PickleNode* optimizer) {
  const Pickle& values = file.values();
  for (int depth = 0; optimizer != nullptr && depth < 2; ++depth, optimizer = values.find(*optimizer, "optimizer")) {
    const PickleNode* const state = values.find(*optimizer, "state");
    if (const auto steps = count_of(file, state, "common_step")) return steps;
    const PickleNode* const groups = values.find(*optimizer, "param_groups");
    if (groups != nullptr && groups->kind == Kind::List)
      for (const std::uint32_t group : groups->items)
        if (const auto steps = count_of(file, &values[group], "step")) return steps;
    if (state != nullptr && state->kind == Kind::Dict && state->items.size() >= 2)
      if (const auto steps = count_of(file, &values[state->items[1]], "step")) return steps;
  }
  return std::nullopt;
}

checkpoint::Metadata loss_scale_of(const TorchFile& file, const PickleNode* scaler) {
  const Pickle& values = file.values();
  if (scaler == nullptr) return {};
  const auto scale = number_of(file, values.find(*scaler, "scale"));
  const auto clean = count_of(file, scaler, "growth_tracker");
  const auto left = number_of(file, values.find(*scaler, "hysteresis_tracker"));
  if (!scale || !std::isfinite(*scale) || *scale <= 0 || !clean || !left || std::abs(*left) > 0x1p53) return {};
  return {{"loss_scale", concat(*scale)},
          {"loss_scale_clean_steps", std::to_string(*clean)},
          {"loss_scale_hysteresis", std::to_string(static_cast<std::int64_t>(*left))}};
}

TrainingState counters_of(const TorchFile& file, const PickleNode& args, const config::ModelConfig& model,
                          std::int64_t iteration) {
  const Pickle& values = file.values();
  const PickleNode* const scheduler = values.find(file.root(), "opt_param_scheduler");
  TrainingState state{.iteration = iteration};
  state.recipe = recipe_of_arguments(values, args, scheduler, model, file.name());
  state.optimizer = state.recipe.optimizer.name;
  const std::int64_t batch = state.recipe.train.global_batch_size;
  const auto consumed = count_of(file, &args, "consumed_train_samples");
  state.consumed_samples =
      consumed ? *consumed
               : plan::BatchSchedule(batch, 1, state.recipe.schedule.rampup_batch_size).samples_of(iteration);
  // Ahead of the samples where --override-ckpt-iteration has given the iteration another number there.
  state.schedule_samples = count_of(file, scheduler, "num_steps").value_or(state.consumed_samples);
  if (const std::int64_t interval = state.recipe.train.eval_interval; interval > 0)
    state.validated_iteration = iteration / interval * interval;
  return state;
}

}  // namespace megatron::interchange
