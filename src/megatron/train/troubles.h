#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/train/resume/run_state.h"
#include "megatron/train/step.h"

// What a run says of steps that went wrong.
namespace megatron::train {

/// Steps in a row whose loss or gradient is not finite, from which on no single batch is to blame.
inline constexpr std::int64_t kManyNonfiniteSteps = 2;

/// What to do about ranks that compute wrongly, of `world_size`. `agreed`: the last iteration whose checked gradients
/// are known to be right.
std::string advice_on_suspects(const nlohmann::ordered_json& suspects, int world_size,
                               std::optional<std::int64_t> agreed);

/// Why the run ends after the step of `result`, which is of this `kind` ("nan", "spike"). `batch`: where it lies.
std::string reason_to_stop(const config::RunConfig& config, const RunState& state, const StepResult& result,
                           const std::string& kind, const std::string& batch);

/// Of a run that is saved after steps without a finite loss or gradient (RunState::nonfinite_steps).
std::string warning_of_save(const RunState& state);
/// Of a run that has done its iterations, the last of them such steps. `checkpoints`: the folder of its own.
std::string failure_at_end(const RunState& state, const std::string& checkpoints);

}  // namespace megatron::train
