#include "megatron/config/megatron_flags.h"

#include <algorithm>

namespace megatron::config {
namespace {

constexpr MegatronAdvice kAdvice[] = {
    {"apply-wd-to-qk-layernorm", "--optimizer.wd_mult '*.q_layernorm.*=1,*.k_layernorm.*=1'"},
    {"attention-softmax-in-fp32", "leave it out; sums and softmax are always in fp32 or fp64"},
    {"batch-p2p-communication", "--pp-communication batched"},
    {"checkpoint-activations", "--train.recompute full"},
    {"dataloader-inter-document-masking", "--reset-attention-mask"},
    {"disable-fp8-wgrad", "--no-fp8-wgrad"},
    {"distributed-timeout-minutes", "--parallel.timeout_s, minutes x 60"},
    {"encoder-num-layers", "--num-layers"},
    {"encoder-seq-length", "--seq-length"},
    {"error-injection-rate", "--guard.inject_faults flip:ITERATION:RANK"},
    {"error-injection-type", "--guard.inject_faults flip:ITERATION:RANK, or stuck:ITERATION:RANK for a persistent one"},
    {"exit-on-missing-checkpoint", "leave it out; a --load that is absent is an error"},
    {"exp-avg-dtype", "--optimizer.state_dtype, of both moments"},
    {"exp-avg-sq-dtype", "--optimizer.state_dtype, of both moments"},
    {"group-query-attention", "leave it out; --num-query-groups says it"},
    {"iterations-to-skip", "--guard.skip_iterations, which counts from 1: each of them + 1"},
    {"lr-decay-iters", "--lr-decay-samples, iterations x global batch"},
    {"lr-warmup-iters", "--lr-warmup-samples, iterations x global batch"},
    {"lr-wsd-decay-iters", "--lr-wsd-decay-samples, iterations x global batch"},
    {"main-grads-dtype", "--optimizer.grad_dtype"},
    {"main-params-dtype", "leave it out; masters are in fp32"},
    {"merge-file", "--tokenizer VOCAB,MERGES"},
    {"moe-router-load-balancing-type", "--moe-aux-loss-coeff, of each sequence by itself; 0 for none"},
    {"muon-no-split-qkv", "--optimizer.muon_split_qkv false"},
    {"no-bias-gelu-fusion", "--model.activation gelu, the exact function"},
    {"no-check-for-nan-in-loss-and-grad", "leave it out; --train.exit_on_nan turns the check on"},
    {"no-overlap-p2p-communication", "--pp-communication batched"},
    {"no-pad-vocab-size", "--make-vocab-size-divisible-by 1"},
    {"no-save-optim", "leave it out; megatron checkpoint reshard --weights-only makes a copy without the optimizer"},
    {"no-weight-decay-cond-type", "--optimizer.wd_mult '*.q_layernorm.*=1,*.k_layernorm.*=1'"},
    {"non-persistent-ckpt-type", "--checkpoint.memory_folder, in memory or on each node's disk"},
    {"non-persistent-global-ckpt-dir", "--checkpoint.memory_folder FOLDER, which all nodes may see"},
    {"num-distributed-optimizer-instances", "leave it out; all data-parallel ranks share one optimizer"},
    {"num-workers", "--data.prefetch, microbatches that a thread of each rank reads ahead"},
    {"overlap-p2p-communication", "--pp-communication overlapped"},
    {"overlap-p2p-communication-warmup-flush", "--pp-communication overlapped"},
    {"persistent-save-interval", "--save-interval"},
    {"pretrained-checkpoint", "--load with --finetune"},
    {"recompute-activations", "--train.recompute selective"},
    {"rerun-mode", "--rerun-interval 1 for report_stats; else leave it out"},
    {"rope-type", "--model.rope_scaling_type"},
    {"rotary-scaling-factor", "--rope-scaling-factor"},
    {"rotary-seq-len-interpolation-factor", "--rope-scaling-factor with --model.rope_scaling_type linear"},
    {"torch-fsdp2-no-reshard-after-forward", "--data-parallel-sharding-strategy optim_grads"},
    {"train-samples", "--train-iters, samples / global batch"},
    {"use-megatron-fsdp", "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params"},
    {"use-precision-aware-optimizer", "leave it out; --optimizer.state_dtype and --optimizer.grad_dtype say it"},
    {"use-ring-exchange-p2p", "--pp-communication batched"},
    {"use-torch-fsdp2", "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params"},
    {"virtual-pipeline-model-parallel-size", "--vpp"},
    {"vocab-file", "--tokenizer, the file or its folder; of a vocabulary with merges VOCAB,MERGES"},
    {"window-size", "--model.sliding_window, the token itself counted"},
};

}  // namespace

std::span<const MegatronAdvice> megatron_advice() { return kAdvice; }

const std::vector<MegatronSwitch>& megatron_switches() {
  static const std::vector<MegatronSwitch> all = {
      {"bf16", {{"train.dtype", "bf16"}}, "fp16"},
      {"fp16", {{"train.dtype", "fp16"}}, "bf16"},
      {"grad-reduce-in-bf16", {{"optimizer.grad_dtype", "bf16"}}},
      {"accumulate-allreduce-grads-in-fp32", {{"optimizer.grad_dtype", "fp32"}}},
      {"swiglu", {{"model.activation", "silu"}, {"model.gated_linear_unit", "true"}}, "squared-relu"},
      {"squared-relu", {{"model.activation", "squared_relu"}}, "swiglu"},
      {"quick-geglu", {{"model.activation", "quick_gelu"}, {"model.gated_linear_unit", "true"}}, "swiglu"},
      {"disable-bias-linear", {{"model.add_bias_linear", "false"}}},
      {"bert-no-binary-head", {{"model.bert_binary_head", "false"}}},
      {"use-rope-scaling", {{"model.rope_scaling_factor", "8"}}},
      {"use-rotary-position-embeddings", {{"model.position_embedding_type", "rope"}}},
      {"enable-gpt-oss",
       {{"model.position_embedding_type", "rope"},
        {"model.rope_scaling_type", "yarn"},
        {"model.rope_scaling_factor", "32"},
        {"model.rope_original_positions", "131072"},
        {"model.yarn_correction_range_round_to_int", "false"}}},
  };
  return all;
}

const MegatronSwitch* megatron_switch(const std::string& name) {
  for (const MegatronSwitch& entry : megatron_switches())
    if (name == entry.name) return &entry;
  return nullptr;
}

std::optional<MegatronAnswer> megatron_answer(const std::string& name) {
  const auto* const advice =
      std::ranges::find_if(kAdvice, [&](const MegatronAdvice& entry) { return name == entry.name; });
  const MegatronFlag* const flag = megatron_flag(name);
  if (advice != std::end(kAdvice)) {  // some are of older versions
    const FlagKind old = name == "virtual-pipeline-model-parallel-size" ? FlagKind::Int : FlagKind::Switch;
    return MegatronAnswer{flag == nullptr ? old : flag->kind, advice->fix};
  }
  if (flag == nullptr) return std::nullopt;
  switch (flag->use) {
    case FlagUse::Maps:
      return std::nullopt;
    case FlagUse::Ignored:
      return MegatronAnswer{flag->kind, "leave it out; it changes no result (" + flag->text + ")"};
    case FlagUse::Missing:
      return MegatronAnswer{flag->kind, "leave it out; not here: " + flag->text};
    case FlagUse::Refused:
      return MegatronAnswer{flag->kind, "leave it out; it " + flag->text};
    case FlagUse::Removed:
      return MegatronAnswer{flag->kind, "leave it out; gone from Megatron-LM (" + flag->text + ")"};
  }
  return std::nullopt;
}

}  // namespace megatron::config
