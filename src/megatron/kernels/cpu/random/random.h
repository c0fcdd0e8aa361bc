#pragma once
#include <cstddef>
#include <cstdint>

// Runs of the random streams of base/philox.h, elements [first, first + count).
namespace megatron::kernels::cpu {

/// random_word(key, sample, first + i).
void random_words(std::uint64_t key, std::uint64_t sample, std::uint64_t first, std::size_t count, std::uint32_t* out);

/// Normal numbers of mean 0: element i of the stream is one branch of the Box-Muller transform (Box & Muller 1958) of
/// words 2*(i/2) and 2*(i/2)+1 of sample 0. A fixed sequence of IEEE operations with fused multiply-add, so that every
/// instruction set gives the same bits.
void normal_run(std::uint64_t key, float std, std::uint64_t first, std::size_t count, float* out);

/// normal_run one element at a time with std::fma: what machines without AVX2 run, and the truth of the tests.
void normal_run_scalar(std::uint64_t key, float std, std::uint64_t first, std::size_t count, float* out);

}  // namespace megatron::kernels::cpu
