#pragma once
#include <cstdint>
#include <optional>

#include "megatron/base/machine/environment.h"

namespace megatron {

/// Programs that start the ranks of a run from outside.
enum class Launcher : std::uint8_t { Torchrun, OpenMpi, Pmi, Slurm };

struct StartedBy {
  Launcher launcher;
  const char* name;      ///< "torchrun", "Open MPI", "PMI", "Slurm"
  const char* variable;  ///< by which it is known: the rank's number
};

/// The launcher that has started a process with these variables as a rank, looked for in the order above; nothing where
/// none has. RANK without WORLD_SIZE is not torchrun's; a Slurm allocation without srun (no SLURM_PROCID), and an
/// interactive shell of it (SLURM_PTY_PORT), are no launcher.
std::optional<StartedBy> launcher_of(const Environment& environment);

}  // namespace megatron
