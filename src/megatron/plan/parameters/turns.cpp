#include "megatron/plan/parameters/turns.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace megatron::plan {

Turns take_turns(const std::vector<std::int64_t>& sizes, const std::vector<bool>& alone,
                 const std::function<bool(std::size_t, std::size_t)>& meet) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (alone[a] != alone[b]) return alone[b];
    return sizes[a] > sizes[b];
  });
  Turns turns{0, std::vector<std::int64_t>(sizes.size())};
  for (auto next = order.begin(); next != order.end(); ++next) {
    std::int64_t begin = alone[*next] ? turns.size : 0;
    std::vector<std::size_t> met;
    if (!alone[*next])
      std::copy_if(order.begin(), next, std::back_inserter(met), [&](std::size_t other) { return meet(*next, other); });
    std::sort(met.begin(), met.end(), [&](std::size_t a, std::size_t b) { return turns.begin[a] < turns.begin[b]; });
    for (const std::size_t other : met) {
      if (begin + sizes[*next] <= turns.begin[other]) break;
      begin = std::max(begin, turns.begin[other] + sizes[other]);
    }
    turns.begin[*next] = begin;
    turns.size = std::max(turns.size, begin + sizes[*next]);
  }
  return turns;
}

}  // namespace megatron::plan
