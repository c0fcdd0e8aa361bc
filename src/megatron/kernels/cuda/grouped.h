#pragma once
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/groups.h"

// The products of a layer's experts by one kernel of ATen, where there is one and their weights lie as it reads them:
// the first group's first. In a buffer of parameters those are of the last expert, whose gradients come first (Routes).
// Gradients of weights are float32 sums in the gradients' buffer, which ATen's kernel does not write.
namespace megatron::kernels::cuda {

/// What products of several groups ask for, as far as it decides who computes them.
struct GroupedCall {
  int capability = 0;         ///< of the GPU, major
  bool bfloat16 = false;      ///< rows and weights
  bool aligned = false;       ///< the rows are contiguous; they and the first weight begin at multiples of 16 bytes
  std::int64_t n = 0, k = 0;  ///< of weights [n, k]
  std::int64_t distance = 0;  ///< elements from each weight to the next; 0: not the same, or the first one is last
  std::int64_t groups = 0, used = 0;  ///< weights; those that have rows
};

/// Whether at::_grouped_mm computes them: of bf16 on Hopper and Blackwell (elsewhere it waits for the device and
/// computes one after the other), in units of 16 bytes, of fewer than 1024 groups.
constexpr bool grouped_at_once(const GroupedCall& call) {
  constexpr std::int64_t kElements = 8, kMostGroups = 1023;
  return (call.capability == 9 || call.capability == 10) && call.bfloat16 && call.aligned && call.used > 1 &&
         call.groups <= kMostGroups && call.distance >= call.n * call.k && call.distance % kElements == 0 &&
         call.n % kElements == 0 && call.k % kElements == 0;
}

/// GroupedCall::distance of contiguous weights of one tensor's memory.
inline std::int64_t distance_of(const std::vector<at::Tensor>& weights) {
  std::int64_t distance = 0;
  for (std::size_t g = 0; g < weights.size(); ++g) {
    if (!weights[g].is_contiguous() || !weights[g].storage().is_alias_of(weights[0].storage())) return 0;
    if (g == 0) continue;
    const std::int64_t here = weights[g].storage_offset() - weights[g - 1].storage_offset();
    if (g > 1 && here != distance) return 0;
    distance = here;
  }
  return std::max<std::int64_t>(distance, 0);
}

inline GroupedCall grouped_call(const at::Tensor& rows, const Groups& groups, int capability) {
  const at::Tensor& first = groups.weights.front();
  const auto at_16_bytes = [](const at::Tensor& x) {
    return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  };
  GroupedCall call{.capability = capability,
                   .bfloat16 = rows.scalar_type() == at::kBFloat16 && first.scalar_type() == at::kBFloat16,
                   .aligned = rows.is_contiguous() && at_16_bytes(rows) && at_16_bytes(first),
                   .n = first.size(0),
                   .k = first.size(1),
                   .distance = distance_of(groups.weights),
                   .groups = static_cast<std::int64_t>(groups.weights.size())};
  for_each_group(groups, [&](std::size_t, std::int64_t, std::int64_t) { ++call.used; });
  return call;
}

/// The operators of groups: at once where that can be, else Rest's, which tells the GPU's capability().
template <class Rest>
struct GroupedOperators {
  static at::Tensor grouped_linear(const at::Tensor& x, const Groups& groups) {
    return at_once(x, groups) ? product(x, groups) : Rest::grouped_linear(x, groups);
  }

  static ActivatedOutput grouped_linear_activation(const at::Tensor& x, const Groups& groups, Activation form,
                                                   bool gated) {
    if (!at_once(x, groups)) return Rest::grouped_linear_activation(x, groups, form, gated);
    const at::Tensor u = product(x, groups);
    return {u, gated ? gated_activation(u, form) : activation(u, form)};
  }

  static at::Tensor grouped_input_gradient(const at::Tensor& dy, const Groups& groups) {
    return at_once(dy, groups) ? multiply(dy, groups, /*transposed=*/false) : Rest::grouped_input_gradient(dy, groups);
  }

 private:
  static bool at_once(const at::Tensor& rows, const Groups& groups) {
    return grouped_at_once(grouped_call(rows, groups, Rest::capability()));
  }
  static at::Tensor product(const at::Tensor& x, const Groups& groups) {
    const at::Tensor y = multiply(x, groups, /*transposed=*/true);
    if (!groups.biases.empty())
      for_each_group(groups, [&](std::size_t g, std::int64_t begin, std::int64_t rows) {
        y.narrow(0, begin, rows).add_(groups.biases[g]);
      });
    return y;
  }

  static at::Tensor multiply(const at::Tensor& rows, const Groups& groups, bool transposed) {
    const at::Tensor& first = groups.weights.front();
    const at::Tensor weights =
        first.as_strided({static_cast<std::int64_t>(groups.weights.size()), first.size(0), first.size(1)},
                         {distance_of(groups.weights), first.size(1), 1});
    return at::_grouped_mm(rows, transposed ? weights.transpose(1, 2) : weights,
                           ends_of(groups.offsets, rows.device()));
  }
  /// Where the rows of each group end: int32, from pinned memory, so that the host does not wait.
  static at::Tensor ends_of(const std::vector<std::int64_t>& offsets, at::Device device) {
    const std::vector<int> ends(offsets.begin() + 1, offsets.end());
    const at::Tensor on_host = at::tensor(ends, at::kInt);
    return (device.is_cuda() ? on_host.pin_memory() : on_host).to(device, /*non_blocking=*/true);
  }
};

}  // namespace megatron::kernels::cuda
