#pragma once
#include <string>
#include <vector>

#include "megatron/config/model_config.h"
#include "megatron/config/optimizer_config.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::plan {

/// What one parameter's update has of its own.
struct Multipliers {
  double learning_rate = 1;  ///< times the schedule's
  double weight_decay = 1;   ///< times optimizer.weight_decay
  bool words = false;        ///< the schedule's rate is LearningRates::words
  double eps = 1;            ///< times optimizer.adam_eps
  bool operator==(const Multipliers&) const = default;
};

/// Whether `name` matches `pattern`, in which '*' stands for any characters, also none.
bool matches(const std::string& pattern, const std::string& name);

/// Those of each parameter, in order, by optimizer.lr_mult and wd_mult: lists of PATTERN=NUMBER, of which the last that
/// matches a name counts. Where none does: 1, and no decay for biases and one-dimensional parameters, as in Megatron.
/// Throws ConfigError for an entry that cannot be read; patterns that match nothing are no error here, as a pipeline
/// rank sees some of the names alone.
/// `width`: mup_width(), by which optimizers scale as Yang et al. 2021, table 8 has it: rate and eps of Adam, and
/// the rate of Lion, over the width for matrices of layers; the rate of SGD times the width for everything else.
/// `decoupled`: the rate of the word matrices is their own, and stays.
std::vector<Multipliers> multipliers(const config::OptimizerConfig& optimizer, const std::vector<ParameterSpec>& specs,
                                     double width = 1, bool decoupled = false);

/// How much wider the model is than the one that was tuned: model.hidden_size / mup_base_hidden_size with
/// model.use_mup, else 1.
double mup_width(const config::ModelConfig& model);

/// Throws ConfigError for a pattern that matches none of `whole`, the parameters of the whole model.
void check_patterns(const config::OptimizerConfig& optimizer, const std::vector<ParameterSpec>& whole);

}  // namespace megatron::plan
