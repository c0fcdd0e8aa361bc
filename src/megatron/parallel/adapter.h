#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/kernels/dropout.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/ranks/sequence_share.h"

namespace megatron::kernels {
class LowRank;  // low_rank/low_rank.h
}

namespace megatron::parallel {

/// The low-rank adapters of one linear layer on this rank: y += scale B A drop(x) for each of its parts. They compute
/// on what the layer's own product reads and add to what it gives before that is summed over ranks, so that they send
/// nothing: of a row-parallel layer both are partial sums, of a column-parallel one the input is whole. Their gradients
/// are written where the layer's would be.
///
///   A  [r, in]    of a row-parallel layer [r, in/t]
///   B  [out, r]   of a column-parallel layer the rows of this rank's outputs of the part
///   m  [out]      its magnitude, as B; or none
///   x  [s, b, in] as the layer's weight multiplies it: gathered along the sequence, of this rank's features
///
/// With magnitudes (magnitude.h) y without its bias becomes, as PEFT has it, where g = m / |W + scale B A|:
///
///   g (W x + scale B A x)                                     without dropout
///   W x + (g - 1) W drop(x) + g scale B A drop(x)             with it
///
/// g is the same on every rank that has a part of a sum, and linear in what it multiplies: it sends nothing either. The
/// norms do, of a row-parallel layer: one all-reduce per pass. Gradients of m need W x, which is computed again.
class Adapter {
 public:
  struct Part {
    plan::ProjectionSlice outputs;  ///< on this rank
    ParameterPtr a, b;
    std::uint64_t dropout_key = 0;
    ParameterPtr magnitude = nullptr;  ///< of every part of the layer, or of none
  };
  /// A forward pass, and the backward pass that belongs to it.
  struct Pass {
    /// [b] int64: the training samples of the microbatch, of which dropout is a function; undefined: no dropout.
    at::Tensor samples = {};
    /// By part, in float32 or wider; empty without magnitudes.
    std::vector<at::Tensor> norms = {};
  };
  /// The matrices of a layer that is one part: W becomes g (W + scale B A).
  struct Matrices {
    at::Tensor a, b;         ///< [r, in], [out, r] on this rank
    at::Tensor factor = {};  ///< g [out], in float32 or wider; undefined: 1
    double scale = 1;
  };
  /// `features`, `first_feature`: of the whole input, and where x begins in it. `share`: of each sequence, the tokens
  /// that x has.
  Adapter(std::vector<Part> parts, double scale, double dropout, std::int64_t features, std::int64_t first_feature,
          const plan::SequenceShare& share)
      : parts_(std::move(parts)),
        scale_(scale),
        dropout_(dropout),
        features_(features),
        first_feature_(first_feature),
        share_(share) {}

  bool has_magnitudes() const { return parts_.front().magnitude != nullptr; }
  /// What add_to() computes without dropout, for few rows on the CPU; of values that are not written to any more. Null
  /// for matrices that it does not take.
  std::shared_ptr<const kernels::LowRank> for_few_rows(const Pass& pass) const;
  /// For who multiplies by the weight otherwise than by its rows. Throws std::logic_error for several parts.
  Matrices matrices(const Pass& pass) const;
  /// `weight`: the layer's, here as below. `inputs`: the ranks that have its other columns; collective over it where
  /// there are magnitudes.
  Pass pass(const Parameter& weight, const at::Tensor& samples, const comm::Group& inputs) const;

  /// Makes y [s, b, out], contiguous, which is W x without a bias where there are magnitudes, what the layer gives: in
  /// place.
  void add_to(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, const Pass& pass) const;
  /// Of y's gradient what goes through the layer's own product W x to x: dy, or a new tensor.
  at::Tensor through_weight(const at::Tensor& dy, const Pass& pass) const;
  /// Adds the rest of x's gradient to dx, in place.
  void add_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Parameter& weight, const Pass& pass) const;
  /// Contributes to the gradients of A, B and m.
  void write_gradients(const at::Tensor& dy, const at::Tensor& x, Parameter& weight, const Pass& pass) const;

  /// Whether write_gradients() is to be put off.
  bool deferring() const { return parts_.front().a->deferring(); }
  void contribute(GradientQueue::Work write) const { parts_.front().a->contribute(std::move(write)); }
  /// Appends the values of A, B and m, on which autograd sees the layer depend.
  void append_values(std::vector<at::Tensor>& inputs) const;

 private:
  bool drops(const Pass& pass) const { return dropout_ > 0 && pass.samples.defined(); }
  at::Tensor dropped(const Part& part, const at::Tensor& x, const Pass& pass) const;

  std::vector<Part> parts_;
  double scale_, dropout_;
  std::int64_t features_, first_feature_;
  plan::SequenceShare share_;
};
using AdapterPtr = std::shared_ptr<const Adapter>;

}  // namespace megatron::parallel
