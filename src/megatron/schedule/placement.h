#pragma once
#include <vector>

namespace megatron::schedule {

/// Which pipeline rank holds which stage. A stage is a run of neighbouring layers, numbered from the embedding to the
/// loss; the stages of one rank are its model chunks, numbered in that order.
class Placement {
 public:
  Placement() = default;  ///< one stage on one rank
  /// rank_of_stage[stage] = rank. Throws std::logic_error unless every rank below the largest holds a stage.
  explicit Placement(std::vector<int> rank_of_stage);

  /// stage = chunk * num_ranks + rank (Narayanan et al. 2021, section 2.2).
  static Placement looped(int num_ranks, int num_chunks);
  /// Two chunks: down through the ranks and back, so that first and last stage share rank 0 (Qi et al. 2024, ZB-V).
  static Placement v_shaped(int num_ranks);

  int num_ranks() const { return static_cast<int>(stages_of_.size()); }
  int num_stages() const { return static_cast<int>(rank_of_.size()); }
  int rank_of(int stage) const { return rank_of_[static_cast<std::size_t>(stage)]; }
  int chunk_of(int stage) const { return chunk_of_[static_cast<std::size_t>(stage)]; }
  /// Ascending.
  const std::vector<int>& stages_of(int rank) const { return stages_of_[static_cast<std::size_t>(rank)]; }

  bool operator==(const Placement& other) const { return rank_of_ == other.rank_of_; }

 private:
  std::vector<int> rank_of_{0}, chunk_of_{0};
  std::vector<std::vector<int>> stages_of_{{0}};
};

}  // namespace megatron::schedule
