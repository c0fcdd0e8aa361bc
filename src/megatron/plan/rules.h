#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/ranks/rank_grid.h"
#include "megatron/plan/stages.h"
#include "megatron/plan/steps/batch_schedule.h"
#include "megatron/plan/steps/learning_rate.h"
#include "megatron/plan/steps/weight_decay.h"
#include "megatron/schedule/generate.h"

namespace megatron::plan {

/// The model that distill.teacher names, as its folder describes it.
struct TeacherNetwork {
  config::ModelConfig network;
  ModelShape shape;
};

/// What a configuration is checked against besides itself. 0 and false: not known, or not needed.
struct Facts {
  int launched_world_size = 0;       ///< ranks that torchrun, mpirun or Slurm has started
  std::int64_t tokenizer_vocab = 0;  ///< tokens of the tokenizer that need a row
  bool needs_data = false;           ///< the job reads data.data_path and data.tokenizer
  std::int64_t resumed_batch = 0;    ///< train.global_batch_size of the run that is resumed
  std::int64_t resumed_samples = 0;  ///< that it has trained on
  /// What the file says that parallel.pp_schedule names, where that is no schedule's name (recipe/resolve.h reads it).
  std::optional<std::string> schedule_file = {};
  /// The model of distill.teacher, where it is known (recipe/resolve.h reads it).
  std::optional<TeacherNetwork> teacher = {};
  /// Of a job that has only some of the options, or calls them otherwise: its flags by the paths of the options; a
  /// section's name and '.' stands for all of the section. The fixes of errors name no other. Empty: it has all.
  std::map<std::string, std::string> flags = {};
  /// The fix of such a job where no value of its options mends a rule.
  std::string otherwise = "other values; --help lists this job's options";
  /// Sets again what such a job derives from its flags, where a fix that is tried has changed them.
  std::function<void(config::RunConfig&)> complete = {};
};

/// A consistent configuration, with all that follows from it.
struct ResolvedRun {
  /// As given, with ffn_hidden_size, max_position_embeddings, vocab_size and global_batch_size filled in where they
  /// were 0. Sizes that belong to a launch and not to the run (world_size, dp, threads) stay as given, so that the
  /// saved recipe runs in any world.
  config::RunConfig config;
  RankGrid grid;
  ModelShape shape;
  std::vector<StageSpec> parts;                                    ///< the model's pipeline stages, in order
  schedule::Placement placement;                                   ///< which pipeline rank holds which stage
  std::string schedule_name = schedule::default_schedule(1).name;  ///< of the table (schedule/table.h); never "auto"
  std::optional<schedule::Program> schedule_file;                  ///< instead, where parallel.pp_schedule names a file
  BatchSchedule batch_schedule;
  LearningRateSchedule learning_rate;
  std::optional<LearningRateSchedule> words_learning_rate;  ///< of word embedding and output layer: decoupled_lr
  std::optional<WeightDecaySchedule> weight_decay;          ///< nothing: optimizer.weight_decay throughout
  std::int64_t train_samples = 0;                           ///< of the whole run
  std::int64_t microbatches_per_step = 0;                   ///< of the full global batch, on each data-parallel rank
  /// Facts::teacher, which the ranks hold besides the student (cost/fit/teacher.h).
  std::optional<TeacherNetwork> teacher = {};

  /// Those of a step before which `samples` advanced the schedule.
  LearningRates rates_at(std::int64_t samples) const {
    LearningRates rates{learning_rate.at(samples), words_learning_rate.value_or(learning_rate).at(samples)};
    if (weight_decay) rates.weight_decay = weight_decay->at(samples);
    return rates;
  }
};

/// Checks every rule over the options and reports all that are violated in one ConfigError, with fixes that were tried
/// (mend.h). A run that is resumed keeps its global batch unless another is given: where train.micro_batch_size x dp
/// does not divide it, the micro batch is the largest below that does.
ResolvedRun resolve(config::RunConfig config, const Facts& facts = {});

/// The message of what resolve() throws, with the fixes that rules propose by themselves, which are not tried; "" where
/// nothing is wrong.
std::string broken_rules(const config::RunConfig& config, const Facts& facts = {});

/// What resolve() gives; nothing where a rule is broken, whose fixes are not tried. For those who try many.
std::optional<ResolvedRun> resolve_if_allowed(config::RunConfig config, const Facts& facts = {});

/// Features of each head that rotary positions rotate.
std::int64_t rotary_features(std::int64_t head_size, double rotary_percent);
std::int64_t rotary_features(const config::ModelConfig& model, const ModelShape& shape);

/// What rotated queries and keys are multiplied by; 0: as kernels::RopeScaling has it.
double rotary_scale(const config::ModelConfig& model);

/// Fills in latent attention, and what follows from it, where options describe one.
void add_latents(const config::ModelConfig& model, ModelShape& shape);

/// The experts that options describe, of each layer that has some; none with model.num_experts 0.
std::optional<Experts> experts_of(const config::ModelConfig& model);

/// The sizes of the model that resolved options describe, on `tp` tensor-parallel ranks.
ModelShape model_shape(const config::ModelConfig& model, int tp);
/// model_shape() of model and precision: with what of it computes in 8 bits.
ModelShape model_shape(const config::RunConfig& config);

}  // namespace megatron::plan
