#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "megatron/kernels/operators.h"
#include "megatron/kernels/phases/chunk.h"
#include "megatron/kernels/phases/mask.h"
#include "megatron/kernels/reference.h"

// What operators made of phases do with tensors. A Driver has launch<Kernel>(args, blocks): on the stream of the GPU,
// or on the host, where the launch is over when it returns. What the kernels do not take (views, mixed dtypes, no
// elements) is the reference's.
namespace megatron::kernels::phases {

/// Calls fn with a value of the type that is stored.
template <class Fn>
auto with_type(at::ScalarType dtype, const Fn& fn) {
  switch (dtype) {
    case at::kDouble:
      return fn(double());
    case at::kBFloat16:
      return fn(Bf16());
    case at::kHalf:
      return fn(Fp16());
    default:
      return fn(float());
  }
}
inline bool has_type(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Whether each of `tensors` that is defined is stored as x is, contiguous, on its device; and x has elements.
template <class... Tensors>
bool takes(const at::Tensor& x, const Tensors&... tensors) {
  [[maybe_unused]] const auto alike = [&](const at::Tensor& t) {  // unused where there is x alone
    return !t.defined() || (t.scalar_type() == x.scalar_type() && t.is_contiguous() && t.device() == x.device());
  };
  return has_type(x.scalar_type()) && x.is_contiguous() && x.numel() > 0 && (alike(tensors) && ...);
}
/// Whether x is contiguous on the device of `like`, of any floating dtype.
inline bool any_type(const at::Tensor& like, const at::Tensor& x) {
  return has_type(x.scalar_type()) && x.is_contiguous() && x.device() == like.device();
}
/// Whether x is contiguous, of `dtype` and on the device of `like`.
inline bool of_type(const at::Tensor& like, const at::Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == dtype && x.is_contiguous() && x.device() == like.device();
}

inline at::ScalarType compute_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Null where x is undefined.
template <class T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}
template <class T>
const T* const_pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}
inline DType type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return DType::F64;
    case at::kBFloat16:
      return DType::Bf16;
    case at::kHalf:
      return DType::Fp16;
    default:
      return DType::F32;
  }
}
inline In in(const at::Tensor& x) { return x.defined() ? In{x.const_data_ptr(), type_of(x)} : In{}; }
inline Out out(const at::Tensor& x) { return x.defined() ? Out{x.mutable_data_ptr(), type_of(x)} : Out{}; }

/// A dropout site for launches on `device`: ids that a launch does not carry are copied there.
class LaunchedMask {
 public:
  LaunchedMask(const Dropout& dropout, std::int64_t features, std::int64_t batch, at::Device device) {
    if (dropout.p <= 0) return;
    mask.on = true;
    mask.threshold = dropout_threshold(dropout.p);
    mask.factor = dropout.p < 1 ? 1.0 / (1.0 - dropout.p) : 0.0;
    mask.key = dropout.key;
    mask.position_offset = dropout.position_offset;
    mask.features = dropout.features_or(features);
    mask.feature_offset = dropout.feature_offset;
    mask.jump_at = dropout.jump_at;
    mask.jump = dropout.jump;
    ids_ = dropout.sample_ids.contiguous();
    if (ids_.scalar_type() != at::kLong || ids_.numel() < batch)
      throw std::logic_error("dropout of samples that have no ids");
    if (ids_.is_cpu() && batch <= Mask::kCarried) {
      std::copy_n(ids_.const_data_ptr<std::int64_t>(), batch, mask.carried);
    } else {
      ids_ = ids_.to(device, /*non_blocking=*/true);
      mask.many = ids_.const_data_ptr<std::int64_t>();
    }
  }
  Mask mask;

 private:
  at::Tensor ids_;
};

/// Rows of a position, [s, b, h].
inline std::int64_t batch_of(const at::Tensor& x) { return x.dim() == 3 ? x.size(1) : 1; }

}  // namespace megatron::kernels::phases
