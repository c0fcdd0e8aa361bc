#include "megatron/schedule/placement.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace megatron::schedule {

Placement::Placement(std::vector<int> rank_of_stage) : rank_of_(std::move(rank_of_stage)) {
  if (rank_of_.empty() || *std::min_element(rank_of_.begin(), rank_of_.end()) < 0)
    throw std::logic_error("a placement has at least one stage, on ranks from 0");
  stages_of_.assign(static_cast<std::size_t>(*std::max_element(rank_of_.begin(), rank_of_.end())) + 1, {});
  chunk_of_.clear();
  for (int stage = 0; stage < num_stages(); ++stage) {
    std::vector<int>& stages = stages_of_[static_cast<std::size_t>(rank_of(stage))];
    chunk_of_.push_back(static_cast<int>(stages.size()));
    stages.push_back(stage);
  }
  for (const std::vector<int>& stages : stages_of_)
    if (stages.empty()) throw std::logic_error("a placement gives every rank a stage");
}

Placement Placement::looped(int num_ranks, int num_chunks) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < num_ranks * num_chunks; ++stage) rank_of_stage.push_back(stage % num_ranks);
  return Placement(std::move(rank_of_stage));
}

Placement Placement::v_shaped(int num_ranks) {
  std::vector<int> rank_of_stage;
  for (int rank = 0; rank < num_ranks; ++rank) rank_of_stage.push_back(rank);
  for (int rank = num_ranks - 1; rank >= 0; --rank) rank_of_stage.push_back(rank);
  return Placement(std::move(rank_of_stage));
}

}  // namespace megatron::schedule
