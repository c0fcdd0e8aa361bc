#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "megatron/comm/group.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/dropout.h"
#include "megatron/parallel/adapter.h"
#include "megatron/parallel/kept_adapters.h"
#include "megatron/parallel/parameter.h"

// Linear layers whose matrix is split over a tensor-parallel group (Shoeybi et al. 2019, section 3), t = tp.size(),
// k = tp.rank(). Their backward passes write weight and bias gradients into the parameters' buffers by the matrix
// product itself, or hand that work to the parameters' queue (parameter.h).
//
// With sequence_parallel (Korthikanti et al. 2022, section 4.2.2) what is between a row-parallel and the next
// column-parallel layer is split along the sequence: rank k has positions k*s/t …. An all-reduce becomes a
// reduce-scatter one way and an all-gather the other, which together send as much. The gathered input is not kept but
// gathered again in the backward pass. A transformer layer, two pairs of these, has in a microbatch's forward and
// backward pass 4 all-gathers and 4 reduce-scatters as in the paper, and 2 all-gathers of inputs gathered again. Where
// weight gradients are put off, the gradient of a row-parallel layer's output is not kept whole either: 2 more.
namespace megatron::parallel {

class Fp8Products;  // fp8.h
using Fp8ProductsPtr = std::shared_ptr<const Fp8Products>;

/// Makes a layer's input again for its weight gradient, so that it need not be kept: GELU of the input before it, a
/// norm of the residual stream. Must give what `forward` got (with sequence_parallel the rank's part, which is then
/// gathered). Empty: the input is kept.
using RecomputeFunction = std::function<at::Tensor()>;

/// Whether a layer's value is read. Where it is only gone backward through (the last layer of what is computed again),
/// it is memory of the value's shape: nothing is computed and nothing sent.
enum class Value : std::uint8_t { Needed, Unread };

/// What is between a column-parallel and a row-parallel layer, on this rank's features: y = f(u), gated (activation.h)
/// or not, after which elements may be dropped. Both layers' kernels compute it where they have their sums in a cache.
struct InnerActivation {
  kernels::Activation form = kernels::Activation::GeluTanh;
  bool gated = false;
  kernels::Dropout dropout = {};
};
/// u [s, b, f], gated [s, b, 2 f], is what autograd knows; y [s, b, f] it does not.
struct Activated {
  at::Tensor u, y;
};
/// How u and y are had in the backward pass, where they are not kept: null `u_fn`: u is; null `y_fn`: y follows from u,
/// beside u's gradient where that is computed at once. Each is called at most once.
struct ActivatedAgain {
  RecomputeFunction u_fn = {}, y_fn = {};
};

/// The low-rank adapters of a layer in a pass (adapter.h). A weight that is frozen gets no gradient: without adapters
/// its input is then not kept.
struct Adaptation {
  AdapterPtr adapter = {};  ///< null: none
  Adapter::Pass pass = {};
  KeptAdaptersPtr kept = {};  ///< those that sequences of the batch chose, where nothing is trained; null: none
};

/// y = x W^T + b with W split by output rows.
///
///   weight  [out/t, in]       rows k*out/t … of the full weight on rank k
///   bias    [out/t], may be null
///   x       [s, b, in]        the same on every rank
///           [s/t, b, in]      with sequence_parallel: this rank's positions
///   returns [s, b, out/t]     this rank's output features; [s, b, out] with gather_output
///
/// Communication: forward none (gather_output: one all-gather); backward one all-reduce of dx, which overlaps the
/// product for the weight gradient, and which is left out where x needs no gradient.
/// sequence_parallel: forward one all-gather of x; backward the same again, which overlaps the product for dx, and one
/// reduce-scatter of dx in place of the all-reduce.
class ColumnParallelLinear {
 public:
  struct Options {
    bool gather_output = false;
    bool skip_bias_add = false;  ///< leave the bias to the caller, who fuses it with what follows
    bool sequence_parallel = false;
  };

  ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options = {false, false, false});
  /// `samples`: of a pass that drops what adapters read (Adapter::Pass).
  at::Tensor forward(const at::Tensor& x, RecomputeFunction recompute_fn = {}, const at::Tensor& samples = {}) const;
  /// The layer, bias included, as u, and what `inner` makes of it. Not with gather_output.
  Activated forward(const at::Tensor& x, const InnerActivation& inner, RecomputeFunction recompute_fn,
                    const at::Tensor& samples = {}) const;
  void adapt(AdapterPtr adapter) { adapter_ = std::move(adapter); }
  /// From now on each sequence of a batch has the one of these that it chose; null: none has. Of a model that only
  /// computes forward: they get no gradients, and none go through them.
  void keep(KeptAdaptersPtr adapters) { kept_ = std::move(adapters); }
  const KeptAdaptersPtr& kept() const { return kept_; }  ///< may be null
  /// From now on the products with the weight are those of `fp8`; null: in the weight's type. Not with adapters.
  void compute_in(Fp8ProductsPtr fp8) { fp8_ = std::move(fp8); }
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 private:
  ParameterPtr weight_, bias_;
  AdapterPtr adapter_;
  KeptAdaptersPtr kept_;
  Fp8ProductsPtr fp8_;
  comm::Group tp_;
  Options options_;
};

/// y = x W^T + b with W split by input columns.
///
///   weight  [out, in/t]     columns k*in/t … of the full weight on rank k
///   bias    [out], the same on every rank, may be null; added after the sum over ranks
///   x       [s, b, in/t]    this rank's input features; [s, b, in] where input_is_parallel is false
///   returns [s, b, out]     the same on every rank
///           [s/t, b, out]   with sequence_parallel: this rank's positions; s must divide by t
///
/// Communication: forward one all-reduce of y; backward none (an all-gather of dx where input_is_parallel is false).
/// Adapters with magnitudes: forward one more of [out] per part, before that of y.
/// sequence_parallel: forward one reduce-scatter of y; backward one all-gather of dy, which both products read (one
/// more where the weight gradient is put off). The bias gradient is that of this rank's positions: a partial sum
/// (spec.sequence_partial).
class RowParallelLinear {
 public:
  struct Options {
    bool input_is_parallel = true;
    bool skip_bias_add = false;  ///< leave the bias to the caller, who fuses it with what follows
    bool sequence_parallel = false;
  };

  RowParallelLinear(ParameterPtr weight, ParameterPtr bias, comm::Group tp, Options options = {true, false, false});
  /// `samples`: of a pass that drops what adapters read (Adapter::Pass).
  at::Tensor forward(const at::Tensor& x, RecomputeFunction recompute_fn = {}, Value value = Value::Needed,
                     const at::Tensor& samples = {}) const;
  /// Of x.y, which `inner` made of x.u: the gradient is that of u. With input_is_parallel.
  at::Tensor forward(const Activated& x, const InnerActivation& inner, const ActivatedAgain& again,
                     Value value = Value::Needed, const at::Tensor& samples = {}) const;
  void adapt(AdapterPtr adapter) { adapter_ = std::move(adapter); }
  void keep(KeptAdaptersPtr adapters) { kept_ = std::move(adapters); }  ///< as of ColumnParallelLinear
  const KeptAdaptersPtr& kept() const { return kept_; }                 ///< may be null
  void compute_in(Fp8ProductsPtr fp8) { fp8_ = std::move(fp8); }        ///< as of ColumnParallelLinear
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 private:
  ParameterPtr weight_, bias_;
  AdapterPtr adapter_;
  KeptAdaptersPtr kept_;
  Fp8ProductsPtr fp8_;
  comm::Group tp_;
  Options options_;
};

}  // namespace megatron::parallel
