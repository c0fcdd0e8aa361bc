#include "megatron/kernels/activation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kBlock = 8192;  // elements that a thread takes at a time

/// Calls run(row) for rows of at least kBlock elements together.
template <class Run>
void by_rows(const at::Tensor& x, const Run& run) {
  const std::int64_t features = x.size(-1), rows = features > 0 ? x.numel() / features : 0;
  const std::int64_t together = features > 0 ? std::max<std::int64_t>(1, kBlock / features) : 1;
  cpu::for_each_block((rows + together - 1) / together, [&](std::int64_t i, int) {
    for (std::int64_t row = i * together; row < std::min(rows, (i + 1) * together); ++row) run(row);
  });
}

/// Calls run(begin, count) over [0, total) in blocks that a thread keeps in its first cache.
template <class Run>
void in_blocks(std::int64_t total, const Run& run) {
  cpu::for_each_block((total + kBlock - 1) / kBlock, [&](std::int64_t i, int) {
    run(i * kBlock, static_cast<std::size_t>(std::min(kBlock, total - i * kBlock)));
  });
}

}  // namespace

namespace cpu {

at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  if (!cpu::fast_as(x.scalar_type(), x, bias)) return reference::bias_activation(std::move(x), bias, form);
  at::Tensor y = at::empty_like(x);
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto forward = cpu::activation_kernels<T>(form).forward;
    T *x_data = x.mutable_data_ptr<T>(), *y_data = y.mutable_data_ptr<T>();
    const T* b = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
    const std::int64_t features = x.size(-1);
    by_rows(x, [&](std::int64_t row) {
      forward(x_data + row * features, b, y_data + row * features, static_cast<std::size_t>(features), form);
    });
  });
  return y;
}

at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u, Activation form) {
  if (!cpu::fast_as(u.scalar_type(), dy, u)) return reference::activation_backward(std::move(dy), u, form);
  cpu::with_storage(u.scalar_type(), [&]<class T>(T) {
    const auto backward = cpu::activation_kernels<T>(form).backward;
    T* dy_data = dy.mutable_data_ptr<T>();
    const T* u_data = u.const_data_ptr<T>();
    in_blocks(dy.numel(),
              [&](std::int64_t begin, std::size_t count) { backward(dy_data + begin, u_data + begin, count); });
  });
  return dy;
}

at::Tensor activation(const at::Tensor& u, Activation form) {
  if (!cpu::fast_as(u.scalar_type(), u)) return reference::activation(u, form);
  at::Tensor y = at::empty_like(u);
  cpu::with_storage(u.scalar_type(), [&]<class T>(T) {
    const auto forward = cpu::activation_kernels<T>(form).forward;
    T *u_data = u.data_ptr<T>(), *y_data = y.mutable_data_ptr<T>();  // u is only read: there is no bias
    in_blocks(u.numel(), [&](std::int64_t begin, std::size_t count) {
      forward(u_data + begin, nullptr, y_data + begin, count, form);
    });
  });
  return y;
}

at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  if (!cpu::fast_as(x.scalar_type(), x, bias)) return reference::bias_gated_activation(std::move(x), bias, form);
  std::vector<std::int64_t> shape = x.sizes().vec();
  const std::int64_t features = shape.back() / 2;
  shape.back() = features;
  at::Tensor y = at::empty(shape, x.options());
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto forward = cpu::activation_kernels<T>(form).gated_forward;
    T *x_data = x.data_ptr<T>(), *y_data = y.mutable_data_ptr<T>();  // x is only read where there is no bias
    const T* b = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
    by_rows(x, [&](std::int64_t row) {
      forward(x_data + row * 2 * features, b, y_data + row * features, static_cast<std::size_t>(features), form);
    });
  });
  return y;
}

at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form) {
  if (!cpu::fast_as(u.scalar_type(), dy, u)) return reference::gated_activation_backward(dy, u, form);
  at::Tensor du = at::empty_like(u);
  cpu::with_storage(u.scalar_type(), [&]<class T>(T) {
    const auto backward = cpu::activation_kernels<T>(form).gated_backward;
    const T *dy_data = dy.const_data_ptr<T>(), *u_data = u.const_data_ptr<T>();
    T* du_data = du.mutable_data_ptr<T>();
    const std::int64_t features = dy.size(-1);
    by_rows(u, [&](std::int64_t row) {
      const std::int64_t at = row * features;
      backward(dy_data + at, u_data + 2 * at, du_data + 2 * at, static_cast<std::size_t>(features), form);
    });
  });
  return du;
}

at::Tensor gated_activation(const at::Tensor& u, Activation form) {
  if (!cpu::fast_as(u.scalar_type(), u)) return reference::gated_activation(u, form);
  return cpu::bias_gated_activation(u, {}, form);
}

}  // namespace cpu
}  // namespace megatron::kernels
