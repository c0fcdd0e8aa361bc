#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "megatron/kernels/cpu/products/matrix.h"
#include "megatron/kernels/low_rank/low_rank.h"

namespace megatron::kernels::cpu {

/// A product y = x w^T in pieces of work, which threads may compute in any order. Its tensors must last.
class ProductPieces {
 public:
  virtual ~ProductPieces() = default;
  std::int64_t count() const { return count_; }
  /// Outputs of a piece: those of piece i begin with i * outputs().
  std::int64_t outputs() const { return outputs_; }
  /// `thread`: of num_threads(), the one that calls.
  virtual void compute(std::int64_t i, int thread) const = 0;
  /// x as arrange_few_rows() leaves it for weights of `type`, rows one behind the other, where the product reads it so;
  /// else null.
  virtual const float* arranged_inputs(ElementType type) const = 0;

 protected:
  std::int64_t count_ = 0, outputs_ = 0;
};

/// few_rows_linear() (matmul.h).
class FewRowsPieces : public ProductPieces {
 public:
  /// Arranges x in `wide`.
  FewRowsPieces(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide);
  void compute(std::int64_t i, int thread) const override;
  const float* arranged_inputs(ElementType type) const override {
    return type == whole_.b.type ? static_cast<const float*>(whole_.a.data) : nullptr;
  }

 private:
  Product whole_;
};

/// Computes `product`, which gives y of x, and then add_low_rank(), to the bit: the threads start once for both.
void multiply_with_low_rank(const ProductPieces& product, const at::Tensor& y, const at::Tensor& x,
                            std::span<const LowRankRows> groups, at::Tensor& scratch);

}  // namespace megatron::kernels::cpu
