#pragma once
#include <cstdint>

namespace megatron::kernels::cuda {

/// What a call of attention asks for, as far as it decides who computes it.
struct AttentionCall {
  int capability = 0;  ///< of the GPU, major: 8 Ampere, 9 Hopper, 10 Blackwell
  bool sixteen_bits = false;
  bool deterministic = false;  ///< gradients have the same bits in every run
  bool dropout = false, first_key = false, key_lengths = false, bias = false, soft_cap = false;
  std::int64_t head_size = 0, queries = 1, keys = 1;
  bool causal = true;
};

enum class AttentionKernel : std::uint8_t { Own, Flash, CuDnn };

/// The library's attention where it computes the same thing on tensor cores; else our own kernels: dropout's masks are
/// Philox's by what an element is, which no library draws, documents are packed, and a bias has a gradient. cuDNN's is
/// twice as fast on Hopper as ATen's flash attention, but adds up gradients in another order each time; its causal mask
/// begins at the first query, ours ends at the last key. None of them stores the scores.
constexpr AttentionKernel attention_kernel(const AttentionCall& call) {
  constexpr std::int64_t kFew = 64;
  const bool plain = !call.dropout && !call.first_key && !call.key_lengths && !call.bias && !call.soft_cap;
  const bool fits = call.head_size % 8 == 0 && call.head_size <= 256 && call.queries > 0 && call.keys >= call.queries;
  if (!plain || !fits || !call.sixteen_bits || call.capability < 8) return AttentionKernel::Own;
  const bool same_mask = call.queries == call.keys || (!call.causal && call.queries >= kFew);
  const bool cudnn =
      !call.deterministic && call.capability >= 9 && call.head_size <= 128 && same_mask && call.keys >= kFew;
  return cudnn ? AttentionKernel::CuDnn : AttentionKernel::Flash;
}

}  // namespace megatron::kernels::cuda
