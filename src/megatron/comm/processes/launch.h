#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace megatron::comm {

struct LaunchOptions {
  /// After the first rank has failed, the others have this long to end by themselves, naming the missing rank; then
  /// they get SIGTERM, or SIGKILL where they are stopped (SIGSTOP, a debugger), and, as long again later, SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(4);
  /// After the first SIGINT, SIGTERM or SIGHUP, a rank that is still stopped then (SIGSTOP, a debugger) gets SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(15);
  /// Exit codes that are no failure.
  std::vector<int> clean_codes = {0};
};

struct LaunchResult {
  int exit_code = 0;           ///< the highest of all ranks; 128 + n for one ended by signal n
  int first_failed_rank = -1;  ///< the one that told the others, else the first that ended; -1: all codes are clean
  std::string message;         ///< which rank failed first, and how; empty: none
  /// The signal that asked this process to end, where it has ended ranks: before they listened to it, or because a
  /// second one came. 0: none has.
  int interrupted_by = 0;
};

/// Runs `command` (a program's path and its arguments) in `size` processes of this host, each with the variables of
/// torchrun set (base/ranks/launched_rank.h), and waits for all. The rendezvous store lives here, so that it outlives
/// every rank. The first SIGINT, SIGTERM or SIGHUP is passed on to the ranks, stopped ones continue for it (SIGCONT),
/// and they have the time that they need to save; the second one ends them at once. SIGUSR1 is passed on to rank 0,
/// SIGUSR2 to all. No process is left behind, not even when this process is killed. What the ranks tell each other at
/// the store is keyed by a random secret, which they get as MEGATRON_RUN_SECRET. Call it from the main thread, before
/// other threads start. Throws ConfigError when the command cannot be run.
LaunchResult launch_processes(int size, const std::vector<std::string>& command, const LaunchOptions& options = {});

}  // namespace megatron::comm
