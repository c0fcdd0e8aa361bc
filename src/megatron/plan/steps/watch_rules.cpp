// The rules of what looks after a run: its guard, checkpoints and logs.
#include <algorithm>

#include "megatron/plan/rule_list.h"
#include "megatron/plan/steps/faults.h"

namespace megatron::plan {

void check_guard(const config::GuardConfig& guard, Rules& rules) {
  rules.choices("guard", guard);
  rules.range("guard.spike_factor", guard.spike_factor, 1.0, 1e6);
  rules.range<std::int64_t>("guard.spike_window", guard.spike_window, 2, 1000);
  rules.range<std::int64_t>("guard.rollback_batches", guard.rollback_batches, 1, kMaxSteps);
  rules.range<std::int64_t>("guard.max_rollbacks", guard.max_rollbacks, 0, 1000);
  rules.range<std::int64_t>("guard.rerun_interval", guard.rerun_interval, 0, kMaxSteps);
  rules.range("guard.hang_dump_s", guard.hang_dump_s, 0.0, 1e7);
  const auto bad = std::ranges::find_if(guard.skip_iterations, [](std::int64_t i) { return i < 1 || i > kMaxSteps; });
  rules.require(bad == guard.skip_iterations.end() && guard.skip_iterations.size() <= 10'000,
                concat("guard.skip_iterations takes at most 10000 iterations from 1 to ", kMaxSteps, "."),
                bad == guard.skip_iterations.end() ? concat(guard.skip_iterations.size(), " of them") : concat(*bad),
                "--guard.skip_iterations 1");
  rules.attempt([&] { faults_of(guard.inject_faults); });
}

void check_saving(const config::CheckpointConfig& checkpoint, const config::LogConfig& log, Rules& rules) {
  rules.at_least("checkpoint.save_interval", checkpoint.save_interval, -1);
  rules.at_least("checkpoint.keep_last", checkpoint.keep_last, 0);
  rules.at_least("checkpoint.keep_every", checkpoint.keep_every, 0);
  rules.range<std::int64_t>("checkpoint.memory_interval", checkpoint.memory_interval, 0, kMaxSteps);
  rules.require(checkpoint.memory_interval == 0 || checkpoint.save_interval >= 0,
                "checkpoint.memory_interval needs checkpoints: memory is freed when the run has saved its last.",
                concat("checkpoint.save_interval ", checkpoint.save_interval), "--save-interval 0");
  rules.require(!checkpoint.finetune || !checkpoint.load.empty(),
                "checkpoint.finetune needs checkpoint.load, the folder of the weights.", "none", "--load FOLDER");
  rules.range<std::int64_t>("checkpoint.ckpt_step", checkpoint.ckpt_step, 0, kMaxSteps);
  rules.require(checkpoint.ckpt_step <= 0 || !checkpoint.load.empty(),
                "checkpoint.ckpt_step needs checkpoint.load, the folder of that iteration's checkpoint.", "none",
                "--load FOLDER");
  rules.range<std::int64_t>("checkpoint.override_ckpt_iteration", checkpoint.override_ckpt_iteration, -1, kMaxSteps);
  rules.require(checkpoint.override_ckpt_iteration < 0 || !checkpoint.finetune,
                "checkpoint.override_ckpt_iteration excludes checkpoint.finetune, which begins at iteration 0.",
                concat(checkpoint.override_ckpt_iteration), "leave --override-ckpt-iteration out");
  rules.require(checkpoint.override_ckpt_iteration < 0 || !checkpoint.load.empty(),
                "checkpoint.override_ckpt_iteration needs checkpoint.load, the folder of the checkpoint.", "none",
                "--load FOLDER");
  rules.require(!checkpoint.no_load_optim || !checkpoint.load.empty(),
                "checkpoint.no_load_optim needs checkpoint.load: a run's own checkpoint comes with its optimizer.",
                "none", "--load FOLDER, and another --train.out");
  rules.choices("log", log);
  rules.at_least("log.interval", log.interval, 1);
  rules.at_least("log.tensorboard_interval", log.tensorboard_interval, 1);
  rules.at_least("log.memory_interval", log.memory_interval, 0);
  rules.range("log.heartbeat_s", log.heartbeat_s, 0.0, 1e6);
  rules.require(log.timing_level >= 0 && log.timing_level <= 2, "log.timing_level must be 0, 1 or 2.",
                concat(log.timing_level), "--timing-log-level 1");
  rules.require(log.trace.empty() || log.trace.ends_with(".json"),
                "log.trace must be a file that ends in .json: its picture has the same name with .svg.",
                "'" + log.trace + "'", "--log.trace trace.json");
  rules.at_least("log.profile_step_start", log.profile_step_start, 0);
  rules.require(!log.profile || log.profile_step_start < log.profile_step_end,
                "log.profile_step_end must be greater than log.profile_step_start.",
                concat(log.profile_step_start, " and ", log.profile_step_end),
                concat("--profile-step-end ", log.profile_step_start + 2));
}

void check_named_ranks(const config::LogConfig& log, int world_size, Rules& rules) {
  if (!log.profile || !rules.hold()) return;
  const auto bad =
      std::ranges::find_if(log.profile_ranks, [&](std::int64_t rank) { return rank < 0 || rank >= world_size; });
  rules.require(bad == log.profile_ranks.end(),
                concat("log.profile_ranks must be ranks of the run, from 0 to ", world_size - 1, "."),
                bad == log.profile_ranks.end() ? "" : concat(*bad), "--profile-ranks 0 (the default)");
}

}  // namespace megatron::plan
