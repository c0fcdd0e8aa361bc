#include "megatron/plan/ranks/rank_grid.h"

#include <algorithm>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

constexpr std::array<const char*, kNumAxes> kAxisNames = {"tp", "cp", "dp", "pp"};

std::size_t index(Axis axis) { return static_cast<std::size_t>(axis); }

void check_sizes(const std::array<int, kNumAxes>& sizes, int world_size) {
  const auto [tp, cp, dp, pp] = sizes;
  std::int64_t product = 1;
  bool ok = world_size >= 1;
  for (const int size : sizes) {
    ok = ok && size >= 1;
    product *= std::clamp(size, 1, 1 << 15);  // four such factors do not overflow
    ok = ok && size <= 1 << 15;
  }
  if (ok && product == world_size) return;
  const std::int64_t model = static_cast<std::int64_t>(tp) * cp * pp;
  std::string fix = concat("sizes from 1 to ", 1 << 15);
  if (ok) {
    fix = concat("--world-size ", product);
    if (model <= world_size && world_size % model == 0)
      fix = concat("--dp ", world_size / model, " (to use all ", world_size, "), or ", fix);
  }
  throw ConfigError(rule_got_fix("parallel.*: tp*cp*dp*pp must equal the world size.",
                                 concat("tp=", tp, " cp=", cp, " dp=", dp, " pp=", pp,
                                        ok ? concat(" (product ", product, ")") : "", ", world size ", world_size),
                                 fix));
}

std::array<Axis, kNumAxes> parse_order(const std::string& order) {
  std::array<Axis, kNumAxes> axes{};
  std::array<bool, kNumAxes> seen{};
  std::size_t count = 0, begin = 0;
  bool ok = true;
  while (ok && begin <= order.size()) {
    const std::size_t end = std::min(order.find('-', begin), order.size());
    const auto found = std::find(kAxisNames.begin(), kAxisNames.end(), order.substr(begin, end - begin));
    ok = found != kAxisNames.end() && count < kNumAxes;
    if (ok) {
      const auto axis = static_cast<std::size_t>(found - kAxisNames.begin());
      ok = !std::exchange(seen[axis], true);
      axes[count++] = static_cast<Axis>(axis);
    }
    begin = end + 1;
  }
  if (!ok || count != kNumAxes)
    throw ConfigError(rule_got_fix("the order of ranks must name tp, cp, dp and pp once each, joined by '-'.",
                                   "'" + order + "'", "tp-cp-dp-pp"));
  return axes;
}

}  // namespace

RankGrid::RankGrid(int tp, int cp, int dp, int pp, int world_size, const std::string& order)
    : sizes_{tp, cp, dp, pp}, order_(parse_order(order)) {
  check_sizes(sizes_, world_size);
}

int RankGrid::world_size() const {
  int product = 1;
  for (const int size : sizes_) product *= size;
  return product;
}

std::string RankGrid::order() const {
  std::string text;
  for (const Axis axis : order_) text += concat(text.empty() ? "" : "-", kAxisNames[index(axis)]);
  return text;
}

Coord RankGrid::coord_of(int rank) const {
  Coord coord{};
  for (const Axis axis : order_) {
    coord[index(axis)] = rank % size(axis);
    rank /= size(axis);
  }
  return coord;
}

int RankGrid::rank_of(const Coord& coord) const {
  int rank = 0, stride = 1;
  for (const Axis axis : order_) {
    rank += coord[index(axis)] * stride;
    stride *= size(axis);
  }
  return rank;
}

std::vector<int> RankGrid::peers(int rank, const std::vector<Axis>& axes) const {
  std::vector<int> ranks;
  Coord coord = coord_of(rank);
  for (const Axis axis : axes) coord[index(axis)] = 0;
  const auto visit = [&](const auto& self, std::size_t depth) -> void {
    if (depth == axes.size()) return ranks.push_back(rank_of(coord));
    for (int k = 0; k < size(axes[depth]); ++k) {
      coord[index(axes[depth])] = k;
      self(self, depth + 1);
    }
    coord[index(axes[depth])] = 0;
  };
  visit(visit, 0);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<std::vector<int>> RankGrid::groups(const std::vector<Axis>& axes) const {
  std::vector<std::vector<int>> result;
  for (int rank = 0; rank < world_size(); ++rank) {
    const Coord coord = coord_of(rank);
    const bool first = std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return coord[index(axis)] == 0; });
    if (first) result.push_back(peers(rank, axes));
  }
  return result;
}

std::vector<std::vector<int>> RankGrid::embedding_groups(const schedule::Placement& placement) const {
  const auto first = static_cast<std::size_t>(placement.rank_of(0));
  const auto last = static_cast<std::size_t>(placement.rank_of(placement.num_stages() - 1));
  std::vector<std::vector<int>> result = groups({Axis::Pp});
  for (std::vector<int>& ranks : result) {
    const int one = ranks.at(first), other = ranks.at(last);
    ranks = one == other ? std::vector<int>{one} : std::vector<int>{std::min(one, other), std::max(one, other)};
  }
  return result;
}

std::vector<std::vector<int>> RankGrid::position_embedding_groups(const schedule::Placement& placement) const {
  std::vector<std::vector<int>> result = groups({Axis::Pp});
  for (std::vector<int>& ranks : result) ranks = {ranks.at(static_cast<std::size_t>(placement.rank_of(0)))};
  return result;
}

std::string rank_name(const RankGrid& grid, int rank) {
  const auto [tp, cp, dp, pp] = grid.coord_of(rank);
  return concat("rank ", rank, " (tp ", tp, ", cp ", cp, ", dp ", dp, ", pp ", pp, ")");
}

std::string sizes_text(const RankGrid& grid) {
  const int cp = grid.size(Axis::Cp);
  return concat("tp ", grid.size(Axis::Tp), cp > 1 ? concat(" x cp ", cp) : "", " x pp ", grid.size(Axis::Pp), " x dp ",
                grid.size(Axis::Dp));
}

}  // namespace megatron::plan
