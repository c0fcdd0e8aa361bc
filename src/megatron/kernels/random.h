#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace megatron::kernels {

/// Fills `out` (contiguous, a slice of a tensor of `full_shape` that starts at `offset` along `dim`; dim -1: the whole)
/// with N(0, std) values that depend on (key, index in the full tensor) alone: element i is one branch of a Box-Muller
/// pair of random words 2*(i/2), 2*(i/2)+1 of the stream. Drawn in float32, and rounded to nearest for bf16 and
/// fp16. The same bits on every instruction set and slice.
void fill_normal_(const at::Tensor& out, std::uint64_t key, double std, const std::vector<std::int64_t>& full_shape,
                  int dim, std::int64_t offset);

/// Fills with values spread evenly from -bound to bound; arguments as above: element i is made of random word i of the
/// stream.
void fill_uniform_(const at::Tensor& out, std::uint64_t key, double bound, const std::vector<std::int64_t>& full_shape,
                   int dim, std::int64_t offset);

}  // namespace megatron::kernels
