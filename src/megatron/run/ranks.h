#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "megatron/comm/agreement.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"

// How the ranks of a job come to be: threads of this process, processes that it starts, or a launcher's.
namespace megatron::run {

/// Runs `job`, which starts ranks by run_on_ranks(), and returns its exit code. Where it throws on a rank of a launcher
/// before the ranks have met, the others, which would wait for it, are told and end with the same error, whatever they
/// would communicate by (comm/processes/refusal.h). Of processes that this program has started, rank 0 alone throws
/// what all would, and the others return its exit code: one terminal shows them all. What std::filesystem throws of a
/// path that cannot be looked at is a ConfigError too (base/files/path_error.h).
int run_job_of_ranks(const std::function<int()>& job);

/// What one rank does; its exit code.
using RankBody = std::function<int(comm::Group world, at::Device device)>;

/// Whether this process only starts the ranks, which are processes of their own.
bool starts_processes(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place);

/// Throws ConfigError where this machine, or the way in which ranks start, does not allow parallel.device cuda, and
/// where ranks of several hosts have no secret (secret_of of base/ranks/run_key.h).
void check_start(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place);

/// Runs `body` on every rank of `run` and returns the highest exit code that this process learns of; of ranks that are
/// processes of their own kWrong where nothing was begun, else kFailed where one failed. `place`: what a launcher has
/// said (comm::place_from). With parallel.launch processes, this program is started again for each rank, with the words
/// it was started with. Before `body`, the ranks compare their recipes (train::recipe_facts) and then `facts`, what
/// else they must have in common. Throws comm::AgreedError, and what the first failing rank threw, with the rank's name
/// before it, and what check_start() throws.
int run_on_ranks(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, const RankBody& body,
                 const comm::Facts& facts = {});

}  // namespace megatron::run
