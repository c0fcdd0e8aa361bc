#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/comm/group.h"
#include "megatron/plan/parameters/adapters.h"

// Weight-decomposed adapters (DoRA, Liu et al. 2024): a part of a linear layer multiplies by diag(m / |V|) V, where
// V = W + scale B A, |V| has the norms of its rows, and m is trained. |V| counts as a constant where gradients are
// taken (section 4.3 there, and PEFT). In bf16 and fp16 m is rounded as every parameter is: m / |V| begins as 1 but for
// 2^-9, and smaller updates wait in the master.
namespace megatron::parallel {

/// The rows of a layer's `weight` [out, in] that `part` has, group after group: [part.outputs(), in], contiguous; a
/// view where they follow one another.
at::Tensor rows_of(const at::Tensor& weight, const plan::ProjectionSlice& part);

/// |V| of a part, [part.outputs()] in float32 (float64 of float64). `a` [r, in], `b` [part.outputs(), r]. `inputs`: the
/// ranks that have the other columns of weight and a, the group of one where there are none: collective over it, one
/// all-reduce. Holds few rows of V at once. Without autograd.
at::Tensor adapted_norms(const at::Tensor& weight, const plan::ProjectionSlice& part, const at::Tensor& a,
                         const at::Tensor& b, double scale, const comm::Group& inputs);

/// m / |V|, and m's gradient from that of m / |V|, in the dtype of `norms`; of rows whose norm is 0, which are zero
/// whatever they are multiplied by, what is given.
at::Tensor magnitude_factor(const at::Tensor& magnitude, const at::Tensor& norms);

}  // namespace megatron::parallel
