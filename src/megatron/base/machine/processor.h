#pragma once
#include <vector>

// What the processor offers to kernels, which kernels/cpu/isa.h chooses from.
namespace megatron {

/// Whether this process may use AMX's bf16 tiles; asks the system for permission the first time.
bool has_tiles();
/// Whether its tiles multiply 8-bit integers too, given has_tiles() and AVX512_VNNI.
bool has_integer_tiles();
/// Whether the processor has AVX512_BF16, given that it has AVX512.
bool has_dots();
/// Whether the processor has AVX512_VNNI, given that it has AVX512.
bool has_vnni();
/// Whether its dot product of bf16 pairs does more than its float32 FMA: twice as much on AMD's (Zen 4), half as much
/// on Intel's (decision 38).
bool fast_dots();
bool made_by_amd();  ///< the processor

/// What kernels are compiled for; Amx: and AVX512.
enum class Isa : int { Reference, Avx2, Avx512, Avx512Bf16, Amx };
const char* name_of(Isa isa);  ///< as --train.kernels has it: "avx512_bf16"

/// Those that this machine has, the one that "auto" chooses first; what hwy::SetSupportedTargetsForTest() hides is left
/// out.
std::vector<Isa> available_isas();

}  // namespace megatron
