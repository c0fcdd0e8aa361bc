#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

// Low-rank matrices that add to what a linear layer gives, of few rows (decoding), on the CPU: one call computes all of
// a layer for all rows, whichever matrices each has. As products, sums and views of tensors these took longer than a
// small model's own layers (decision 149).
namespace megatron::kernels {

struct QuantizedMatrix;  // quantized/blocks.h

/// Whether LowRank takes matrices of x's dtype and device: float32, bf16 and fp16 on a CPU with vector kernels.
bool takes_low_rank(const at::Tensor& x);

/// Low-rank matrices of parts of one layer's outputs: these become g (y + scale B A x).
class LowRank {
 public:
  struct Part {
    at::Tensor a;       ///< [r, in], contiguous; read where it lies
    at::Tensor b;       ///< [groups * length, r]; copied
    at::Tensor factor;  ///< g: [groups * length]; undefined: 1
    /// The part's outputs among the layer's, seen as [groups, group_outputs]: `length` of each group, from `offset` on.
    std::int64_t groups = 1, group_outputs = 0, offset = 0, length = 0;
  };
  /// `parts`: of one dtype, which takes_low_rank().
  LowRank(const std::vector<Part>& parts, double scale);

  /// Whether add_low_rank() adds these to y.
  bool takes(const at::Tensor& y) const { return y.scalar_type() == b_.scalar_type() && takes_low_rank(y); }

 private:
  friend class LowRankCall;

  /// Outputs side by side that are computed at once, of one part.
  struct Panel {
    std::int64_t column = 0, count = 0;  ///< those of the layer
    std::int64_t z = 0, rank = 0;        ///< where what its A gives begins
    std::int64_t b = 0, factor = -1;     ///< where they begin in b_ and factors_; -1: none
  };
  /// Some rows of a part's A: one piece of work.
  struct Rows {
    std::size_t part = 0;
    std::int64_t first = 0, count = 0, z = 0;
  };
  /// Panels whose B one piece of work reads, and the layer's outputs that they and what lies between them are.
  struct Panels {
    std::size_t first = 0, count = 0;
    std::int64_t begin = 0, end = 0;
  };

  std::vector<at::Tensor> a_;
  at::Tensor b_;               ///< flat: of each panel [r][kLowRankPanel]
  at::Tensor factors_;         ///< flat float32: of each panel that has some [kLowRankPanel]
  std::vector<Panel> panels_;  ///< by column
  std::vector<Rows> down_;
  std::vector<Panels> up_;
  std::int64_t inputs_ = 0, ranks_ = 0, outputs_ = 0;
  float scale_ = 1;
};

/// Rows of a call that have the same matrices.
struct LowRankRows {
  const LowRank* matrices = nullptr;
  std::span<const std::int64_t> rows = {};  ///< their numbers; empty: all rows
};

/// Adds to y [rows, out], of x [rows, in], what the matrices of each row make of it: in place, both contiguous and of
/// the matrices' dtype. Each row gets the same bits whatever the others are, up to most_few_rows() of A; a sum is
/// rounded once. `scratch`: float32, made where it is undefined or too small. Throws std::logic_error for a row that is
/// not there.
void add_low_rank(const at::Tensor& y, const at::Tensor& x, std::span<const LowRankRows> groups, at::Tensor& scratch);
/// few_rows_linear() (matmul.h, quantized/blocks.h) into y, and then add_low_rank(), to the bit: the threads start once
/// for both, and none waits for all of the product. `wide`: as of few_rows_linear().
void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide,
                     std::span<const LowRankRows> groups, at::Tensor& scratch);
void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, const at::Tensor& wide,
                     std::span<const LowRankRows> groups, at::Tensor& scratch);

}  // namespace megatron::kernels
