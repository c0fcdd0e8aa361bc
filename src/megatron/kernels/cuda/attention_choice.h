#pragma once
#include <cstdint>

namespace megatron::kernels::cuda {

/// What a call of attention asks for, as far as it decides who computes it.
struct AttentionCall {
  int capability = 0;  ///< of the GPU, major: 8 Ampere, 9 Hopper, 10 Blackwell
  bool sixteen_bits = false;
  bool dropout = false, first_key = false, key_lengths = false, bias = false, soft_cap = false;
  std::int64_t head_size = 0, queries = 1, keys = 1;
};

enum class AttentionKernel : std::uint8_t { Own, Flash };

/// The library's flash attention where it computes the same thing on tensor cores; else our own kernels: dropout's
/// masks are Philox's by what an element is, which no library draws, documents are packed, and a bias has a gradient.
/// Neither stores the scores.
constexpr AttentionKernel attention_kernel(const AttentionCall& call) {
  const bool plain = !call.dropout && !call.first_key && !call.key_lengths && !call.bias && !call.soft_cap;
  const bool fits = call.head_size % 8 == 0 && call.head_size <= 256 && call.queries > 0 && call.keys >= call.queries;
  return plain && fits && call.sixteen_bits && call.capability >= 8 ? AttentionKernel::Flash : AttentionKernel::Own;
}

}  // namespace megatron::kernels::cuda
