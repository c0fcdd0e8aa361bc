#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/cpu/elementwise/element.h"
#include "megatron/kernels/cpu/products/matrix.h"

// What a product does with its sums while they are in the first or second cache (decision 98). One description for all
// units: tiles, dot products, float32 arithmetic.
namespace megatron::kernels::cpu {

/// Every buffer is of c's type, columns side by side, null where it is not named. A gated unit (activation.h) has f
/// columns of y and 2 f of u: what is said of a column of u holds for both halves, `half` columns apart.
struct Epilogue {
  enum class Kind : std::uint8_t {
    None,      ///< c = or += the sums
    AddBias,   ///< c = the sums + bias
    Activate,  ///< c = u = the sums + bias (may be null), and y = f(u), of u as it was rounded
    GoBack,    ///< of the gradient of y: c = du, from u; and y = f(u) again, unless null
  };
  Kind kind = Kind::None;
  Activation form = Activation::GeluTanh;
  std::ptrdiff_t half = 0;  ///< f of a gated unit, else 0
  const void* bias = nullptr;
  const void* u = nullptr;
  std::ptrdiff_t u_row = 0;
  void* y = nullptr;
  std::ptrdiff_t y_row = 0;

  /// The one for a part of c that begins at (row, column), columns counted as those of y.
  Epilogue at(std::size_t row, std::size_t column, ElementType type) const;
  /// Whether the product itself has two halves.
  bool two_halves() const { return kind == Kind::Activate && half != 0; }
};

/// Where a product's sums lie: `stride` floats from row to row; `second`: from a half to the other.
struct Sums {
  const float* data;
  std::size_t stride, second;
};
/// Takes the sums [rows, columns] to where the epilogue, which is not None, wants them; c may be the sums themselves.
void finish(const Sums& sums, std::size_t rows, std::size_t columns, const MutableMatrix& c, const Epilogue& epilogue);

}  // namespace megatron::kernels::cpu
