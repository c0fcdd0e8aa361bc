#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/parallel/adapter.h"
#include "megatron/parallel/parameter.h"

// Low-rank adapters that lie beside the weights of a model that only computes forward: one copy of the weights, maybe
// in blocks, and of each sequence of a batch the adapter that it was asked for with (decision 145).
namespace megatron::kernels {
struct LowRankRows;  // low_rank/low_rank.h
}

namespace megatron::parallel {

/// Which of a model's adapters the sequences of the batch have that is being computed: who computes a batch says it,
/// the layers ask. Adapters are numbered from 1 on; 0 is none. Of one rank, and one thread at a time.
class AdapterChoice {
 public:
  /// Sequences of a batch that have the same adapter.
  struct Group {
    std::int64_t adapter = 0;
    std::vector<std::int64_t> sequences = {};  ///< ascending; empty: all of the batch
  };

  /// From now on the adapter of every sequence of which nothing else is said.
  void set_usual(std::int64_t adapter);
  std::int64_t usual() const { return usual_; }

  /// What is said of one batch, for as long as this lives.
  class Batch {
   public:
    /// `adapters`: of each sequence. `choice`: null for a model without adapters; then throws std::logic_error where
    /// one is asked for.
    Batch(AdapterChoice* choice, const std::vector<std::int64_t>& adapters);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    AdapterChoice* choice_;
  };

  /// Of the batch that is being computed, those with an adapter.
  const std::vector<Group>& groups() const { return groups_; }
  /// Of each of its so many sequences. Throws std::logic_error where more were chosen for.
  std::vector<std::int64_t> of_each(std::int64_t sequences) const;

 private:
  void use(std::int64_t adapter);
  void use(const std::vector<std::int64_t>& adapters);

  std::int64_t usual_ = 0;
  std::vector<Group> groups_;
};

/// The adapters of one linear layer on this rank, of which each sequence has the one that it chose: what the layer's
/// product gives becomes, before it is summed over ranks, W x + scale B A x, or with magnitudes g (W x + scale B A x)
/// (adapter.h), whose norms are computed once. Sends nothing but then.
class KeptAdapters {
 public:
  /// `adapters`: number i + 1 at i, null where it leaves this layer alone; without dropout. `weight`: the layer's, its
  /// values read. `inputs`: the ranks that have the weight's other columns; collective over it where there are
  /// magnitudes.
  KeptAdapters(std::vector<AdapterPtr> adapters, std::shared_ptr<const AdapterChoice> choice, ParameterPtr weight,
               const comm::Group& inputs);

  /// Whether a sequence of the batch has an adapter of this layer. Else add_to() does nothing.
  bool chosen() const;
  /// y [s, b, out], contiguous, which is W x without a bias, becomes what each sequence's adapter makes of it, in
  /// place. x [s, b, in] as the layer's weight multiplies it. Where s is 1 it does as add_to_rows(). Throws
  /// std::logic_error for another batch than the choice's.
  void add_to(const at::Tensor& y, const at::Tensor& x) const;
  /// Adapts y [b, out] in place, products W x of one token of each sequence: on the CPU all adapters at once, so that
  /// each sequence gets the bits that it gets alone (kernels::add_low_rank, which `scratch` is of).
  void add_to_rows(const at::Tensor& y, const at::Tensor& x, at::Tensor& scratch) const;
  /// W x of kernels::few_rows() x [b, in] into y [b, out], and add_to_rows(). `wide`: as of kernels::few_rows_linear().
  void multiply_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& wide, at::Tensor& scratch) const;
  /// Those that sequence number `sequence` of the batch chose of a layer that is one part, for who multiplies by its
  /// weight otherwise than by its rows; nothing where it chose none.
  std::optional<Adapter::Matrices> of_sequence(std::int64_t sequence) const;

 private:
  struct One {
    AdapterPtr adapter;  ///< or null
    Adapter::Pass pass = {};
    std::shared_ptr<const kernels::LowRank> few = nullptr;  ///< of few rows; null: as of many
  };
  bool takes_rows(const at::Tensor& y) const;
  std::vector<kernels::LowRankRows> rows_of_batch() const;
  void add_to_each(const at::Tensor& y, const at::Tensor& x) const;

  std::vector<One> adapters_;
  std::shared_ptr<const AdapterChoice> choice_;
  ParameterPtr weight_;
};
using KeptAdaptersPtr = std::shared_ptr<const KeptAdapters>;

}  // namespace megatron::parallel
