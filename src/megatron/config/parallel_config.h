#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/meaning.h"
#include "megatron/schedule/table.h"

// The options of run_config.h that say how ranks share the work.
namespace megatron::config {

struct ParallelConfig {
  int world_size = 0;
  int tp = 1;
  int cp = 1;
  std::string cp_comm_type = "auto";
  int dp = 0;
  int ep = 1;
  int etp = 0;
  int pp = 1;
  int vpp = 1;
  bool sp = false;
  std::int64_t layers_per_virtual_stage = 0;
  std::string pp_layout;
  std::int64_t first_stage_layers = 0;
  std::int64_t last_stage_layers = 0;
  int pipeline_split_rank = 0;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  bool standalone_embedding_stage = false;
  std::string pp_schedule;
  std::int64_t pp_memory_limit = 0;
  std::string pp_communication = "overlapped";
  int microbatch_group_size = 0;
  bool variable_seq_lengths = false;
  bool scatter_gather = true;
  std::string launch = "auto";
  std::string backend = "auto";
  std::string device = "cpu";
  int threads_per_rank = 0;
  double timeout_s = 600;

  void visit(auto& v) {
    v("world_size", world_size,
      "Ranks to start on this machine; 0: the launcher's, or one. Under torchrun, mpirun or Slurm theirs holds.",
      "world-size", Affects::Nothing, Common());
    v("tp", tp, "Tensor-parallel size: ranks that split each weight matrix.", "tensor-model-parallel-size", "tp",
      Common());
    v("cp", cp, "Context-parallel size: ranks that share the tokens of each sequence.", "context-parallel-size", "cp",
      Common());
    v("cp_comm_type", cp_comm_type,
      "How ranks that share a sequence attend to all of it: allgather of keys and values; a2a, all-to-all of heads; "
      "p2p, keys and values in a ring; auto: the one that the plan chooses.",
      "cp-comm-type", unless("parallel.cp", {"1"}), Choices({"auto", "allgather", "a2a", "p2p"}));
    v("dp", dp, "Data-parallel size; 0: derived from the world size.", "dp", Common());
    v("ep", ep, "Expert-parallel size: ranks of dp x cp (with etp of tp x cp x dp) that divide the experts.",
      "expert-model-parallel-size", "ep", when("model.num_experts"));
    v("etp", etp, "Expert-tensor-parallel size: ranks that split the matrices of each expert; 0: tp.",
      "expert-tensor-parallel-size", "etp", when("model.num_experts"));
    v("pp", pp, "Pipeline-parallel size: ranks that split the layers.", "pipeline-model-parallel-size", "pp", Common());
    v("vpp", vpp, "Pipeline stages per pipeline rank.", "num-virtual-stages-per-pipeline-rank", "vpp", Common());
    v("sp", sp, "Split norms, dropout and residuals over tp along the sequence; no effect where tp is 1.",
      "sequence-parallel", "sp", unless("parallel.tp", {"1"}), Common());
    v("layers_per_virtual_stage", layers_per_virtual_stage, "Layers of a stage, instead of vpp; 0: vpp holds.",
      "num-layers-per-virtual-pipeline-stage");
    v("pp_layout", pp_layout,
      "Layers by stage: \"Et*3|t*4|t*4|t*3L\" (E embedding, t layer, L loss), balanced (by arithmetic), or empty: "
      "even.",
      "pipeline-model-parallel-layout", "pp-layout");
    v("first_stage_layers", first_stage_layers, "Layers of the first pipeline rank; 0: as the others.",
      "decoder-first-pipeline-num-layers");
    v("last_stage_layers", last_stage_layers, "Layers of the last pipeline rank; 0: as the others.",
      "decoder-last-pipeline-num-layers");
    v("pipeline_split_rank", pipeline_split_rank,
      "t5: pipeline rank at which the decoder begins; those before it share the encoder. 0: layers are shared out as "
      "of "
      "one stack, and the decoder begins where the encoder ends.",
      "pipeline-model-parallel-split-rank");
    v("account_for_embedding", account_for_embedding, "Count the embedding as a layer when layers are split evenly.",
      "account-for-embedding-in-pipeline-split", unless("parallel.pp", {"1"}));
    v("account_for_loss", account_for_loss, "Count output layer and loss as a layer when layers are split evenly.",
      "account-for-loss-in-pipeline-split", unless("parallel.pp", {"1"}));
    v("standalone_embedding_stage", standalone_embedding_stage, "Give the first stage the embedding and no layers.",
      "standalone-embedding-stage");
    v("pp_schedule", pp_schedule,
      schedule::schedule_names() + ", auto, or a file; empty: " + schedule::default_schedule(1).name + ", or " +
          schedule::default_schedule(2).name + " where vpp > 1. auto: the fastest in simulation of " +
          schedule::schedule_names(1) + " (vpp 1), of " + schedule::schedule_names(2) +
          " (vpp 2; also where vpp is 1 and the layers divide), or of " + schedule::schedule_names(3) + " (vpp > 2).",
      "schedule", "pp-schedule");
    v("pp_memory_limit", pp_memory_limit,
      "auto: limit in bytes of a rank's activations, including what recomputation needs; 0: none.");
    v("pp_communication", pp_communication,
      "Messages between stages: overlapped with computation, batched (send and receive as one) or unbatched.",
      "pp-communication", unless("parallel.pp", {"1"}), Choices({"unbatched", "batched", "overlapped"}));
    v("microbatch_group_size", microbatch_group_size,
      schedule::schedule_names(&schedule::ScheduleInfo::takes_groups) +
          ": microbatches that a stage takes before the rank's next one does; 0: pp.",
      "microbatch-group-size-per-virtual-pipeline-stage");
    v("variable_seq_lengths", variable_seq_lengths,
      "Shapes differ by microbatch: the first stage's rank tells the others before each step.", "variable-seq-lengths");
    v("scatter_gather", scatter_gather,
      "Send each tp rank's share of an activation and gather on arrival; sp does the same by itself.",
      "scatter-gather-tensors-in-pipeline", unless("parallel.pp", {"1"}));
    v("launch", launch, "How this program starts ranks; auto: threads on cpu, processes on cuda.", "launch",
      Affects::Nothing, Choices({"auto", "threads", "processes"}));
    v("backend", backend, "Transport of messages between ranks; local is for ranks that are threads.",
      "distributed-backend", Affects::Nothing, Choices({"auto", "local", "gloo", "nccl"}));
    v("device", device, "Device that computes.", "device", Choices({"cpu", "cuda"}), Common());
    v("threads_per_rank", threads_per_rank, "OpenMP threads per rank; 0: cores / ranks on this machine.",
      "threads-per-rank", Affects::Nothing, RanksMayDiffer());
    v("timeout_s", timeout_s, "Seconds after which a collective fails and names the ranks that are missing.",
      Affects::Nothing);
  }
};

}  // namespace megatron::config
