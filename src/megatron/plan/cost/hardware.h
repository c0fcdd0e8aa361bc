#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/options.h"

// A cluster and the software on it, as numbers: what the cost model (cost_model.h) needs besides the plan.
namespace megatron::plan {

/// What computes: one rank's accelerator, or its share of a processor.
struct ComputeRates {
  double fp64_tflops = 0, fp32_tflops = 0, bf16_tflops = 0, fp16_tflops = 0, fp8_tflops = 0;
  double capability = 0;
  double product_efficiency = 1;
  double product_half_size = 0;
  double attention_forward_efficiency = 0, attention_backward_efficiency = 0;

  void visit(auto& v) {
    v("fp64_tflops", fp64_tflops, "Peak of matrix products, 10^12 operations per second; 0: not offered.");
    v("fp32_tflops", fp32_tflops, "The same of float32.");
    v("bf16_tflops", bf16_tflops, "The same of bfloat16.");
    v("fp16_tflops", fp16_tflops, "The same of float16.");
    v("fp8_tflops", fp8_tflops,
      "The same of 8-bit floats, without sparsity; 0: not offered, and what fp8.format asks for is emulated.");
    v("capability", capability,
      "Compute capability of an NVIDIA GPU, 9.0 of Hopper, by which fp8.recipe is refused as runs refuse it; 0: not "
      "said, and none is.");
    v("product_efficiency", product_efficiency, "Share of the peak that a product of very large matrices reaches.");
    v("product_half_size", product_half_size,
      "Size of one of a product's three dimensions, the others being large, at which half of that is reached.");
    v("attention_forward_efficiency", attention_forward_efficiency,
      "Share of the peak that attention in one kernel reaches, masked scores not counted; 0: its products as others.");
    v("attention_backward_efficiency", attention_backward_efficiency,
      "Share of the peak that the backward pass of such attention reaches, its 5 products counted.");
  }
};

struct MemoryRates {
  double capacity_gb = 0;
  double bandwidth_gb_s = 0;
  double efficiency = 1;

  double capacity_bytes() const { return capacity_gb * 1e9; }
  void visit(auto& v) {
    v("capacity_gb", capacity_gb, "Of one rank's memory, 10^9 bytes.", config::Example{"80"});
    v("bandwidth_gb_s", bandwidth_gb_s, "Bandwidth of one rank's memory, GB/s.", config::Example{"1000"});
    v("efficiency", efficiency, "Share of it that a kernel reaches which only moves data.");
  }
};

/// One level of what connects ranks.
struct LinkRates {
  double bandwidth_gb_s = 0;
  double efficiency = 1;
  double latency_us = 0;

  double bytes_per_s() const { return bandwidth_gb_s * 1e9 * efficiency; }
  double latency_s() const { return latency_us * 1e-6; }
  void visit(auto& v) {
    v("bandwidth_gb_s", bandwidth_gb_s, "Bandwidth in one direction, GB/s: [node] of a rank, [cluster] of a node.",
      config::Example{"100"});
    v("efficiency", efficiency, "Share of it that collectives reach.");
    v("latency_us", latency_us, "Of one step of a ring, 10^-6 seconds.");
  }
};

/// What the training program makes of the machine. A pass is one read or one write of every element of a tensor.
struct SoftwareCosts {
  double launch_us = 0;
  double forward_launches = 0, backward_launches = 0;
  double stream_forward_passes = 0, stream_backward_passes = 0;
  double query_forward_passes = 0, query_backward_passes = 0;
  double inner_forward_passes = 0, inner_backward_passes = 0;
  double score_forward_passes = 0, score_backward_passes = 0;
  bool whole_square = false;
  double logit_bytes = 0;
  double optimizer_bytes = 0;
  double overlap_slowdown = 0;
  double speed_spread = 0;

  void visit(auto& v) {
    v("launch_us", launch_us, "What an operation costs whatever its size, 10^-6 seconds.");
    v("forward_launches", forward_launches, "Operations of a layer's forward pass.");
    v("backward_launches", backward_launches, "Operations of its backward pass.");
    v("stream_forward_passes", stream_forward_passes,
      "Forward, over tensors of the hidden width that ranks do not split (sp does): norms, dropout, residuals.");
    v("stream_backward_passes", stream_backward_passes, "Backward, the same.");
    v("query_forward_passes", query_forward_passes, "Forward, over tensors as wide as a rank's queries.");
    v("query_backward_passes", query_backward_passes, "Backward, the same.");
    v("inner_forward_passes", inner_forward_passes, "Forward, over what the MLP's first product gives.");
    v("inner_backward_passes", inner_backward_passes, "Backward, the same.");
    v("score_forward_passes", score_forward_passes,
      "Forward, over attention scores [heads, s, s] in memory; 0: they never leave the processor, and backward "
      "computes them again.");
    v("score_backward_passes", score_backward_passes, "Backward, the same.");
    v("whole_square", whole_square, "Compute the scores that causal attention masks, too.");
    v("logit_bytes", logit_bytes, "Moved for each logit by the loss and its gradient.");
    v("optimizer_bytes", optimizer_bytes, "Moved for each parameter that a rank updates, clipping included.");
    v("overlap_slowdown", overlap_slowdown,
      "Seconds that computation loses for each second in which gradients are reduced at the same time.");
    v("speed_spread", speed_spread, "Standard deviation of the time that equal ranks take, as a share of it.");
  }
};

struct Hardware {
  std::string name;
  /// parallel.device of its ranks. "": not said; a search then takes the recipe's, bench scaling cuda.
  std::string device = "";
  /// Instruction set of ranks on a CPU, as packs_weights() (memory.h) takes it. "": one that packs no weights.
  std::string processor = "";
  std::int64_t ranks_per_node = 1;
  ComputeRates compute;
  MemoryRates memory;
  LinkRates node;     ///< between ranks of a node
  LinkRates cluster;  ///< between nodes: a node's adapters together
  SoftwareCosts software;

  void visit(auto& v) {
    v("name", name, "What reports call it.");
    v("device", device, "What its ranks compute on, as --device has it.", config::Choices({"", "cpu", "cuda"}));
    v("processor", processor, "Instruction set of a CPU's ranks, as --processor of megatron plan has it.",
      config::Choices({"", "amx", "avx512_bf16", "avx512", "avx2", "reference"}));
    v("ranks_per_node", ranks_per_node, "Ranks of a node; a world of fewer has one node.");
    v("compute", compute, "What computes.");
    v("memory", memory, "One rank's memory.");
    v("node", node, "Between ranks of a node.");
    v("cluster", cluster, "Between nodes.");
    v("software", software, "What the training program makes of it.");
  }
};

/// What a file of [compute], [memory], [node], [cluster], [software] says (configs/hardware/); `name`: what messages
/// call it. All that is wrong with it, unknown keys and values that no machine has, is one ConfigError.
Hardware parse_hardware(const std::string& text, const std::string& name);

/// peak_flops() of 8-bit numbers.
inline constexpr const char* kFp8 = "fp8";

/// Peak of matrix products with train.dtype `dtype`, operations per second. Throws ConfigError where it offers none.
double peak_flops(const Hardware& hardware, const std::string& dtype);

}  // namespace megatron::plan
