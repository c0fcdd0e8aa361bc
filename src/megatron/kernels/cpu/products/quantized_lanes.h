#pragma once
#include <immintrin.h>

#include <cstddef>

#include "megatron/kernels/cpu/products/matrix.h"

// Only where has_vnni(): the functions are compiled for AVX512_VNNI whatever the rest of the program is compiled for.
#define MEGATRON_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace megatron::kernels::cpu {

/// Row `row` of c.
MEGATRON_VNNI inline void put_lanes(__m512 sums, const MutableMatrix& c, std::size_t row, __mmask16 lanes) {
  void* const to = c.at(row, 0).data;
  if (c.type == ElementType::Float32) return _mm512_mask_storeu_ps(to, lanes, sums);
  if (c.type == ElementType::Float16)
    return _mm256_mask_storeu_epi16(to, lanes,
                                    _mm512_maskz_cvtps_ph(lanes, sums, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  const __m512i bits = _mm512_castps_si512(sums);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 not_number = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
  const __m512i upper = _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), not_number, _mm512_set1_epi32(0x7FC0));
  _mm256_mask_storeu_epi16(to, lanes, _mm512_maskz_cvtepi32_epi16(lanes, upper));
}

}  // namespace megatron::kernels::cpu
