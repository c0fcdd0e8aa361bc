#include "megatron/config/megatron_flags.h"

#include <algorithm>

namespace megatron::config {
namespace {

constexpr const char* kLeaveOut = "leave it out";
constexpr const char* kOtherAxes = "leave it out; ranks are split by --tp, --pp and --dp";

constexpr MegatronFlag kFlags[] = {
    {"context-parallel-size", true, kOtherAxes},
    {"expert-model-parallel-size", true, kOtherAxes},
    {"no-overlap-p2p-communication", false, "--pp-communication batched"},
    {"overlap-p2p-communication", false, "--pp-communication overlapped"},
    {"overlap-p2p-communication-warmup-flush", false, "--pp-communication overlapped"},
    {"batch-p2p-communication", false, "--pp-communication batched"},
    {"checkpoint-activations", false, "--train.recompute full"},
    {"virtual-pipeline-model-parallel-size", true, "--vpp"},
    {"attention-softmax-in-fp32", false, "leave it out; sums and softmax are always in fp32 or fp64"},
    {"exp-avg-dtype", true, "--optimizer.state_dtype, of both moments"},
    {"exp-avg-sq-dtype", true, "--optimizer.state_dtype, of both moments"},
    {"main-grads-dtype", true, "--optimizer.grad_dtype"},
    {"main-params-dtype", true, "leave it out; masters are in fp32"},
    {"use-precision-aware-optimizer", false, "leave it out; --optimizer.state_dtype and --optimizer.grad_dtype say it"},
    {"lr-warmup-iters", true, "--lr-warmup-samples, iterations x global batch"},
    {"lr-decay-iters", true, "--lr-decay-samples, iterations x global batch"},
    {"lr-wsd-decay-iters", true, "--lr-wsd-decay-samples, iterations x global batch"},
    {"train-samples", true, "--train-iters, samples / global batch"},
    {"encoder-num-layers", true, "--num-layers"},
    {"encoder-seq-length", true, "--seq-length"},
    {"vocab-file", true, "--tokenizer, the folder of vocabulary and merges"},
    {"merge-file", true, "--tokenizer, the folder of vocabulary and merges"},
    {"distributed-timeout-minutes", true, "--parallel.timeout_s, minutes x 60"},
    {"dataloader-type", true, "leave it out; samples are drawn in Megatron's single order"},
    {"num-workers", true, "--data.prefetch, microbatches that a thread of each rank reads ahead"},
    {"group-query-attention", false, "leave it out; --num-query-groups says it"},
    {"apply-layernorm-1p", false, "leave it out; norms are weight x normalized"},
    {"transformer-impl", true, kLeaveOut},
    {"use-mcore-models", false, kLeaveOut},
    {"use-flash-attn", false, kLeaveOut},
    {"attention-backend", true, kLeaveOut},
    {"recompute-activations", false, "--train.recompute selective"},
    {"ckpt-format", true, "leave it out; checkpoints are safetensors in any layout"},
    {"auto-detect-ckpt-format", false, kLeaveOut},
    {"no-load-rng", false, "leave it out; random numbers follow from --seed and the iteration"},
    {"no-save-rng", false, "leave it out; random numbers follow from --seed and the iteration"},
    {"no-save-optim", false,
     "leave it out; megatron checkpoint reshard --weights-only makes a copy without the optimizer"},
    {"num-distributed-optimizer-instances", true, "leave it out; all data-parallel ranks share one optimizer"},
    {"tensorboard-queue-size", true, "leave it out; each step is written at once"},
    {"log-learning-rate-to-tensorboard", false, kLeaveOut},
    {"log-batch-size-to-tensorboard", false, kLeaveOut},
};

}  // namespace

std::span<const MegatronFlag> megatron_flags() { return kFlags; }

const std::vector<MegatronSwitch>& megatron_switches() {
  static const std::vector<MegatronSwitch> all = {
      {"bf16", {{"train.dtype", "bf16"}}, "fp16"},
      {"fp16", {{"train.dtype", "fp16"}}, "bf16"},
      {"grad-reduce-in-bf16", {{"optimizer.grad_dtype", "bf16"}}},
      {"accumulate-allreduce-grads-in-fp32", {{"optimizer.grad_dtype", "fp32"}}},
      {"swiglu", {{"model.activation", "silu"}, {"model.gated_linear_unit", "true"}}, "squared-relu"},
      {"squared-relu", {{"model.activation", "squared_relu"}}, "swiglu"},
      {"disable-bias-linear", {{"model.add_bias_linear", "false"}}},
      {"bert-no-binary-head", {{"model.bert_binary_head", "false"}}},
      {"use-rope-scaling", {{"model.rope_scaling_factor", "8"}}},
      {"use-rotary-position-embeddings", {{"model.position_embedding_type", "rope"}}},
  };
  return all;
}

const MegatronSwitch* megatron_switch(const std::string& name) {
  for (const MegatronSwitch& entry : megatron_switches())
    if (name == entry.name) return &entry;
  return nullptr;
}

const MegatronFlag* megatron_flag(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kFlags), std::end(kFlags), [&](const MegatronFlag& flag) { return name == flag.name; });
  return found == std::end(kFlags) ? nullptr : found;
}

}  // namespace megatron::config
