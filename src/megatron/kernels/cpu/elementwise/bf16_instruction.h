#pragma once
#include "megatron/base/machine/processor.h"

namespace megatron::kernels::cpu {

/// Whether float32 is rounded to bf16 by AVX512_BF16, which the kernels for AVX512 are not compiled for. Unlike the
/// arithmetic that does the same elsewhere, it takes denormals for 0.
inline const bool kRoundsByInstruction = has_dots();

}  // namespace megatron::kernels::cpu
