#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/kernels/activation.h"

// Matrix products of a linear layer y = x W^T, x [.., k], w [n, k], y [.., n]; the leading dimensions are one. float64,
// float32, bf16, fp16; sums of bf16 and fp16 are taken in float32, and rounded once.
// On the CPU bf16 is computed by AMX or AVX512_BF16, else by float32 arithmetic on numbers widened piece by piece;
// float32 by libtorch, or by own kernels where these are faster (decision 38), large products on AMX as six of bf16
// (decision 155).
namespace megatron::kernels {

struct QuantizedMatrix;  // quantized/blocks.h

/// Rows of a product from which on AMX's tiles and AVX512_BF16's dot products make no copy of a weight that training
/// writes to, but pack it while they read it (decision 38). A copy that is there, products of fewer rows having wanted
/// one, is read.
inline constexpr std::int64_t kRowsPackedWhileRead = 256;

/// Which products make and keep copies of a weight.
enum class WeightCopies : std::uint8_t {
  OfFewerRows,  ///< those of fewer rows than kRowsPackedWhileRead: of weights that are written to, step by step
  All,          ///< forward, all but the fewest: of weights that stay as they are, where memory has room for copies
  None,         ///< none: where it has not
};

/// Copies of a weight in the order in which these units read it: made when a product first wants them (WeightCopies),
/// and again once the weight was written to. That is known by the tensor's version, which every operation of ATen
/// raises; who writes through a pointer calls written_to(). 2 bytes per element for linear() and 2 for
/// linear_input_gradient(), twice that for float32 with precision "high". Empty where there is no such unit
/// (cpu/products/tiles.h), and for float32 with precision "highest". One thread at a time.
class PackedWeight {
 public:
  const at::Tensor& for_output(const at::Tensor& w);  ///< w^T as the right operand
  const at::Tensor& for_input_gradient(const at::Tensor& w);
  /// The copy for linear() where it is there and w was not written to since; else undefined.
  at::Tensor kept_for_output(const at::Tensor& w) const;

  /// From now on products make these copies. The bits of none depend on it.
  void keep(WeightCopies copies) { kept_ = copies; }
  /// Whether a product of `rows` rows makes a copy that is not there.
  bool makes_copy(std::int64_t rows, bool forward) const;

  /// Lets go of the copies.
  void release() { output_ = input_ = Copy(); }

  /// From now on the weight is `w`, in fewer bits, and products do not read the tensor that they are given. For models
  /// that only compute forward on the CPU.
  void replace(std::shared_ptr<const QuantizedMatrix> w) { quantized_ = std::move(w); }
  /// What the weight was replaced by; null: nothing.
  const QuantizedMatrix* quantized() const { return quantized_.get(); }

 private:
  struct Copy {
    at::Tensor words;
    std::uint32_t version = 0;
    const void* data = nullptr;
    std::size_t parts = 0;
  };
  static bool holds(const Copy& copy, const at::Tensor& operand);
  static const at::Tensor& update(Copy& copy, const at::Tensor& operand);
  Copy output_, input_;
  WeightCopies kept_ = WeightCopies::OfFewerRows;
  std::shared_ptr<const QuantizedMatrix> quantized_;
};
/// Raises the version of the buffer that x is a view of.
void written_to(const at::Tensor& x);

/// Of x's dtype, plus `bias` [n] where it is defined. With few rows of x (decoding), W is read once, at the speed of
/// memory. `packed` is w's, or null.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, PackedWeight* packed = nullptr,
                  const at::Tensor& bias = {});
/// Whether linear() goes that way for `rows` rows of w's dtype. `packed` is w's, or null.
bool few_rows(std::int64_t rows, const at::Tensor& w, const PackedWeight* packed = nullptr);
/// The most rows for which it does; 0: never. Of so few rows each gets the same bits whatever the others are.
std::int64_t most_few_rows(const at::Tensor& w, const PackedWeight* packed = nullptr);
/// linear() of few_rows() x [rows, k], into y [rows, n], both contiguous. `wide`: scratch of rows * k float32; may be
/// undefined where x and w are float32.
void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide);
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w, PackedWeight* packed = nullptr);
/// grad_w [n, k] (= or +=, by beta) dy^T x, straight into the gradient buffer, which may be float32 where dy and x are
/// bf16 or fp16.
void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta);
/// linear_weight_gradient(), and grad_bias [n] (= or +=, by bias_beta) the sum of dy's rows (normalization.h): on a GPU
/// maybe in the product, in float32.
void linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                      const at::Tensor& grad_bias, double bias_beta);

// The two products of an MLP, y = f(x W^T + b) and z = y W'^T, with the activation (activation.h) where the sums are:
// in a cache, before anything is written.

struct ActivatedOutput {
  at::Tensor u, y;
};
/// u = x W^T + bias, which the backward pass needs, and y = f(u): bias_activation(linear(x, w), bias), gated
/// bias_gated_activation, but that u is rounded once, on a GPU maybe behind f. `bias` may be undefined.
ActivatedOutput linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Activation form,
                                  bool gated, PackedWeight* packed = nullptr);
/// The way back through z = y W^T and y = f(u): the gradient of u, as `u` of the result, from dz. With `again` also y,
/// for the weight's gradient; else undefined.
ActivatedOutput linear_activation_gradient(const at::Tensor& dz, const at::Tensor& w, const at::Tensor& u,
                                           Activation form, bool gated, bool again, PackedWeight* packed = nullptr);

// The products of several linear layers of one shape, each on rows of its own, which follow one another: the experts of
// a rank. Group g has rows offsets[g] … offsets[g + 1] - 1, maybe none.

struct Groups {
  std::vector<at::Tensor> weights;         ///< each [n, k]; of gradients what they are written to
  std::vector<std::int64_t> offsets;       ///< ascending, from 0 to the number of rows; one more than weights
  std::vector<PackedWeight*> packed = {};  ///< of the weights; empty: none
  std::vector<at::Tensor> biases = {};     ///< [n] each, of the products forward; empty: none
};
/// y [rows, n] of x [rows, k], with the biases.
at::Tensor grouped_linear(const at::Tensor& x, const Groups& groups);
/// linear_activation() of each group: u [rows, n], y [rows, n], or [rows, n / 2] where gated.
ActivatedOutput grouped_linear_activation(const at::Tensor& x, const Groups& groups, Activation form, bool gated);
/// [rows, k] of dy [rows, n].
at::Tensor grouped_input_gradient(const at::Tensor& dy, const Groups& groups);
/// linear_weight_gradient() of each group into its weight; `betas`: one each. Without rows zero, or what it was.
void grouped_weight_gradient(const Groups& gradients, const at::Tensor& dy, const at::Tensor& x,
                             const std::vector<double>& betas);
/// Each of `biases` [n] (= or +=, by its beta) the sum over its group's rows of dy [rows, n], each times its number in
/// `weights` [rows] (float32, of float64 float64; undefined: 1), in that type. `offsets` as of Groups.
void grouped_bias_gradient(const std::vector<at::Tensor>& biases, const std::vector<std::int64_t>& offsets,
                           const at::Tensor& dy, const at::Tensor& weights, const std::vector<double>& betas);

}  // namespace megatron::kernels
