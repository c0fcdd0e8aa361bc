#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

// Linear layers whose matrix is split over a tensor-parallel group (Shoeybi et al. 2019, section 3), t = tp.size().
// Their backward passes write weight and bias gradients into the parameters' buffers by the matrix product itself.
namespace megatron::parallel {

/// Makes a layer's input again for its weight gradient, so that it need not be kept: GELU of the input before it, a
/// norm of the residual stream. Must give what `forward` got. Empty: the input is kept.
using Remake = std::function<at::Tensor()>;

/// y = x W^T + b with W split by output rows.
///
///   weight  [out/t, in]       rows k*out/t … of the full weight on rank k
///   bias    [out/t], may be null
///   x       [s, b, in]        the same on every rank
///   returns [s, b, out/t]     this rank's output features; [s, b, out] with gather_output
///
/// Communication: forward none (gather_output: one all-gather); backward one all-reduce of dx, which overlaps the
/// product for the weight gradient, and which is left out where x needs no gradient.
class ColumnParallelLinear {
 public:
  struct Options {
    bool gather_output = false;
    bool skip_bias_add = false;  ///< leave the bias to the caller, who fuses it with what follows
  };

  ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options = {false, false});
  at::Tensor forward(const at::Tensor& x, Remake remake = {}) const;
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 private:
  ParameterPtr weight_, bias_;
  comm::Group tp_;
  Options options_;
};

/// y = x W^T + b with W split by input columns.
///
///   weight  [out, in/t]     columns k*in/t … of the full weight on rank k
///   bias    [out], the same on every rank, may be null; added after the sum over ranks
///   x       [s, b, in/t]    this rank's input features; [s, b, in] where input_is_parallel is false
///   returns [s, b, out]     the same on every rank
///
/// Communication: forward one all-reduce of y; backward none (an all-gather of dx where input_is_parallel is false).
class RowParallelLinear {
 public:
  struct Options {
    bool input_is_parallel = true;
    bool skip_bias_add = false;  ///< leave the bias to the caller, who fuses it with what follows
  };

  RowParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options = {true, false});
  at::Tensor forward(const at::Tensor& x, Remake remake = {}) const;
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 private:
  ParameterPtr weight_, bias_;
  comm::Group tp_;
  Options options_;
};

}  // namespace megatron::parallel
