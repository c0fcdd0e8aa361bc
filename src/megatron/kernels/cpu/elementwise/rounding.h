#pragma once
#include <atomic>

namespace megatron::kernels::cpu {

/// Whether what is compiled for AVX512 rounds to bf16 by AVX512_BF16's one instruction in place of ten others. They
/// give the same numbers, but for denormals, which become 0. Follows the instruction set that is chosen.
extern std::atomic<bool> rounds_by_instruction;

}  // namespace megatron::kernels::cpu
