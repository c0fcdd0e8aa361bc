#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"

namespace megatron::supervise {

/// How many ranks a run has, and how they share its model.
struct SmallerLayout {
  config::RunConfig config;  ///< the run's, with this layout
  int ranks = 0;
  std::vector<std::string> words;  ///< to be added to the command of a job that trains
};

/// Whether the rules allow a configuration.
using Allowed = std::function<bool(const config::RunConfig&)>;

/// The layout of the most ranks below `ranks`, but at least `min_ranks`, that `allowed` takes: with the model split as
/// it is if that can be, else split less, else otherwise. The global batch, which `config` must name, stays, and with
/// it the losses.
std::optional<SmallerLayout> smaller_layout(const config::RunConfig& config, int ranks, int min_ranks,
                                            const Allowed& allowed);

}  // namespace megatron::supervise
