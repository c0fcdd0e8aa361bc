#include "app/supervise/hosts.h"

#include <sys/wait.h>

#include <csignal>
#include <set>

#include "megatron/base/error.h"
#include "megatron/base/machine/child_process.h"
#include "megatron/base/machine/environment.h"
#include "megatron/base/machine/launcher.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/supervise/ranks/host_end.h"

namespace megatron::app {
namespace {

std::string master_of(const HostOptions& options) {
  if (!options.master_addr.empty()) return options.master_addr;
  const Environment variables = process_environment();
  const auto found = variables.find("MASTER_ADDR");
  if (found != variables.end() && !found->second.empty()) return found->second;
  return options.nnodes == 1 ? "127.0.0.1" : "";
}

LaunchedRank place_of(const HostOptions& options, int local_rank) {
  LaunchedRank place;
  place.rank = options.node_rank * options.nproc_per_node + local_rank;
  place.world_size = options.nnodes * options.nproc_per_node;
  place.local_rank = local_rank;
  place.local_size = options.nproc_per_node;
  place.address = master_of(options);
  place.port = options.master_port;
  return place;
}

}  // namespace

void check(const HostOptions& options) {
  const auto need = [](bool holds, const char* rule, const auto& got, const char* fix) {
    if (!holds) throw ConfigError(rule_got_fix(rule, concat(got), fix));
  };
  need(options.nnodes >= 0 && options.nnodes <= 1 << 16, "--nnodes must be from 0 to 65536.", options.nnodes,
       "--nnodes 2");
  if (!options.is_given()) {
    need(options.node_rank < 0, "--node-rank says which of --nnodes hosts this is.",
         concat("--node-rank ", options.node_rank, ", no --nnodes"), "--nnodes 2 --node-rank 0");
    need(options.master_addr.empty() && options.nproc_per_node == 1,
         "--master-addr and --nproc-per-node are for hosts that --nnodes counts.", "no --nnodes",
         "--nnodes 2 --node-rank 0");
    return;
  }
  if (const auto launcher = launcher_of(process_environment()))
    throw ConfigError(rule_got_fix("--nnodes is for hosts without a launcher.",
                                   concat(launcher->variable, " of ", launcher->name), "--nnodes 0"));
  need(options.node_rank >= 0 && options.node_rank < options.nnodes, "--node-rank must be from 0 to --nnodes - 1.",
       options.node_rank, "--node-rank 0");
  need(options.nproc_per_node >= 1 && options.nproc_per_node <= 1 << 12, "--nproc-per-node must be from 1 to 4096.",
       options.nproc_per_node, "--nproc-per-node 1");
  need(options.master_port >= 1 && options.master_port <= 65535, "--master-port must be from 1 to 65535.",
       options.master_port, "--master-port 29500");
  need(!master_of(options).empty(), "Hosts must know where to meet.", "neither --master-addr nor MASTER_ADDR",
       "--master-addr 10.0.0.1, an address of host 0");
}

LaunchedRank first_rank_of(const HostOptions& options) {
  Environment variables = environment_of(place_of(options, 0));
  variables.merge(process_environment());
  const LaunchedRank place = place_from(variables).value();
  (void)secret_of(place);
  return place;
}

int run_on_host(const HostOptions& options, const Args& words) {
  const HeldSignals signals;
  ProgramStart program{.path = "/proc/self/exe", .words = {"megatron"}};
  program.words.insert(program.words.end(), words.begin(), words.end());
  std::set<pid_t> running;
  supervise::HostEnd end;
  for (int r = 0; r < options.nproc_per_node; ++r) {
    program.variables = environment_of(place_of(options, r));
    running.insert(start_process(program, signals));
  }
  while (true) {
    int status = 0;
    for (const pid_t pid : std::set<pid_t>(running)) {
      if (waitpid(pid, &status, WNOHANG) != pid) continue;
      end.add(status);
      running.erase(pid);
    }
    if (running.empty()) return end.code();
    const int signal = signals.take(0.5);
    for (const pid_t pid : running)
      if (signal != 0) kill(pid, signal);
  }
}

}  // namespace megatron::app
