#include "megatron/train/troubles.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"

namespace megatron::train {

// No hardware fails on most ranks at once.
std::string advice_on_suspects(const nlohmann::ordered_json& suspects, int world_size,
                               std::optional<std::int64_t> agreed) {
  const bool certain = std::ranges::all_of(suspects, [](const auto& of) { return of["certain"].template get<bool>(); });
  const bool most = certain && suspects.size() > 2 && 2 * suspects.size() > static_cast<std::size_t>(world_size);
  const std::string checked =
      agreed ? concat("after iteration ", *agreed) : std::string("since the start of this process");
  return concat(most ? "on most ranks nothing repeats its results, so an operator or a library is to be looked at; "
                     : "have the machine tested and run without it; ",
                "what was saved ", checked, " was not checked: --load a checkpoint from before");
}

std::string reason_to_stop(const config::RunConfig& config, const RunState& state, const StepResult& result,
                           const std::string& kind, const std::string& batch) {
  const bool by_check = kind == "nan" && config.guard.on_nan == "auto";
  std::string skipped;  // these as before, and this one
  for (const std::int64_t iteration : config.guard.skip_iterations) skipped += concat(iteration, " ");
  return rule_got_fix(concat("iteration ", state.iteration, ": the loss must be finite and no spike (",
                             by_check ? "train.exit_on_nan" : "guard.on_" + kind, ")."),
                      concat("loss ", result.loss, ", gradient norm ", result.grad_norm, "; the batch is in ", batch),
                      concat("--guard.skip_iterations ", skipped, state.iteration, " skips it; megatron data cat ",
                             batch, " shows it"));
}

std::string warning_of_save(const RunState& state) {
  return concat("warning: iteration ", state.iteration, " is saved after ",
                state.nonfinite_steps == 1 ? "a step" : concat(state.nonfinite_steps, " steps in a row"),
                " whose loss or gradient is not finite: checkpoint.keep_last counts the checkpoints before it alone");
}

std::string failure_at_end(const RunState& state, const std::string& checkpoints) {
  return rule_got_fix(
      concat("iteration ", state.iteration, ": a run must end with a loss and a gradient that are finite."),
      concat("none in its last ", state.nonfinite_steps, " steps, which have changed nothing"),
      concat("a lower --lr and another --train.out, with --load of a checkpoint in ", checkpoints,
             " from before these steps; --train.exit_on_nan ends a run at the first of them"));
}

}  // namespace megatron::train
