#include "megatron/base/machine/launcher.h"

namespace megatron {

std::optional<StartedBy> launcher_of(const Environment& environment) {
  const auto has = [&](const char* name) {
    const auto found = environment.find(name);
    return found != environment.end() && !found->second.empty();
  };
  if (has("RANK") && has("WORLD_SIZE")) return StartedBy{Launcher::Torchrun, "torchrun", "RANK"};
  if (has("OMPI_COMM_WORLD_RANK")) return StartedBy{Launcher::OpenMpi, "Open MPI", "OMPI_COMM_WORLD_RANK"};
  if (has("PMI_RANK")) return StartedBy{Launcher::Pmi, "PMI", "PMI_RANK"};
  if (has("SLURM_PROCID") && !has("SLURM_PTY_PORT")) return StartedBy{Launcher::Slurm, "Slurm", "SLURM_PROCID"};
  return std::nullopt;
}

}  // namespace megatron
