#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/task_config.h"
#include "megatron/finetune/results.h"
#include "megatron/plan/rules.h"
#include "megatron/tasks/task.h"
#include "megatron/train/trainer.h"

namespace megatron::finetune {

/// A set besides the one by which the weights are chosen: the best ones predict it, and are measured by it where it has
/// labels.
struct FurtherSet {
  std::string name;              ///< set_names()
  std::filesystem::path folder;  ///< of its predictions: within a seed's folder, and within the ensemble's
  std::unique_ptr<const tasks::Task> task;
};

/// What all seeds of a recipe read: encoded once, read by every rank that is a thread of the process.
struct TaskData {
  tasks::TaskKind kind = {};
  std::unique_ptr<const tasks::Task> train, valid;
  std::string valid_name = {};
  std::vector<FurtherSet> further = {};

  tasks::TaskForm form() const { return tasks::task_form(kind); }
};

/// Steps of a run over `samples`: as many as `epochs` need, the last one with what is left.
std::int64_t steps_of(std::int64_t samples, double epochs, std::int64_t global_batch);

/// Whether the texts of two recipes have the same values: one that an earlier version has kept lacks options, and has
/// single names where there are lists now.
bool same_recipe(const std::string& kept, const std::string& asked);

/// The result that a seed has left in its folder; nothing where it is to be run, from its beginning or from where it
/// was interrupted. Throws ConfigError where the result, or what it would resume from, is of another origin than
/// `asked`.
std::optional<SeedResult> finished_result(const std::filesystem::path& seed_folder, const SeedOrigin& asked);

/// One run with one seed (train.seed of `run`) on one rank: takes the weights of checkpoint.load, trains, evaluates
/// every train.eval_interval steps and at the end, and keeps in train.out, the seed's folder, the best weights, what
/// they predict and metrics.jsonl. Every checkpoint.save_interval steps, and where a rank is asked to stop, saves in
/// the folder `state` what the next call resumes from, to the same result. `origin`: of the result. Returns the
/// result, which is written last; nothing where a rank was asked to stop. The first rank prints to stdout, to stderr
/// where `quiet`. Collective over `world`.
std::optional<SeedResult> run_seed(const plan::ResolvedRun& run, const config::TaskConfig& task, const TaskData& data,
                                   const SeedOrigin& origin, const comm::Group& world, at::Device device,
                                   const train::StopRequested& stop_requested, bool quiet);

}  // namespace megatron::finetune
