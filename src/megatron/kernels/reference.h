#pragma once
#include "megatron/kernels/operators.h"

// The plain composition of ATen operations that defines each operator: any floating dtype (float64 at full precision),
// any device. Devices fall back to these; the tests hold the fast paths against them. Same contracts as the functions
// of the same name one namespace up.
namespace megatron::kernels {

// What every implementation asks of its arguments. Throw std::logic_error.
void check_groups(const at::Tensor& q, const at::Tensor& k);
void check_rotation(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
                    std::int64_t first_position);
/// Throws std::invalid_argument.
void check_fp8_matrices(const at::Tensor& x, std::int64_t size, bool squares, Fp8Wanted wanted);

namespace reference {

#define OPERATOR(result, name, parameters, ...) result name parameters;
#include "megatron/kernels/operators.def"

/// random_word(key, sample, index) as int64 in [0, 2^32); `sample` and `index` int64, broadcast against each other.
at::Tensor random_words(std::uint64_t key, const at::Tensor& sample, const at::Tensor& index);

/// random_words() by ATen operations, some 240 of them: for devices whose memory the host cannot read.
at::Tensor random_words_by_operators(std::uint64_t key, const at::Tensor& sample, const at::Tensor& index);

}  // namespace reference
}  // namespace megatron::kernels
