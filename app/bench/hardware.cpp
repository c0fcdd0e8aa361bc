#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "app/bench/bench.h"
#include "app/bench/bench_options.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/machine/processor.h"
#include "megatron/base/timer.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/hardware.h"

// Rates of this machine as the cost model wants them: each measured while all ranks, threads of this process, do the
// same.
namespace megatron::app {
namespace {

constexpr int kRepeats = 7;
constexpr std::int64_t kLarge = 1536, kThin = 64;

/// Median seconds from all ranks' beginning to the end of the last. Collective.
double median_s(const comm::Group& world, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = -1; i < kRepeats; ++i) {  // once to warm up
    world.barrier();
    const Stopwatch watch;
    work();
    world.barrier();
    if (i >= 0) seconds.push_back(watch.seconds());
  }
  return median(seconds);
}

/// Operations per second of each rank in a product of [kLarge, kLarge] with [inner, kLarge] as linear() computes it.
double product_rate(const comm::Group& world, at::ScalarType dtype, std::int64_t inner) {
  const auto options = at::TensorOptions().dtype(dtype);
  const at::Tensor x = at::rand({kLarge, inner}, at::kFloat).sub_(0.5).to(options);
  const at::Tensor w = at::rand({kLarge, inner}, at::kFloat).sub_(0.5).to(options);
  kernels::PackedWeight packed;
  const int times = inner == kThin ? 8 : 1;
  const double seconds = median_s(world, [&] {
    for (int i = 0; i < times; ++i) kernels::linear(x, w, &packed);
  });
  return 2.0 * times * kLarge * kLarge * static_cast<double>(inner) / seconds;
}

/// Peak and half size where sizes d, the others being kLarge, reach peak / ((1 + half / kLarge)^2 (1 + half / d)).
struct Curve {
  double peak = 0, half_size = 0;
};
/// Of a product whose three sizes are kLarge.
double peak_of(double rate, double half_size) { return rate * std::pow(1 + half_size / kLarge, 3); }
Curve curve_of(double large, double thin) {
  const double lost = large / thin;
  const double room = 1.0 / kThin - lost / kLarge;
  const double half = lost <= 1 ? 0 : room <= 0 ? kLarge : std::min<double>(kLarge, (lost - 1) / room);
  return {peak_of(large, half), half};
}

plan::LinkRates measure_link(const comm::Group& world) {
  const double ranks = world.size();
  if (world.size() == 1) return {.bandwidth_gb_s = 1e6, .efficiency = 1, .latency_us = 0};  // nothing is ever sent
  constexpr std::int64_t kBytes = std::int64_t{32} << 20;
  const at::Tensor large = at::ones({kBytes / 4}), small = at::ones({4});
  constexpr int kSmall = 100;
  const double latency_s = median_s(world,
                                    [&] {
                                      for (int i = 0; i < kSmall; ++i) world.all_reduce(small);
                                    }) /
                           kSmall / (2 * (ranks - 1));
  const double passes_s = median_s(world, [&] { world.all_reduce(large); }) - 2 * (ranks - 1) * latency_s;
  const double rate = 2 * (ranks - 1) / ranks * kBytes / std::max(passes_s, 1e-9);
  return {.bandwidth_gb_s = rate * 1e-9, .efficiency = 1, .latency_us = latency_s * 1e6};
}

plan::Hardware measure(const comm::Group& world) {
  kernels::configure_thread(std::max(1, usable_cores() / world.size()));
  plan::Hardware hardware;
  hardware.name = concat(world.size(), " ranks on a processor with ", name_of(available_isas().front()));
  hardware.device = "cpu";
  hardware.processor = name_of(available_isas().front());
  hardware.ranks_per_node = world.size();
  const Curve fp32 = curve_of(product_rate(world, at::kFloat, kLarge), product_rate(world, at::kFloat, kThin));
  // The half size is measured in float32 and taken for all: so that each has the rate that it was seen to have.
  const auto tflops = [&](at::ScalarType dtype) {
    return 1e-12 * peak_of(product_rate(world, dtype, kLarge), fp32.half_size);
  };
  hardware.compute = {.fp64_tflops = tflops(at::kDouble),
                      .fp32_tflops = 1e-12 * fp32.peak,
                      .bf16_tflops = tflops(at::kBFloat16),
                      .fp16_tflops = tflops(at::kHalf),
                      .product_efficiency = 1,
                      .product_half_size = fp32.half_size};
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const at::Tensor from = at::ones({kBytes / 4}), to = at::ones({kBytes / 4});
  hardware.memory = {
      .capacity_gb = 1e-9 * static_cast<double>(machine_memory().value_or(MachineMemory{}).bytes) / world.size(),
      .bandwidth_gb_s = 2e-9 * kBytes / median_s(world, [&] { to.copy_(from); }),
      .efficiency = 1};
  hardware.node = hardware.cluster = measure_link(world);
  constexpr int kSmall = 1000;
  const at::Tensor small = at::ones({8});
  const double launch_s = median_s(world,
                                   [&] {
                                     for (int i = 0; i < kSmall; ++i) at::add(small, small);
                                   }) /
                          kSmall;
  // Counted, as in configs/hardware/dgx-h100.toml, whose kernels are fused alike: no scores in memory, biases and
  // activations in one pass. Assumed: reductions take the cores that compute; ranks differ by a hundredth.
  hardware.software = {.launch_us = 1e6 * launch_s,
                       .forward_launches = 12,
                       .backward_launches = 24,
                       .stream_forward_passes = 10,
                       .stream_backward_passes = 14,
                       .query_forward_passes = 2,
                       .query_backward_passes = 2,
                       .inner_forward_passes = 2,
                       .inner_backward_passes = 3,
                       .logit_bytes = 6,
                       .optimizer_bytes = 34,
                       .overlap_slowdown = 1,
                       .speed_spread = 0.01};
  return hardware;
}

}  // namespace

int bench_hardware(const Args& args) {
  const BenchHardwareOptions options = bench_hardware_options(args);
  plan::Hardware hardware;
  comm::run_ranks(options.ranks > 0 ? options.ranks : std::min(usable_cores(), 64), [&](const comm::Group& world) {
    const plan::Hardware measured = measure(world);
    if (world.rank() == 0) hardware = measured;
  });
  const std::string text =
      "# Measured by megatron bench hardware, but for [software]: of that launch_us alone; the rest is "
      "counted, or assumed.\n" +
      config::save_toml(hardware);
  plan::parse_hardware(text, "the measured rates");  // what no machine has is said here
  if (!options.output.empty()) write_file(options.output, text);
  if (options.json)
    print_json(nlohmann::ordered_json{{"benchmark", "hardware"},
                                      {"name", hardware.name},
                                      {"fp32_tflops", hardware.compute.fp32_tflops},
                                      {"bf16_tflops", hardware.compute.bf16_tflops},
                                      {"product_half_size", hardware.compute.product_half_size},
                                      {"memory_gb_s", hardware.memory.bandwidth_gb_s},
                                      {"link_gb_s", hardware.node.bandwidth_gb_s},
                                      {"link_latency_us", hardware.node.latency_us},
                                      {"launch_us", hardware.software.launch_us}});
  else
    print_text(text);
  return kDone;
}

}  // namespace megatron::app
