#pragma once
#include <string>
#include <vector>

#include "megatron/config/optimizer_config.h"
#include "megatron/interchange/megatron_lm/ranks/rank_files.h"

namespace megatron::interchange {

/// What add_state() has found; the same of all ranks.
struct RankState {
  bool masters = false;
  std::vector<std::string> kinds;
};

/// What the names of a part's masters and of its state of one kind begin with, behind the part's prefix.
constexpr const char* kMasterInfix = "master/";
std::string state_infix(const std::string& kind);

/// Adds what the optimizers of all ranks kept to `files`: of the tensor PREFIX NAME masters as PREFIX master/ NAME, and
/// state of those kinds of `optimizer` that are there. The plain optimizer numbers its parameters, in the order in
/// which the module has them, group by group: those with weight decay and those without. With Muon there are two of
/// them: its own, of matrices but for the word embedding and the output layer, and Adam of the rest. The distributed
/// one has them one after the other, the last first, in a file of its own (distrib_optim.pt), each at a multiple of 64
/// from the begin of its bucket; where a bucket ends, which is not said, the masters show. Throws ConfigError, without
/// a fix, for state that is not as the weights are, or not of all.
RankState add_state(RankFiles& files, const RankGrid& grid, const config::OptimizerConfig& optimizer);

}  // namespace megatron::interchange
