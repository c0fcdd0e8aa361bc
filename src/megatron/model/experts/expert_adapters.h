#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/parallel/parameter.h"
#include "megatron/plan/layer.h"
#include "megatron/plan/parameters/adapters.h"

// Low-rank adapters of layers whose products are grouped, of which each expert has its own (parallel/adapter.h has
// those of one layer). n rows, of which group g has offsets[g] … offsets[g + 1] - 1.
namespace megatron::kernels {
class LowRank;  // low_rank/low_rank.h
}

namespace megatron::model {

/// A parameter by its name; null: there is none.
using FindParameter = std::function<parallel::ParameterPtr(const std::string&)>;

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
  /// adapts no part of them, or `find` finds no A of those that it may adapt. Throws std::runtime_error where it finds
  /// some matrices of a part and not the rest.
  static std::shared_ptr<const ExpertAdapters> of(const FindParameter& find, const plan::LayerSpec& layer,
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

  /// What add_to() computes without dropout, by expert, for few rows on the CPU; of values that are not written to any
  /// more. Empty for matrices that it does not take.
  std::vector<std::shared_ptr<const kernels::LowRank>> for_few_rows() const;

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

/// Rows of experts whose adapters are kept beside the weights (parallel/kept_adapters.h).
struct RowAdapters {
  std::vector<std::int64_t> numbers = {};  ///< of each row that of its adapter, 0: none; empty: of no row
  bool few = false;                        ///< whether they are one token of each sequence
};

/// Adapters of one linear layer of the experts that a rank has, of which each row has the one of its number.
class KeptExpertAdapters {
 public:
  /// `adapters`: number i + 1 at i, null where it leaves this layer alone.
  explicit KeptExpertAdapters(std::vector<ExpertAdaptersPtr> adapters);

  /// Whether a row has an adapter of this layer.
  bool chosen(const RowAdapters& rows) const;
  /// ExpertAdapters::add_to() of each row with its own adapter. Of few rows a row gets the bits that it gets alone.
  void add_to(const at::Tensor& y, const at::Tensor& x, const std::vector<std::int64_t>& offsets,
              const RowAdapters& rows) const;

 private:
  struct One {
    ExpertAdaptersPtr adapter;                                      ///< or null
    std::vector<std::shared_ptr<const kernels::LowRank>> few = {};  ///< by expert; empty: as of many rows
  };
  bool takes(const at::Tensor& y) const;

  std::vector<One> adapters_;
};
using KeptExpertAdaptersPtr = std::shared_ptr<const KeptExpertAdapters>;

}  // namespace megatron::model
