#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megatron/plan/cost/memory.h"
#include "megatron/plan/rules.h"

// By which options a training run that does not fit into memory would: arithmetic over the plan, as memory_fit.h.
namespace megatron::plan {

/// The memory that a run must fit into.
struct Room {
  std::function<std::int64_t(const ResolvedRun&)> held;  ///< bytes that a run holds of it
  std::uint64_t bytes = 0;
  int most_ranks = 0;  ///< to which the world may grow, as a machine has GPUs; 0: it may not
};

/// A change of a run's options, as words of a command line, and what it would hold with them.
struct FittingOptions {
  std::string words;
  std::int64_t bytes = 0;
};

/// At most `most` changes by each of which `run` would fit into `room`: of the micro batch, of what is recomputed, of
/// how ranks share state, weights and layers, of the weights' type; where these are fewer, of several at once. The
/// parser takes all of them, and the rules allow what they make; the model, its samples and its global batch stay what
/// they are. The first changes least. None for a run whose schedule is a file.
std::vector<FittingOptions> options_that_fit(const ResolvedRun& run, const Room& room, std::size_t most = 3);

/// "--micro-batch-size 1 (1.2 GB), --train.recompute full (1.4 GB) or --tp 2 (2.1 GB)".
std::string options_text(const std::vector<FittingOptions>& options);

/// "12.3 GB (parameters 2.6 GB, gradients 5.2 GB, …)": what a rank holds, without what is nothing.
std::string planned_text(const MemoryPlan& memory);

/// What ran out in a run that was planned to hold `planned` bytes, in bytes too. 0: not known.
struct RanOut {
  std::int64_t planned = 0;
  std::int64_t wanted = 0;
  std::int64_t held = 0, free = 0;  ///< when it did; both 0: not known
};

/// What a plan may hold at most that would not run out there: less than the one that did by what was wanted, and no
/// more than what was held and free. Where it does not tell how much was wanted, less by a tenth.
std::uint64_t room_where_memory_ran_out(const RanOut& out);

}  // namespace megatron::plan
