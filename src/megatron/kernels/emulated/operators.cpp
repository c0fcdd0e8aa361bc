#include "megatron/kernels/emulated/operators.h"

#include <atomic>

#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cuda/grouped.h"
#include "megatron/kernels/emulated/driver.h"
#include "megatron/kernels/phases/operators/table.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

std::atomic<std::uint32_t> order{0};

/// As on Hopper.
struct OneByOne {
  static constexpr auto grouped_linear = cpu::grouped_linear;
  static constexpr auto grouped_linear_activation = cpu::grouped_linear_activation;
  static constexpr auto grouped_input_gradient = cpu::grouped_input_gradient;
  static int capability() { return 9; }
};

}  // namespace

void emulated::set_launch_order(std::uint32_t seed) { order = seed; }
std::uint32_t emulated::launch_order() { return order; }

const Operators& emulated_operators() {
  static const Operators table = [] {
    Operators all = phases::operators_of<emulated::HostDriver>();
    all.attention_over_blocks = reference::attention_over_blocks;
    all.linear = cpu::linear;
    all.linear_input_gradient = cpu::linear_input_gradient;
    all.linear_weight_gradient = cpu::linear_weight_gradient;
    using Grouped = cuda::GroupedOperators<OneByOne>;
    all.grouped_linear = Grouped::grouped_linear;
    all.grouped_linear_activation = Grouped::grouped_linear_activation;
    all.grouped_input_gradient = Grouped::grouped_input_gradient;
    all.grouped_weight_gradient = cpu::grouped_weight_gradient;
    return all;
  }();
  return table;
}

}  // namespace megatron::kernels
