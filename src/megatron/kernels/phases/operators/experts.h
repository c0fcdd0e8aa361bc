#pragma once
#include "megatron/kernels/phases/experts.h"
#include "megatron/kernels/phases/operators/elementwise.h"

namespace megatron::kernels::phases {

/// What is between the products of experts.
template <class Driver>
struct ExpertOperators {
  static WeightedGradient weighted_activation_backward(const at::Tensor& dy, const at::Tensor& u,
                                                       const at::Tensor& weights, Activation form, bool gated) {
    if (!takes(u, dy) || (weights.defined() && !of_type(u, weights, compute_dtype(u))))
      return reference::weighted_activation_backward(dy, u, weights, form, gated);
    WeightedGradient result{.du = at::empty_like(u),
                            .y = at::empty_like(dy),
                            .weights = weights.defined() ? at::empty_like(weights) : at::Tensor()};
    with_type(u.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      Driver::template launch<WeightedActivation<T>>({.unit = {.u = pointer<T>(u),
                                                               .dy = const_pointer<T>(dy),
                                                               .out = pointer<T>(result.du),
                                                               .again = pointer<T>(result.y),
                                                               .rows = dy.size(0),
                                                               .f = dy.size(1),
                                                               .gated = gated,
                                                               .form = form_of(form),
                                                               .clamp = static_cast<C>(form.clamp),
                                                               .offset = static_cast<C>(form.offset)},
                                                      .weights = const_pointer<C>(weights),
                                                      .gradients = pointer<C>(result.weights)},
                                                     dy.size(0));
    });
    return result;
  }

  static at::Tensor combined_rows(const at::Tensor& rows, const at::Tensor& index, const at::Tensor& weights) {
    if (!takes(rows) || index.numel() == 0 || !of_type(rows, index, at::kLong) ||
        (weights.defined() && !of_type(rows, weights, compute_dtype(rows))))
      return reference::combined_rows(rows, index, weights);
    const std::int64_t tokens = index.size(0), h = rows.size(1);
    at::Tensor out = at::empty({tokens, h}, rows.options());
    with_type(rows.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = CombineRows<T>;
      Driver::template launch<Kernel>({.rows = const_pointer<T>(rows),
                                       .index = const_pointer<std::int64_t>(index),
                                       .weights = const_pointer<Compute<T>>(weights),
                                       .out = pointer<T>(out),
                                       .tokens = tokens,
                                       .k = index.size(1),
                                       .h = h,
                                       .chunks = Divisor(chunks_of<T>(h))},
                                      blocks_for<Kernel>(tokens * chunks_of<T>(h)));
    });
    return out;
  }
};

}  // namespace megatron::kernels::phases
