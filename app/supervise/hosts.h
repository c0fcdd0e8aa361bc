#pragma once
#include <string>

#include "app/jobs.h"
#include "megatron/base/ranks/launched_rank.h"

namespace megatron::app {

/// Which of several hosts this is, for `megatron run` where no launcher starts ranks: torchrun's names.
struct HostOptions {
  int nnodes = 0, node_rank = -1, nproc_per_node = 1, master_port = 29500;
  std::string master_addr = "";

  void visit(auto& v) {
    v("nnodes", nnodes,
      "Hosts, on each of which the same command is typed but for --node-rank; 0: a launcher's, or one.");
    v("node_rank", node_rank, "Which of them this is, from 0.");
    v("nproc_per_node", nproc_per_node, "Ranks of each host.");
    v("master_addr", master_addr, "Address of host 0 that the others reach; empty: MASTER_ADDR.");
    v("master_port", master_port, "Free port there.");
  }
  bool is_given() const { return nnodes > 0; }
};

/// Throws ConfigError for what is wrong with them, also where the environment is a launcher's.
void check(const HostOptions& options);

/// The place of this host's first rank, as that will read it. Throws ConfigError as secret_of().
LaunchedRank first_rank_of(const HostOptions& options);

/// Starts `megatron` with `words`, in a process for each rank of this host that finds torchrun's variables, and waits
/// for all. Signals are passed on; SIGUSR1 too to all, since which rank is the first of an attempt, which alone heeds
/// it, changes. Returns supervise::HostEnd::code(). Throws as start_process() does.
int run_on_host(const HostOptions& options, const Args& words);

}  // namespace megatron::app
