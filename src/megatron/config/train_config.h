#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/meaning.h"

// The options of run_config.h that say how long, on what batches and in what precision a run trains.
namespace megatron::config {

struct TrainConfig {
  std::string out = "runs/default";
  std::int64_t train_iters = 100;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 0;
  std::int64_t eval_interval = 0;
  std::int64_t start_eval_at_iter = 0;
  std::int64_t eval_iters = 10;
  std::int64_t eval_global_batch_size = 0;
  bool skip_train = false;
  std::uint64_t seed = 1234;
  std::string dtype = "fp32";
  double label_smoothing = 0;
  std::int64_t loss_chunk_tokens = 0;
  bool recompute_gelu = true;
  std::string recompute = "none";
  std::string recompute_method = "uniform";
  std::int64_t recompute_num_layers = 0;
  std::string recompute_layers;
  double memory_limit_gb = 0;
  std::int64_t recompute_partial_microbatches = 0;
  std::vector<std::string> recompute_modules = {"core_attn"};
  bool distribute_saved_activations = false;
  std::string kernels = "auto";
  std::string matmul_precision = "highest";
  bool deterministic_mode = false;
  bool exit_on_nan = false;
  std::int64_t exit_interval = 0;
  double exit_duration_mins = 0;
  std::string exit_signal = "SIGTERM";

  /// Multiples of eval_interval, which is above 0, before start_eval_at_iter.
  std::int64_t skipped_validations() const {
    return start_eval_at_iter > 0 ? (start_eval_at_iter - 1) / eval_interval : 0;
  }
  /// Validations before the one that follows step `iteration`.
  std::int64_t validations_before(std::int64_t iteration) const {
    return std::max<std::int64_t>(0, (iteration - 1) / eval_interval - skipped_validations());
  }

  void visit(auto& v) {
    v("out", out, "The run's folder: recipe, metrics, checkpoints.", Affects::Nothing, Common());
    v("train_iters", train_iters, "Steps of the run.", "train-iters", Common());
    v("micro_batch_size", micro_batch_size, "Samples per rank and microbatch.", "micro-batch-size", Common());
    v("global_batch_size", global_batch_size,
      "Samples per step over all ranks; 0: micro_batch_size x dp, or the resumed run's value.", "global-batch-size",
      Common());
    v("eval_interval", eval_interval, "Steps between validations; 0: none.", "eval-interval", Common());
    v("start_eval_at_iter", start_eval_at_iter, "No validation before this step, but for that of the run's end.",
      "start-eval-at-iter", when("train.eval_interval"), OnlyInTraining());
    v("eval_iters", eval_iters, "Global batches per validation.", "eval-iters",
      when("train.eval_interval") || when("data.test_data_path") || when("data.per_split_data_args_path"),
      OnlyInTraining());
    v("eval_global_batch_size", eval_global_batch_size,
      "Samples of a validation's batch over all ranks; 0: global_batch_size.", "eval-global-batch-size",
      when("train.eval_interval") || when("data.test_data_path") || when("data.per_split_data_args_path"),
      OnlyInTraining());
    v("skip_train", skip_train, "Take no steps: evaluate the validation and test data with what --load names, and end.",
      "skip-train", Affects::Nothing, OnlyInTraining());
    v("seed", seed, "Seed of weights, dropout and data order.", "seed", Affects::Samples, Common());
    v("dtype", dtype, "Data type of parameters and activations; updates are in fp32, of fp64 in fp64.",
      Choices({"fp32", "fp64", "bf16", "fp16"}), Common());
    v("label_smoothing", label_smoothing, "Share of the target spread over the vocabulary.", "label-smoothing",
      OnlyInTraining());
    v("loss_chunk_tokens", loss_chunk_tokens,
      "Tokens whose logits are held at once by output layer and loss; 0: 1024, on CUDA 8192.");
    v("recompute_gelu", recompute_gelu, "Recompute GELU in the backward pass instead of keeping it.");
    v("recompute", recompute,
      "Activations that backward recomputes instead of keeping them: selective by module, full by layer.",
      "recompute-granularity", Choices({"none", "selective", "full"}), Common());
    v("recompute_method", recompute_method,
      "full: uniform (groups of recompute_num_layers) or block (the first recompute_num_layers of a stage).",
      "recompute-method", when("train.recompute", {"full"}), Choices({"uniform", "block"}));
    v("recompute_num_layers", recompute_num_layers, "full: layers, see recompute_method; 0: uniform groups of one.",
      "recompute-num-layers");
    v("recompute_layers", recompute_layers,
      "full: layers that are recomputed, such as 0-3,8,12-22:2 (every second), nothing, or fit: as few as keep "
      "memory_limit_gb on each pipeline rank; empty: by recompute_method.");
    v("memory_limit_gb", memory_limit_gb,
      "Limit of what a rank holds by the memory plan, in 10^9 bytes; a run that needs more is refused. 0: none.");
    v("recompute_partial_microbatches", recompute_partial_microbatches,
      "full, selective, with a pipeline: of the microbatches that a rank holds, so many recompute nothing, or "
      "recompute_num_layers layers (block); the others every layer, or recompute_modules.",
      "num-microbatches-with-partial-activation-checkpoints");
    v("recompute_modules", recompute_modules, "selective: what is recomputed; layernorm always is.",
      "recompute-modules", when("train.recompute", {"selective"}), Choices({"core_attn", "layernorm", "mlp"}));
    v("distribute_saved_activations", distribute_saved_activations,
      "full: split the inputs that are kept over the tp ranks.", "distribute-saved-activations");
    v("kernels", kernels,
      "Instruction set of the kernels; auto: the best that this machine has; cuda-emulated: CUDA's, on the CPU "
      "(tests).",
      Choices({"auto", "amx", "avx512_bf16", "avx512", "avx2", "reference", "cuda-emulated"}));
    v("matmul_precision", matmul_precision,
      "float32 matrix products: high permits three bf16 ones in place of six (error 4e-6 instead of 4e-7) on AMX, TF32 "
      "on CUDA.",
      "matmul-precision", Choices({"highest", "high"}));
    v("deterministic_mode", deterministic_mode,
      "On CUDA, the same bits in every run: attention's gradients are summed in one order, by slower kernels. On a CPU "
      "they always are.",
      "deterministic-mode");
    v("exit_on_nan", exit_on_nan,
      "What guard.on_nan auto is: end the run at a NaN or infinite loss or gradient instead of skipping the step. fp16 "
      "skips overflows still.",
      unless("guard.on_nan", {"skip", "rollback", "stop"}));
    v("exit_interval", exit_interval,
      "Save and end after an iteration that is a multiple of this, with exit code 0; the same command resumes. 0: "
      "never.",
      "exit-interval", Affects::Nothing, OnlyInTraining());
    v("exit_duration_mins", exit_duration_mins,
      "Save and end after the step in which the run has lasted these minutes by the first rank's clock, with exit code "
      "0; the same command resumes. 0: never.",
      "exit-duration-in-mins", Affects::Nothing, OnlyInTraining());
    v("exit_signal", exit_signal,
      "SIGUSR1: it saves and ends the run as SIGTERM, SIGINT and SIGHUP always do, where else it only saves.",
      "exit-signal", Affects::Nothing, Choices({"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"}), OnlyInTraining());
  }
};

/// Linear layers of transformer layers multiply 8-bit floating-point numbers (Micikevicius et al. 2022), each tensor
/// or block of it scaled by a number that follows from the steps before or from its own magnitudes;
/// plan/parameters/fp8.h.
struct Fp8Config {
  std::string format = "none";
  std::string recipe = "delayed";
  std::int64_t margin = 0;
  std::int64_t amax_history_len = 1;
  std::string amax_compute_algo = "most_recent";
  bool wgrad = true;
  bool first_last_layers_bf16 = false;
  std::int64_t num_layers_at_start_in_bf16 = 1;
  std::int64_t num_layers_at_end_in_bf16 = 1;

  void visit(auto& v) {
    const When on = unless("fp8.format", {"none"}), delayed = when("fp8.recipe", {"delayed"}),
               wide = when("fp8.first_last_layers_bf16");
    v("format", format,
      "8-bit numbers that linear layers of transformer layers multiply: hybrid (E4M3, gradients E5M2), e4m3 (all "
      "E4M3); none: those of train.dtype.",
      "fp8-format", Choices({"none", "hybrid", "e4m3"}));
    v("recipe", recipe,
      "How tensors are scaled: delayed, by the largest magnitudes of the steps before; tensorwise, each by its own; "
      "blockwise, each 128 numbers by theirs, of weights 128 x 128; mxfp8, each 32 numbers by theirs.",
      "fp8-recipe", on, Choices({"delayed", "tensorwise", "blockwise", "mxfp8"}));
    v("margin", margin, "Powers of two that delayed scales stay below the largest that fits.", "fp8-margin", on,
      delayed);
    v("amax_history_len", amax_history_len, "Steps whose largest magnitudes are kept.", "fp8-amax-history-len", on,
      delayed);
    v("amax_compute_algo", amax_compute_algo,
      "Which of the magnitudes kept a scale follows from: that of the last step or the largest.",
      "fp8-amax-compute-algo", on, delayed, Choices({"most_recent", "max"}));
    v("wgrad", wgrad, "Weight gradients are products of 8-bit numbers too; else of those of train.dtype.", "fp8-wgrad",
      on);
    v("first_last_layers_bf16", first_last_layers_bf16,
      "The first and the last layers multiply numbers of train.dtype.", "first-last-layers-bf16", on);
    v("num_layers_at_start_in_bf16", num_layers_at_start_in_bf16,
      "Number of first layers, of each stack, that multiply numbers of train.dtype.", "num-layers-at-start-in-bf16", on,
      wide);
    v("num_layers_at_end_in_bf16", num_layers_at_end_in_bf16,
      "Number of last layers, of each stack, that multiply numbers of train.dtype.", "num-layers-at-end-in-bf16", on,
      wide);
  }
};

/// What a run does about losses that are not finite or leap, and about ranks that hang.
struct GuardConfig {
  std::string on_nan = "auto";
  std::string on_spike = "ignore";
  double spike_factor = 2;
  std::int64_t spike_window = 32;
  std::int64_t rollback_batches = 1;
  std::int64_t max_rollbacks = 10;
  std::vector<std::int64_t> skip_iterations;
  std::int64_t rerun_interval = 0;
  double hang_dump_s = 0;
  std::vector<std::string> inject_faults;

  void visit(auto& v) {
    v("on_nan", on_nan,
      "At a NaN or infinite loss or gradient: skip (leave the update out), rollback (resume from the last checkpoint, "
      "skip the batch) or stop (write the batch, end with exit code 1); auto: stop with train.exit_on_nan, else skip. "
      "fp16 skips overflows still.",
      "on-nan", Choices({"auto", "skip", "rollback", "stop"}));
    v("on_spike", on_spike,
      "At a loss above spike_factor times the median of the spike_window losses before it: ignore, or as on_nan.",
      "on-spike", Choices({"ignore", "skip", "rollback", "stop"}));
    v("spike_factor", spike_factor, "What a loss is a spike above, times the median of those before it.",
      "spike-factor", unless("guard.on_spike", {"ignore"}));
    v("spike_window", spike_window, "Losses that the median is taken of; before there are as many nothing is a spike.",
      "spike-window", unless("guard.on_spike", {"ignore"}));
    v("rollback_batches", rollback_batches,
      "Batches that a rollback skips: the one of the NaN or spike and those before it, back to the checkpoint at most.",
      when("guard.on_nan", {"rollback"}) || when("guard.on_spike", {"rollback"}));
    v("max_rollbacks", max_rollbacks, "Rollbacks of the run after which the next one ends it as stop does.",
      when("guard.on_nan", {"rollback"}) || when("guard.on_spike", {"rollback"}));
    v("skip_iterations", skip_iterations,
      "Iterations, counted from 1, whose batches are skipped without being computed.");
    v("rerun_interval", rerun_interval,
      "Iterations between checks that each rank computes what another one, or it itself, computes from the same: "
      "forward and backward are run twice, and gradients must be equal bit by bit. Transient errors are repaired; a "
      "persistent one ends the run with exit code 17. 0: never.",
      "rerun-interval", Affects::Nothing);
    v("hang_dump_s", hang_dump_s,
      "Seconds without any operation after which a rank writes what it does to train.out/dump.jsonl; 0: half of "
      "parallel.timeout_s.",
      Affects::Nothing);
    v("inject_faults", inject_faults,
      "For tests: nan:ITERATION and spike:ITERATION change the loss; exit:ITERATION:RANK ends the rank, hang lets it "
      "wait, flip changes a bit of one of its gradients, stuck does so also when it is run again.");
  }
};

}  // namespace megatron::config
