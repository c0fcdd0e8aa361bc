#pragma once
#include <cstdint>
#include <string>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"

namespace megatron::app {

/// The options of `megatron bench step`.
struct BenchStepOptions {
  std::string model = "gpt2_124m";
  std::int64_t micro_batch_size = 1, microbatches = 1, seq_length = 1024;
  std::int64_t steps = 5, warmup = 2;
  double dropout = 0;
  int world_size = 1, tp = 1, cp = 1, pp = 1, vpp = 1, dp = 0, threads_per_rank = 0;
  bool sp = false;
  std::string cp_comm_type = "auto", schedule, pp_communication = "overlapped", pp_layout, recompute = "none", trace;
  std::string launch = "auto", backend = "auto", device = "cpu", dtype = "fp32", kernels = "auto",
              matmul_precision = "highest";
  std::int64_t loss_chunk_tokens = 0;
  bool recompute_gelu = true, deterministic_mode = false;
  bool profile = false, json = false;
  std::string svg;
  config::OptimizerConfig optimizer;

  void visit(auto& v) {
    v("model", model, "Recipe: a path, or the name of a file in configs/ without .toml.", config::Common());
    v("micro_batch_size", micro_batch_size, "Samples per rank and microbatch.", config::Common());
    v("microbatches", microbatches, "Microbatches per step and data-parallel rank.", config::Common());
    v("seq_length", seq_length, "Tokens per sample.", config::Common());
    v("steps", steps, "Timed steps.", config::Common());
    v("warmup", warmup, "Warm-up steps before them.", config::Common());
    v("dropout", dropout, "Hidden and attention dropout.");
    v("world_size", world_size, "Ranks.", config::Common());
    v("tp", tp, "Tensor-parallel size.", config::Common());
    v("cp", cp, "Context-parallel size.");
    v("cp_comm_type", cp_comm_type, "How ranks attend to sequences that they share, as parallel.cp_comm_type.",
      config::Choices({"auto", "allgather", "a2a", "p2p"}));
    v("pp", pp, "Pipeline-parallel size.", config::Common());
    v("vpp", vpp, "Pipeline stages per pipeline rank.");
    v("sp", sp, "Sequence parallelism.");
    v("schedule", schedule, "Pipeline schedule, as parallel.pp_schedule.");
    v("pp_communication", pp_communication, "Messages between pipeline stages.",
      config::Choices({"unbatched", "batched", "overlapped"}));
    v("pp_layout", pp_layout, "Layers by stage, as parallel.pp_layout.");
    v("recompute", recompute, "Activations to recompute in the backward pass.",
      config::Choices({"none", "selective", "full"}));
    v("trace", trace, "JSON file for the measured timeline of the last step.");
    v("dp", dp, "Data-parallel size; 0: derived.");
    v("threads_per_rank", threads_per_rank, "OpenMP threads per rank; 0: cores / ranks.");
    v("launch", launch, "How ranks are started.", config::Choices({"auto", "threads", "processes"}));
    v("backend", backend, "Transport of messages between ranks.", config::Choices({"auto", "local", "gloo", "nccl"}));
    v("device", device, "Device that computes.", config::Common(), config::Choices({"cpu", "cuda"}));
    v("dtype", dtype, "Data type of parameters and activations.", config::Common(),
      config::Choices({"fp32", "fp64", "bf16", "fp16"}));
    v("kernels", kernels, "Instruction set of the kernels; auto: the best that this machine has.",
      config::Choices({"auto", "amx", "avx512_bf16", "avx512", "avx2", "reference"}));
    v("matmul_precision", matmul_precision, "float32 matrix products; high needs AMX.", "matmul-precision",
      config::Choices({"highest", "high"}));
    v("loss_chunk_tokens", loss_chunk_tokens, "Tokens whose logits are computed at once; 0: 1024, on CUDA 8192.");
    v("recompute_gelu", recompute_gelu, "Recompute GELU in the backward pass.");
    v("deterministic_mode", deterministic_mode, "As train.deterministic_mode.");
    v("profile", profile,
      "After the timed steps as many again, in which each operator is timed: a table with the FLOPs and bytes of each, "
      "and what it could take at best on this machine.",
      config::Common());
    v("svg", svg, "With --profile: SVG file for a flame chart of the step.", config::Common());
    v("json", json, "Print one JSON object on stdout.", config::Common());
    v("optimizer", optimizer, "The recipe's section.");
  }
};

/// A step that is measured.
struct BenchStepCommand {
  BenchStepOptions options;
  plan::ResolvedRun run;
};

/// What the words say. Throws HelpRequested, and ConfigError for what is wrong whatever the machine is.
BenchStepCommand bench_step_command(const Args& args);

}  // namespace megatron::app
