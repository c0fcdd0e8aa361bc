#pragma once
#include <ATen/ops/sort.h>

#include "megatron/kernels/phases/activation.h"
#include "megatron/kernels/phases/embedding.h"
#include "megatron/kernels/phases/operators/arguments.h"
#include "megatron/kernels/phases/rope.h"

namespace megatron::kernels::phases {

inline Form form_of(Activation form) {
  switch (form.kind) {
    case Activation::GeluTanh:
      return Form::GeluTanh;
    case Activation::GeluErf:
      return Form::GeluErf;
    case Activation::Silu:
      return Form::Silu;
    case Activation::Relu:
      return Form::Relu;
    case Activation::SquaredRelu:
      return Form::SquaredRelu;
    case Activation::QuickGelu:
      return Form::QuickGelu;
  }
  throw std::logic_error("an activation without a kernel");
}

/// Activations, rotations and embeddings.
template <class Driver>
struct ElementwiseOperators {
  static at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
    return takes(x, bias) ? forward(x, bias, form, false) : reference::bias_activation(x, bias, form);
  }
  static at::Tensor activation(const at::Tensor& u, Activation form) {
    return takes(u) ? forward(u, {}, form, false) : reference::activation(u, form);
  }
  static at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
    return takes(x, bias) ? forward(x, bias, form, true) : reference::bias_gated_activation(x, bias, form);
  }
  static at::Tensor gated_activation(const at::Tensor& u, Activation form) {
    return takes(u) ? forward(u, {}, form, true) : reference::gated_activation(u, form);
  }
  static at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u, Activation form) {
    if (!takes(u, dy)) return reference::activation_backward(dy, u, form);
    activate(u, {}, dy, dy, form, false);
    return dy;
  }
  static at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form) {
    if (!takes(u, dy)) return reference::gated_activation_backward(dy, u, form);
    at::Tensor du = at::empty_like(u);
    activate(u, {}, dy, du, form, true);
    return du;
  }

  static void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
                      std::int64_t first_position, bool inverse) {
    const bool known = has_type(heads.scalar_type()) && heads.numel() > 0 && heads.dim() >= 3 && heads.dim() <= 5 &&
                       heads.stride(-1) == 1 && table.cos.numel() > 0 &&
                       of_type(heads, table.cos, compute_dtype(heads)) &&
                       of_type(heads, table.sin, compute_dtype(heads)) &&
                       (!position_ids.defined() || position_ids.scalar_type() == at::kLong);
    if (!known) return reference::rotate_(heads, table, position_ids, first_position, inverse);
    check_rotation(heads, table, position_ids, first_position);
    const at::Tensor ids =
        position_ids.defined() ? position_ids.to(heads.device(), /*non_blocking=*/true) : at::Tensor();
    with_type(heads.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      using Kernel = Rotate<T>;
      typename Kernel::Args args;
      args.heads = pointer<T>(heads);
      for (std::int64_t d = 0; d + 1 < heads.dim(); ++d) {
        args.sizes[d] = heads.size(d);
        args.strides[d] = heads.stride(d);
      }
      args.cos = const_pointer<C>(table.cos);
      args.sin = const_pointer<C>(table.sin);
      args.positions = table.cos.size(0);
      args.half = table.cos.size(1);
      args.ids = const_pointer<std::int64_t>(ids);
      if (ids.defined()) {
        args.ids_stride_b = ids.size(0) == 1 ? 0 : ids.stride(0);
        args.ids_stride_s = ids.stride(1);
      }
      args.first = first_position;
      args.interleaved = table.interleaved;
      args.inverse = inverse;
      const std::int64_t threads = Kernel::prepare(args);
      Driver::template launch<Kernel>(args, blocks_for<Kernel>(threads));
    });
  }

  // The device's product, which adds the bias, and then the activation's kernel.
  static ActivatedOutput linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                                           Activation form, bool gated, PackedWeight* packed) {
    at::Tensor u = kernels::linear(x, w, packed, bias);
    at::Tensor y = gated ? gated_activation(u, form) : activation(u, form);
    return {std::move(u), std::move(y)};
  }
  static ActivatedOutput linear_activation_gradient(const at::Tensor& dz, const at::Tensor& w, const at::Tensor& u,
                                                    Activation form, bool gated, bool again, PackedWeight* packed) {
    const at::Tensor dy = kernels::linear_input_gradient(dz, w, packed);
    if (!again || !takes(u, dy)) {
      ActivatedOutput out{gated ? gated_activation_backward(dy, u, form) : activation_backward(dy, u, form), {}};
      if (again) out.y = gated ? gated_activation(u, form) : activation(u, form);
      return out;
    }
    ActivatedOutput out{gated ? at::empty_like(u) : dy, at::empty_like(dy)};
    activate(u, {}, dy, out.u, form, gated, out.y);
    return out;
  }

  static at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin) {
    if (!takes(weight) || tokens.numel() == 0 || !of_type(weight, tokens, at::kLong))
      return reference::embedding(tokens, weight, begin);
    at::Tensor result = at::empty({tokens.size(0), tokens.size(1), weight.size(1)}, weight.options());
    with_type(weight.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Driver::template launch<Embed<T>>({.tokens = const_pointer<std::int64_t>(tokens),
                                         .weight = const_pointer<T>(weight),
                                         .out = pointer<T>(result),
                                         .n = tokens.numel(),
                                         .v = weight.size(0),
                                         .h = weight.size(1),
                                         .begin = begin,
                                         .chunks = Divisor(chunks_of<T>(weight.size(1)))},
                                        blocks_for<Embed<T>>(tokens.numel() * chunks_of<T>(weight.size(1))));
    });
    return result;
  }
  static void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                                 std::int64_t begin) {
    if (!takes(dy) || !any_type(dy, grad_weight) || !of_type(dy, tokens, at::kLong))
      return reference::embedding_backward(grad_weight, tokens, dy, begin);
    const auto by_token = at::sort(tokens.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
    const at::Tensor &sorted = std::get<0>(by_token), &order = std::get<1>(by_token);
    with_type(dy.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = EmbedGradient<T>;
      Driver::template launch<Kernel>({.tokens = const_pointer<std::int64_t>(sorted),
                                       .order = const_pointer<std::int64_t>(order),
                                       .dy = const_pointer<T>(dy),
                                       .gradient = out(grad_weight),
                                       .n = tokens.numel(),
                                       .v = grad_weight.size(0),
                                       .h = grad_weight.size(1),
                                       .begin = begin},
                                      tokens.numel() * Kernel::tiles(grad_weight.size(1)));
    });
  }

 private:
  static at::Tensor forward(const at::Tensor& u, const at::Tensor& bias, Activation form, bool gated) {
    std::vector<std::int64_t> shape(u.sizes().begin(), u.sizes().end());
    if (gated) shape.back() /= 2;
    at::Tensor y = at::empty(shape, u.options());
    activate(u, bias, {}, y, form, gated);
    return y;
  }
  static void activate(const at::Tensor& u, const at::Tensor& bias, const at::Tensor& dy, const at::Tensor& to,
                       Activation form, bool gated, const at::Tensor& again = {}) {
    const std::int64_t width = u.size(-1), rows = u.numel() / width, f = gated ? width / 2 : width;
    with_type(u.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = Activate<T>;
      using C = Compute<T>;
      Driver::template launch<Kernel>({.u = pointer<T>(u),
                                       .bias = const_pointer<T>(bias),
                                       .dy = const_pointer<T>(dy),
                                       .out = pointer<T>(to),
                                       .again = pointer<T>(again),
                                       .rows = rows,
                                       .f = f,
                                       .chunks = Divisor(chunks_of<T>(f)),
                                       .gated = gated,
                                       .form = form_of(form),
                                       .clamp = static_cast<C>(form.clamp),
                                       .offset = static_cast<C>(form.offset)},
                                      blocks_for<Kernel>(rows * chunks_of<T>(f)));
    });
  }
};

}  // namespace megatron::kernels::phases
