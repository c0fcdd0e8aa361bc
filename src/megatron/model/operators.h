#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/dropout.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"

// The fused operators of a transformer block as autograd sees them: each keeps what its backward pass needs and no
// more, and writes the gradients of its parameters into their buffers. s sequence, b microbatch, h hidden, n heads of
// this rank, d head size, f feed-forward features of this rank.
namespace megatron::model {

/// Layer normalization over h (Ba et al. 2016) or, without bias, RMSNorm (Zhang & Sennrich 2019). Without a weight it
/// is none: its value is what it is given.
struct Norm {
  parallel::ParameterPtr weight, bias;
  double epsilon = 1e-5;
  bool one_plus = false;    ///< multiplies by 1 + weight
  at::Tensor no_bias = {};  ///< of a layer normalization without bias: zeros shaped as one
  at::Tensor ones = {};     ///< of an RMSNorm of parts that has no weight: shaped as one

  /// What it multiplies by, without graph.
  at::Tensor factor() const;
  /// What a layer normalization adds, without graph; undefined: it is an RMSNorm.
  at::Tensor offset() const;
};

/// The residual stream and its norm, which continue together: so the gradient that flows past the norm is added inside
/// the norm's backward pass, and the norm's value is recomputed from the stream where a weight gradient needs it.
struct Normed {
  at::Tensor residual;                       ///< [s, b, h]
  at::Tensor y;                              ///< [s, b, h] norm of residual
  parallel::RecomputeFunction recompute_fn;  ///< y again
};

/// residual = x, y = norm(x).
Normed normalized(const at::Tensor& x_sbh, const Norm& norm);

/// Views of the parts of x, or of its gradient, that pass a norm each: contiguous features last.
using PartsOf = std::function<std::vector<at::Tensor>(const at::Tensor& x)>;
/// x with its parts normalized, in x's memory. Keeps the parts as they were.
at::Tensor normalized_parts(const at::Tensor& x, const PartsOf& parts, const std::vector<Norm>& norms);

/// Queries and keys, whose features all ranks of `tp` have together: parts[i] of x, each with a weight of as many of
/// its features as this rank has, and `copies` ranks that have the same.
struct DistributedNorm {
  Norm norm;
  std::int64_t features = 0;  ///< of all ranks, without copies
  int copies = 1;
};
/// normalized_parts() by RMSNorms over all features of all ranks: an all-reduce of a number of each part and token
/// forward, and one backward.
at::Tensor normalized_full_parts(const at::Tensor& x, const PartsOf& parts, const std::vector<DistributedNorm>& norms,
                                 const comm::Group& tp);

/// x + bias, in x's memory. The gradient of `bias` is written.
at::Tensor add_bias(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias);

/// residual' = residual + dropout(x + bias), y = norm(residual'): the end of one branch and the start of the next, in
/// one pass. x's memory becomes residual'. Gradients of `bias`, which may be null, and `norm` are written.
Normed add_norm(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias, const at::Tensor& residual_sbh,
                const kernels::Dropout& dropout, const Norm& norm);

/// residual + dropout(x + bias): the end of a branch where no norm follows. x's memory becomes the sum, which is not
/// kept. The gradient of `bias`, which may be null, is written.
at::Tensor add_residual(const at::Tensor& x_sbh, const parallel::ParameterPtr& bias, const at::Tensor& residual_sbh,
                        const kernels::Dropout& dropout, parallel::Value value = parallel::Value::Needed);

/// A value and how to make it again, so that the layer that takes it next need not keep it.
struct Recomputable {
  at::Tensor y;
  parallel::RecomputeFunction recompute_fn;  ///< y again; called at most once. Empty: keep y.
};

/// f(x + bias) [s, b, f]. `bias` may be null. x's memory becomes x + bias, which is kept.
at::Tensor bias_activation(const at::Tensor& x_sbf, const parallel::ParameterPtr& bias, kernels::Activation form);

/// The projection x [s, b, g * (2 n/g + 2) * d], of a group its queries, their gates, key and value, as `qkv`
/// [s, b, g * (n/g + 2) * d] and `gates` [s, b, n * d], which are copies. `queries`: n/g * d.
struct Ungated {
  at::Tensor qkv, gates;
};
Ungated without_gates(const at::Tensor& x, std::int64_t groups, std::int64_t queries);

/// x times the sigmoid of `gates`, computed in float32 or wider, [s, b, n * d]. Both are kept.
Recomputable gated(const at::Tensor& x, const at::Tensor& gates);

/// x with elements dropped and the others scaled.
at::Tensor dropout(const at::Tensor& x_sbh, const kernels::Dropout& options);

}  // namespace megatron::model
