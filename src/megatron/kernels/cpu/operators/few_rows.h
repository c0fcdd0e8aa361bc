#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/kernels/cpu/products/matrix.h"

namespace megatron::kernels::cpu {

/// few_rows_linear() (matmul.h) in pieces of work, which threads may compute in any order.
class FewRowsPieces {
 public:
  /// Arranges x in `wide`. The tensors must last.
  FewRowsPieces(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide);
  std::int64_t count() const { return count_; }
  void operator()(std::int64_t i) const;

  /// x as arrange_few_rows() leaves it for weights of w's type, rows one behind the other.
  const float* inputs() const { return static_cast<const float*>(whole_.a.data); }
  ElementType weights() const { return whole_.b.type; }

 private:
  Product whole_;
  std::int64_t step_, count_;
};

}  // namespace megatron::kernels::cpu
