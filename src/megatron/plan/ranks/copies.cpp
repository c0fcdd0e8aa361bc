#include "megatron/plan/ranks/copies.h"

#include <cstddef>

namespace megatron::plan {

std::vector<int> ranks_further(const RankRoles& roles, int places) {
  const auto shares = roles.groups([](const RankRoles& of, int rank) { return of.samples(rank); });
  const std::size_t size = shares.front().size();
  std::vector<int> further(shares.size() * size);
  for (const std::vector<int>& ring : shares)
    for (std::size_t i = 0; i < size; ++i)
      further[static_cast<std::size_t>(ring[i])] = ring[(i + static_cast<std::size_t>(places)) % size];
  return further;
}

int copy_distance(const RankRoles& roles) {
  const int shares = roles.samples(0).size();
  for (int places = 1; places < shares; ++places) {
    if (shares % places != 0) continue;
    const std::vector<int> further = ranks_further(roles, places);
    bool same = true;
    for (std::size_t rank = 0; same && rank < further.size(); ++rank) {
      const auto is_moved = [&](std::vector<int> ranks, const std::vector<int>& theirs) {
        for (int& other : ranks) other = further[static_cast<std::size_t>(other)];
        return ranks == theirs;
      };
      const int own = static_cast<int>(rank), next = further[rank];
      same = is_moved(roles.experts(own).ranks, roles.experts(next).ranks) &&
             is_moved(roles.tensor(own, Weights::Experts).ranks, roles.tensor(next, Weights::Experts).ranks);
    }
    if (same) return places;
  }
  return 0;
}

}  // namespace megatron::plan
