#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/base/files/gguf.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/rules.h"

// Whether the ranks of one machine fit into its memory: arithmetic, before the first byte is taken.
namespace megatron::plan {

/// What ranks hold: all that a training step does (memory_plan()), or the weights alone, with `blocks` those of
/// parameters/blocks.h in few bits.
struct Holding {
  enum class What : std::uint8_t { Training, Weights };
  What what = What::Training;
  std::optional<GgufType> blocks = {};
  bool copies = false;  ///< of Weights: and forward_copy_bytes(), unless in blocks

  static const Holding Training, Weights;
};
inline constexpr Holding Holding::Training = {What::Training}, Holding::Weights = {What::Weights};

/// What a job holds besides that.
struct Besides {
  std::int64_t bytes = 0;  ///< on all ranks of the world together
  std::string what = {};   ///< "keys and values of what is written"
  std::string fix = {};    ///< in the job's own options; of Holding::Training, "" for those of a recipe
};

/// Bytes of all ranks together while each data-parallel rank computes one layer, and the logits held at once, for
/// `samples` rows of `tokens`: a bound from below for a forward pass that keeps nothing. Both must be 1 or more.
std::int64_t forward_bytes(const ResolvedRun& run, std::int64_t samples, std::int64_t tokens);

/// The ranks of one machine, which follow one another in the world.
struct LocalRanks {
  int first = 0, count = 1;
};

/// What `rank` holds in a training step. `instruction_set`: packs_weights().
MemoryPlan memory_of_rank(const ResolvedRun& run, int rank, std::string_view instruction_set = {});

/// Bytes that these ranks hold together. `instruction_set`: packs_weights().
std::int64_t bytes_of_ranks(const ResolvedRun& run, LocalRanks ranks, Holding holding,
                            std::string_view instruction_set = {});

/// Whether the ranks, with `besides`, fit into 7/8 of what the machine has left without swap: the rest is for what is
/// not counted.
bool fits_amply(const ResolvedRun& run, LocalRanks ranks, Holding holding, const MachineMemory& machine,
                std::string_view instruction_set = {}, const Besides& besides = {});

/// Throws ConfigError where they are more than the machine has left, with options that would fit (memory_options.h).
/// What is not counted (workspaces, the program itself) is small compared with the excess of a plan that is too large
/// by a factor: a run that just fits by this may still run out. `besides`: its fix is for what the weights leave no
/// room for, or for all of Holding::Training.
void check_memory(const ResolvedRun& run, LocalRanks ranks, Holding holding, const MachineMemory& machine,
                  std::string_view instruction_set = {}, const Besides& besides = {});

/// Memory of a rank's GPU before the rank has taken any.
struct GpuMemory {
  std::uint64_t free = 0, total = 0;  ///< bytes
  int gpus = 0;                       ///< that this run could have where it may start more ranks; 0: no more
};

/// Throws where what `rank` will hold is more than its GPU has free: ConfigError where it is more than the GPU has in
/// all, std::runtime_error where others hold the rest, which may end. The options that would fit are for GPUs alike.
void check_gpu_memory(const ResolvedRun& run, int rank, Holding holding, const GpuMemory& gpu,
                      const Besides& besides = {});

}  // namespace megatron::plan
