#include "megatron/supervise/suspects.h"

#include <algorithm>
#include <map>
#include <set>

namespace megatron::supervise {
namespace {

using Checksum = std::uint64_t;
using PartResults = std::vector<PartResult>;

std::map<int, PartResults> by_part(std::span<const PartResult> results) {
  std::map<int, PartResults> parts;
  for (const PartResult& result : results) parts[result.part].push_back(result);
  return parts;
}

bool are_equal(const PartResults& results) {
  return std::ranges::all_of(results, [&](const PartResult& r) { return r.checksum == results.front().checksum; });
}

/// By checksum who has got it, each as often as it did.
std::map<Checksum, std::vector<int>> ranks_of(const PartResults& results) {
  std::map<Checksum, std::vector<int>> ranks;
  for (const PartResult& result : results) ranks[result.checksum].push_back(result.rank);
  return ranks;
}

/// What is right, where that is known.
std::optional<Checksum> truth_of(const PartResults& results) {
  std::set<int> all;
  for (const PartResult& result : results) all.insert(result.rank);
  std::vector<Checksum> found;
  for (const auto& [checksum, ranks] : ranks_of(results)) {
    const bool by_two = std::set<int>(ranks.begin(), ranks.end()).size() > 1;
    if (all.size() > 1 ? by_two : 2 * ranks.size() > results.size()) found.push_back(checksum);
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

class Verdict {
 public:
  explicit Verdict(std::span<const PartResult> results) {
    for (const PartResult& result : results) ++results_[result.rank];
    for (const auto& [part, of_part] : by_part(results)) {
      if (are_equal(of_part)) continue;
      if (const auto truth = truth_of(of_part))
        compare(of_part, *truth);
      else
        disagree(of_part);
    }
  }

  std::vector<Suspect> suspects() {
    std::vector<Suspect> all;
    for (auto& [rank, suspect] : suspects_) {
      suspect.rank = rank;
      suspect.results = results_[rank];
      suspect.persistent = suspect.persistent || suspect.wrong > 1;
      all.push_back(suspect);
    }
    return all;
  }

 private:
  Suspect& wrong(const PartResult& result, std::optional<Checksum> expected) {
    Suspect& suspect = suspects_[result.rank];
    if (suspect.wrong++ == 0) {
      suspect.checksum = result.checksum;
      suspect.expected = expected;
    }
    return suspect;
  }

  void compare(const PartResults& results, Checksum truth) {
    for (const PartResult& result : results)
      if (result.checksum != truth) wrong(result, truth).certain = true;
    if (results.back().checksum != truth) suspects_[results.back().rank].persistent = true;
  }

  /// Nobody knows what is right. Who contradicts itself is wrong; where nobody does, one of them is.
  void disagree(const PartResults& results) {
    std::map<int, std::set<Checksum>> got;
    for (const PartResult& result : results) got[result.rank].insert(result.checksum);
    const bool some_contradict = std::ranges::any_of(got, [](const auto& entry) { return entry.second.size() > 1; });
    for (const PartResult& result : results) {
      if (some_contradict && got[result.rank].size() == 1) continue;
      Suspect& suspect = wrong(result, std::nullopt);
      suspect.persistent = true;
      suspect.certain = suspect.certain || some_contradict;
    }
  }

  std::map<int, int> results_;
  std::map<int, Suspect> suspects_;
};

}  // namespace

bool agree(std::span<const PartResult> results) {
  const auto parts = by_part(results);
  return std::ranges::all_of(parts, [](const auto& entry) { return are_equal(entry.second); });
}

std::vector<Suspect> suspects_of(std::span<const PartResult> results) { return Verdict(results).suspects(); }

}  // namespace megatron::supervise
