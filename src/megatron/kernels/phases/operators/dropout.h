#pragma once
#include "megatron/kernels/phases/dropout.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// Dropout, the sums that it ends in, and its masks.
template <class Driver>
struct DropoutOperators {
  static at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                     const Dropout& dropout) {
    if (!takes(x, bias, residual)) return reference::bias_dropout_add(x, bias, residual, dropout);
    add(x, x, bias, residual, dropout);
    return x;
  }
  static at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
    if (dropout.p <= 0 || !takes(dy)) return reference::dropout_backward(dy, dropout);
    at::Tensor dx = at::empty_like(dy);
    add(dx, dy, {}, {}, dropout);
    return dx;
  }

  static at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h,
                                 at::ScalarType dtype, at::Device device) {
    if (dropout.p <= 0 || !has_type(dtype) || s * b * h == 0)
      return reference::dropout_mask(dropout, s, b, h, dtype, device);
    const at::Tensor mask = at::empty({s, b, h}, at::TensorOptions().dtype(dtype).device(device));
    write_mask(mask, LaunchedMask(dropout, h, b, device), b, 0);
    return mask;
  }
  static at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n,
                                           std::int64_t head_offset, std::int64_t queries, std::int64_t keys,
                                           at::ScalarType dtype, at::Device device) {
    const bool in_part = dropout.positions > 0 && dropout.positions != queries;
    if (dropout.p <= 0 || !has_type(dtype) || b * n * queries * keys == 0 || in_part)
      return reference::attention_dropout_mask(dropout, b, n, head_offset, queries, keys, dtype, device);
    const at::Tensor mask = at::empty({b, n, queries, keys}, at::TensorOptions().dtype(dtype).device(device));
    LaunchedMask launched(dropout, keys, b, device);
    launched.mask.position_offset = head_offset * queries + dropout.position_offset;
    launched.mask.jump = 0;
    write_mask(mask, launched, 1, n * queries);
    return mask;
  }

 private:
  static void write_mask(const at::Tensor& mask, const LaunchedMask& launched, std::int64_t batch,
                         std::int64_t rows_of_sample) {
    const std::int64_t h = mask.size(-1), rows = mask.numel() / h;
    with_type(mask.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = WriteMask<T>;
      Driver::template launch<Kernel>({.out = pointer<T>(mask),
                                       .rows = rows,
                                       .h = h,
                                       .rows_of_sample = rows_of_sample,
                                       .chunks = Divisor(chunks_of<T>(h)),
                                       .group = Divisor(rows_of_sample > 0 ? rows_of_sample : batch),
                                       .mask = launched.mask},
                                      blocks_for<Kernel>(rows * chunks_of<T>(h)));
    });
  }

  static void add(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                  const Dropout& dropout) {
    const std::int64_t h = x.size(-1), rows = x.numel() / h;
    const LaunchedMask mask(dropout, h, batch_of(x), x.device());
    with_type(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = BiasDropoutAdd<T>;
      Driver::template launch<Kernel>({.x = const_pointer<T>(x),
                                       .bias = const_pointer<T>(bias),
                                       .residual = const_pointer<T>(residual),
                                       .out = pointer<T>(sum),
                                       .rows = rows,
                                       .h = h,
                                       .chunks = Divisor(chunks_of<T>(h)),
                                       .batch = Divisor(batch_of(x)),
                                       .mask = mask.mask},
                                      blocks_for<Kernel>(rows * chunks_of<T>(h)));
    });
  }
};

}  // namespace megatron::kernels::phases
