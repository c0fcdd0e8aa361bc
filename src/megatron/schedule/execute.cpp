#include "megatron/schedule/execute.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace megatron::schedule {

Links::Links(const Placement& placement) {
  const int boundaries = placement.num_stages() - 1;
  std::vector<std::pair<int, int>> pairs;
  for (int b = 0; b < boundaries; ++b) {
    const int lower = placement.rank_of(b), upper = placement.rank_of(b + 1);
    if (lower == upper) continue;
    pairs.emplace_back(lower, upper);
    pairs.emplace_back(upper, lower);
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  const auto number = [&](int from, int to) {
    if (from == to) return -1;
    return static_cast<int>(std::lower_bound(pairs.begin(), pairs.end(), std::pair(from, to)) - pairs.begin());
  };
  for (int b = 0; b < boundaries; ++b) {
    const int lower = placement.rank_of(b), upper = placement.rank_of(b + 1);
    up_.push_back(number(lower, upper));
    down_.push_back(number(upper, lower));
  }
  count_ = static_cast<int>(pairs.size());
}

namespace {

std::vector<double> by_stage(const std::vector<double>& costs, double value, std::size_t num_stages) {
  if (costs.empty()) return std::vector<double>(num_stages, value);
  if (costs.size() != num_stages) throw std::logic_error("costs are given for every stage or for none");
  return costs;
}

}  // namespace

Execution::Execution(const Program& program, const Costs& costs, double lag)
    : program_(program), messages_(program), links_(program.placement), lowered_(has_communication(program)) {
  const auto num_stages = static_cast<std::size_t>(program.placement.num_stages());
  cost_[0] = by_stage(costs.forward, 1, num_stages);
  cost_[2] = by_stage(costs.backward_input, 1, num_stages);
  cost_[3] = by_stage(costs.backward_weight, 1, num_stages);
  std::copy(std::begin(cost_), std::end(cost_), std::begin(partial_cost_));
  if (!costs.partial_backward_input.empty()) partial_cost_[2] = by_stage(costs.partial_backward_input, 1, num_stages);
  for (auto* cost : {cost_, partial_cost_})
    for (std::size_t stage = 0; stage < num_stages; ++stage) cost[1].push_back(cost[2][stage] + cost[3][stage]);
  message_time_ = costs.latency + (costs.bandwidth > 0 ? costs.message_bytes / costs.bandwidth : 0);
  lag_ = lag;
  position_.assign(program.ranks.size(), 0);
  clock_.assign(program.ranks.size(), 0);
  link_free_.assign(static_cast<std::size_t>(links_.count()), 0);
  const auto count = static_cast<std::size_t>(messages_.count());
  if (lowered_) posted_.assign(count, -1);
  ready_.assign(count, -1);
  waiting_.assign(count, -1);
}

}  // namespace megatron::schedule
