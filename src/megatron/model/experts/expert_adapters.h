#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/parallel/parameter.h"
#include "megatron/plan/layer.h"
#include "megatron/plan/parameters/adapters.h"

// Low-rank adapters of layers whose products are grouped, of which each expert has its own (parallel/adapter.h has
// those of one layer). n rows, of which group g has offsets[g] … offsets[g + 1] - 1.
namespace megatron::model {

/// Adds dy^T x of each group, dy [n, out] and x [n, in], to the gradients of the weights [out, in].
void write_grouped_gradients(const std::vector<parallel::ParameterPtr>& weights, const at::Tensor& dy,
                             const at::Tensor& x, const std::vector<std::int64_t>& offsets);

/// Those of one linear layer of the experts that a rank has: y += scale B A drop(x) for each part of each expert. They
/// send nothing, as those of other layers do: both are partial sums where the layer's product is.
///
///   A  [r, in]   of a row-parallel layer the columns of this rank's features
///   B  [out, r]  of a column-parallel layer the rows of this rank's outputs of the part
///   x  [n, in], y [n, out] of this rank's features
///
/// With dropout `ids` [n] int64 on the CPU has a number for each row that no other row has, in every layout the same:
/// what is dropped is a function of it, of the feature and of the part. Undefined: no dropout.
class ExpertAdapters {
 public:
  struct Part {
    plan::ProjectionSlice outputs;  ///< on this rank, of each expert
    std::vector<parallel::ParameterPtr> a, b;
    std::uint64_t dropout_key = 0;
  };
  struct Options {
    double scale = 1, dropout = 0;
    std::int64_t features = 0, first_feature = 0;  ///< of the whole input, and where x begins in it
  };
  ExpertAdapters(std::vector<Part> parts, const Options& options) : parts_(std::move(parts)), options_(options) {}

  /// Of the layers `linears`, one of each expert, of which this rank has slice `slice` of `slices`. Null where `lora`
  /// adapts no part of them.
  static std::shared_ptr<const ExpertAdapters> of(const parallel::ParameterStore& parameters,
                                                  const plan::LayerSpec& layer,
                                                  const std::vector<plan::Linear>& linears, const plan::Lora& lora,
                                                  std::uint64_t seed, int slices, int slice);

  /// Adds to y what the adapters make of x, in place.
  void add_to(const at::Tensor& y, const at::Tensor& x, const std::vector<std::int64_t>& offsets,
              const at::Tensor& ids) const;
  /// Adds the part of x's gradient that goes through them to dx, in place.
  void add_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const std::vector<std::int64_t>& offsets,
                          const at::Tensor& ids) const;
  /// Contributes to the gradients of A and B.
  void write_gradients(const at::Tensor& dy, const at::Tensor& x, const std::vector<std::int64_t>& offsets,
                       const at::Tensor& ids) const;

  /// One of what is trained, which knows whether gradients are put off.
  const parallel::ParameterPtr& trained() const { return parts_.front().a.front(); }
  /// Appends the values of A and B, on which autograd sees the layer depend.
  void append_values(std::vector<at::Tensor>& inputs) const;

 private:
  at::Tensor dropped(const Part& part, const at::Tensor& x, const at::Tensor& ids) const;

  std::vector<Part> parts_;
  Options options_;
};
using ExpertAdaptersPtr = std::shared_ptr<const ExpertAdapters>;

}  // namespace megatron::model
