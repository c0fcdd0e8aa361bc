#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/machine/environment.h"

// Pure part of the start of ranks: what the environment says, as data. Nothing here reads the environment itself.
namespace megatron {

/// Of a rank that a supervisor has started: which attempt of the run it belongs to, from 0.
inline constexpr const char* kAttemptVariable = "MEGATRON_ATTEMPT";

/// Of a job that a supervisor has started: a text that no other supervisor has. Who holds a run's folder writes it into
/// the folder's .lock, by which the supervisor knows that the folder is its job's.
inline constexpr const char* kSupervisorVariable = "MEGATRON_SUPERVISOR";

/// LaunchedRank::rank_0_speaks, of ranks that this program has started: "1".
inline constexpr const char* kRank0SpeaksVariable = "MEGATRON_RANK_0_SPEAKS";

/// Where one rank stands among the processes of a run, and where they meet.
struct LaunchedRank {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host
  int local_size = 1;
  std::string address = "127.0.0.1";  ///< host of the rendezvous store
  int port = 0;
  bool store_is_kept = false;  ///< by the launcher; otherwise rank 0 keeps it
  bool store_is_open = false;  ///< already, by this process, which is rank 0 and keeps it
  std::string store_prefix = "megatron";
  std::string interface;    ///< network interface for connections; empty: the one that leads to the store
  std::string launcher;     ///< "torchrun", "Open MPI", "PMI", "Slurm"
  std::string secret;       ///< of the run, MEGATRON_RUN_SECRET: see run_key.h
  std::string secret_file;  ///< that holds it, MEGATRON_RUN_SECRET_FILE
  /// One terminal shows what all ranks print: what all would say alike is said by rank 0 alone.
  bool rank_0_speaks = false;
};

/// What a launcher has said through the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT),
/// Open MPI (OMPI_COMM_WORLD_*), PMI of MPICH and Intel MPI (PMI_RANK, PMI_SIZE) or Slurm (SLURM_PROCID, SLURM_NTASKS,
/// …), looked for in this order; nullopt where none is there. MASTER_ADDR and MASTER_PORT hold under each of them;
/// without them, Slurm meets on the first host of its list, at a port that its job and step decide, MPI on this host if
/// all ranks are here. Ranks that are all on one host and keep the store themselves meet on its loopback interface,
/// whatever MASTER_ADDR says. Throws ConfigError on values that are missing, malformed or contradict each other, and
/// where one of RANK and WORLD_SIZE (above 1) is there with MASTER_ADDR or LOCAL_RANK, but the other and a launcher are
/// not. What counts as a launcher is launcher_of()'s to say.
std::optional<LaunchedRank> place_from(const Environment& environment);

/// The variables that make place_from return `place`: what a program that starts its own ranks gives them.
Environment environment_of(const LaunchedRank& place);

/// "node[001-003,007],gpu" -> node001, node002, node003, node007, gpu. Throws ConfigError.
std::vector<std::string> expand_host_list(const std::string& list);

}  // namespace megatron
