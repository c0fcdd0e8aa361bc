#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/kernels/dropout.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/adapters.h"

namespace megatron::parallel {

/// The low-rank adapters of one linear layer on this rank: y += scale B A drop(x) for each of its parts. They compute
/// on what the layer's own product reads and add to what it gives before that is summed over ranks, so that they send
/// nothing: of a row-parallel layer both are partial sums, of a column-parallel one the input is whole. Their gradients
/// are written where the layer's would be.
///
///   A  [r, in]    of a row-parallel layer [r, in/t]
///   B  [out, r]   of a column-parallel layer the rows of this rank's outputs of the part
///   x  [s, b, in] as the layer's weight multiplies it: gathered along the sequence, of this rank's features
class Adapter {
 public:
  struct Part {
    plan::LinearPart outputs;  ///< on this rank
    ParameterPtr a, b;
    std::uint64_t dropout_key = 0;
  };
  /// `features`, `first_feature`: of the whole input, and where x begins in it.
  Adapter(std::vector<Part> parts, double scale, double dropout, std::int64_t features, std::int64_t first_feature)
      : parts_(std::move(parts)),
        scale_(scale),
        dropout_(dropout),
        features_(features),
        first_feature_(first_feature) {}

  // `samples` [b] int64: the training samples of the microbatch, of which dropout is a function; undefined: no dropout.

  /// Adds to y [s, b, out], contiguous, in place.
  void add_to(const at::Tensor& y, const at::Tensor& x, const at::Tensor& samples) const;
  /// Adds the adapters' part of x's gradient to dx, in place.
  void add_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& samples) const;
  /// Contributes to the gradients of A and B.
  void write_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& samples) const;

  /// Whether write_gradients() is to be put off.
  bool deferring() const { return parts_.front().a->deferring(); }
  void contribute(GradientQueue::Work write) const { parts_.front().a->contribute(std::move(write)); }
  /// Appends the values of A and B, on which autograd sees the layer depend.
  void append_values(std::vector<at::Tensor>& inputs) const;

 private:
  at::Tensor dropped(const Part& part, const at::Tensor& x, const at::Tensor& samples) const;

  std::vector<Part> parts_;
  double scale_, dropout_;
  std::int64_t features_, first_feature_;
};
using AdapterPtr = std::shared_ptr<const Adapter>;

}  // namespace megatron::parallel
