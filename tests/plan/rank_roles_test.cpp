#include "megatron/plan/ranks/rank_roles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "megatron/base/error.h"
#include "tests/plan/golden.h"
#include "tests/testing/sanitized.h"

namespace megatron::plan {
namespace {

using Groups = std::vector<std::vector<int>>;

struct Layout {
  int tp, cp, dp, pp, ep;
  std::string order;
};

/// Every layout of up to 64 ranks, under a sanitizer 24, whose experts divide the ranks of a stage.
void for_each_layout(const std::function<void(const Layout&)>& visit) {
  for (const char* order : {"tp-cp-dp-pp", "tp-cp-pp-dp", "cp-tp-dp-pp"})
    for (int world = 1; world <= (kSanitized ? 24 : 64); ++world)
      for (int tp = 1; tp <= world; ++tp)
        for (int cp = 1; tp * cp <= world; ++cp)
          for (int pp = 1; tp * cp * pp <= world; ++pp) {
            if (world % (tp * cp * pp) != 0) continue;
            const int replicas = world / (tp * pp);
            for (int ep = 1; ep <= replicas; ++ep)
              if (replicas % ep == 0) visit({tp, cp, world / (tp * cp * pp), pp, ep, order});
          }
}

/// What one rank knows of a batch: its share of the samples, and its part of their tokens.
using Tokens = std::pair<int, int>;

// Each gradient is summed exactly once over exactly the ranks that hold the same weights and see other tokens.
TEST(RankRoles, SumADenseGradientOverEachPartOfTheBatchOnce) {
  for_each_layout([](const Layout& l) {
    if (l.ep != 1) return;
    const RankGrid grid(l.tp, l.cp, l.dp, l.pp, l.tp * l.cp * l.dp * l.pp, l.order);
    const RankRoles roles(grid);
    std::map<Tokens, int> all;
    for (int s = 0; s < l.dp; ++s)
      for (int t = 0; t < l.cp; ++t) all[{s, t}] = 1;
    for (int rank = 0; rank < grid.world_size(); ++rank) {
      std::map<Tokens, int> seen;
      const Peers peers = roles.gradients(rank);
      for (const int peer : peers.ranks) {
        ++seen[{roles.samples(peer).index, roles.sequence(peer).index}];
        ASSERT_EQ(roles.tensor(peer).index, roles.tensor(rank).index);
        ASSERT_EQ(roles.pipeline(peer).index, roles.pipeline(rank).index);
      }
      ASSERT_EQ(seen, all);
      ASSERT_EQ(peers.ranks.at(static_cast<std::size_t>(peers.index)), rank);
      ASSERT_EQ(roles.state(rank, true).ranks, peers.ranks);
      ASSERT_EQ(roles.state(rank, false).ranks, std::vector<int>{rank});
      ASSERT_EQ(roles.loss(rank).ranks, peers.ranks);
      ASSERT_EQ(roles.gradients(rank, Weights::Experts).ranks, peers.ranks) << "one rank has all experts";
    }
  });
}

// The ranks of a stage are divided into groups that hold all experts together, each of which sees the tokens of its own
// ranks. So an expert's gradient is summed over one rank of each such group: that with the same experts in the same
// slice.
TEST(RankRoles, SumAnExpertsGradientOverOneRankOfEachSetOfExperts) {
  int refused = 0;
  for_each_layout([&](const Layout& l) {
    if (l.ep == 1) return;
    const RankGrid grid(l.tp, l.cp, l.dp, l.pp, l.tp * l.cp * l.dp * l.pp, l.order);
    std::optional<RankRoles> roles;
    try {
      roles.emplace(grid, ExpertLayout{.ep = l.ep});
    } catch (const ConfigError&) {
      ASSERT_NE(l.order, "tp-cp-dp-pp") << "only where cp and dp do not lie side by side";
      ++refused;
      return;
    }
    // The set of experts that a rank belongs to: named by its smallest rank.
    const auto set_of = [&](int rank) {
      int smallest = rank;
      for (const int expert : roles->experts(rank).ranks)
        for (const int slice : roles->tensor(expert, Weights::Experts).ranks) smallest = std::min(smallest, slice);
      return smallest;
    };
    std::map<int, std::set<int>> sets_of_stage;
    for (int rank = 0; rank < grid.world_size(); ++rank)
      sets_of_stage[roles->pipeline(rank).index].insert(set_of(rank));
    for (int rank = 0; rank < grid.world_size(); ++rank) {
      std::multiset<int> seen;
      for (const int peer : roles->gradients(rank, Weights::Experts).ranks) {
        seen.insert(set_of(peer));
        ASSERT_EQ(roles->experts(peer).index, roles->experts(rank).index);
        ASSERT_EQ(roles->tensor(peer, Weights::Experts).index, roles->tensor(rank, Weights::Experts).index);
      }
      const std::set<int>& all = sets_of_stage[roles->pipeline(rank).index];
      ASSERT_EQ(seen, std::multiset<int>(all.begin(), all.end()));
      ASSERT_EQ(roles->experts(rank).size(), l.ep);
      ASSERT_EQ(static_cast<int>(all.size()) * l.ep * l.tp, grid.world_size() / l.pp);
    }
  });
  EXPECT_GT(refused, 0);
}

TEST(RankRoles, DivideTheWorldIntoGroups) {
  const std::vector<RankRoles::Role> kinds = {
      [](const RankRoles& r, int rank) { return r.samples(rank); },
      [](const RankRoles& r, int rank) { return r.sequence(rank); },
      [](const RankRoles& r, int rank) { return r.gradients(rank, Weights::Experts); },
      [](const RankRoles& r, int rank) { return r.experts(rank); },
      [](const RankRoles& r, int rank) { return r.model(rank); }};
  for_each_layout([&](const Layout& l) {
    if (l.order != "tp-cp-dp-pp") return;
    const RankGrid grid(l.tp, l.cp, l.dp, l.pp, l.tp * l.cp * l.dp * l.pp, l.order);
    const RankRoles roles(grid, {.ep = l.ep});
    for (const auto& kind : kinds) {
      std::set<int> seen;
      int first = -1;
      for (const auto& group : roles.groups(kind)) {
        ASSERT_LT(first, group.front());
        first = group.front();
        for (const int rank : group) {
          ASSERT_TRUE(seen.insert(rank).second);
          ASSERT_EQ(kind(roles, rank).ranks, group);
        }
      }
      ASSERT_EQ(static_cast<int>(seen.size()), grid.world_size());
    }
  });
}

// tests/golden/plan/groups.json is what Megatron-Core's parallel_state makes.
TEST(RankRoles, HaveTheGroupsThatMegatronCoreBuilds) {
  const std::vector<std::pair<std::string, RankRoles::Role>> kinds = {
      {"dp", [](const RankRoles& r, int rank) { return r.samples(rank); }},
      {"cp", [](const RankRoles& r, int rank) { return r.sequence(rank); }},
      {"dp_cp", [](const RankRoles& r, int rank) { return r.gradients(rank); }},
      {"ep", [](const RankRoles& r, int rank) { return r.experts(rank); }},
      {"edp", [](const RankRoles& r, int rank) { return r.gradients(rank, Weights::Experts); }},
      {"etp", [](const RankRoles& r, int rank) { return r.tensor(rank, Weights::Experts); }},
      {"etp_ep", [](const RankRoles& r, int rank) { return r.expert_copy(rank); }},
      {"tp_pp", [](const RankRoles& r, int rank) { return r.model(rank); }}};
  int with_experts = 0, with_slices = 0;
  for (const auto& example : golden("groups.json")) {
    const auto& layout = example["layout"];
    const int world = example["world"], tp = layout.value("tensor_model_parallel_size", 1);
    const int pp = layout.value("pipeline_model_parallel_size", 1), cp = layout.value("context_parallel_size", 1);
    std::string order = layout.value("order", "tp-cp-ep-dp-pp");
    order.erase(order.find("-ep"), 3);
    const ExpertLayout experts{.ep = layout.value("expert_model_parallel_size", 1),
                               .etp = layout.value("expert_tensor_parallel_size", 0)};
    with_experts += experts.ep > 1;
    const RankRoles roles(RankGrid(tp, cp, world / (tp * pp * cp), pp, world, order), experts);
    with_slices += roles.split_otherwise();
    for (const auto& [name, role] : kinds) {
      auto expected = example["groups"][name].get<Groups>();
      for (auto& group : expected) std::sort(group.begin(), group.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(roles.groups(role), expected) << layout << " " << name;
    }
  }
  EXPECT_EQ(with_experts, 5);
  EXPECT_EQ(with_slices, 4) << "over fewer ranks than other weights, or over more";
}

// Where experts are split over another number of ranks, each rank sends its own tokens to all ranks of its copy of the
// experts, which have each slice of each expert once; a gradient is summed over ranks whose copies see all tokens of
// the stage once.
TEST(RankRoles, HaveASliceOfEachExpertOnceInEachCopyOfThem) {
  for_each_layout([](const Layout& l) {
    const int stage = l.tp * l.cp * l.dp;
    if (l.order != "tp-cp-dp-pp" || stage * l.pp > 16) return;
    for (int etp = 1; etp * l.ep <= stage; ++etp) {
      if (stage % (etp * l.ep) != 0) continue;
      const RankRoles roles(RankGrid(l.tp, l.cp, l.dp, l.pp, stage * l.pp, l.order), {.ep = l.ep, .etp = etp});
      ASSERT_EQ(roles.split_otherwise(), etp != l.tp);
      for (int rank = 0; rank < stage * l.pp; ++rank) {
        const Peers copy = roles.expert_copy(rank);
        ASSERT_EQ(copy.size(), etp * l.ep);
        for (int i = 0; i < copy.size(); ++i) {
          const int member = copy.ranks[static_cast<std::size_t>(i)];
          ASSERT_EQ(roles.expert_copy(member).ranks, copy.ranks);
          ASSERT_EQ(roles.experts(member).index * etp + roles.tensor(member, Weights::Experts).index, i)
              << "slices of an expert are neighbours";
        }
        std::multiset<int> seen, all;
        for (const int peer : roles.gradients(rank, Weights::Experts).ranks) {
          ASSERT_EQ(roles.expert_copy(peer).index, copy.index);
          for (const int member : roles.expert_copy(peer).ranks) seen.insert(member);
        }
        for (int other = 0; other < stage * l.pp; ++other)
          if (roles.pipeline(other).index == roles.pipeline(rank).index) all.insert(other);
        ASSERT_EQ(seen, all);
      }
    }
  });
}

TEST(RankRoles, RefuseExpertsThatDoNotDivideAStage) {
  const RankGrid grid(2, 1, 3, 2, 12);
  EXPECT_THROW(RankRoles(grid, {.ep = 2}), ConfigError);
  EXPECT_THROW(RankRoles(grid, {.ep = 0}), ConfigError);
  EXPECT_NO_THROW(RankRoles(grid, {.ep = 3}));
}

}  // namespace
}  // namespace megatron::plan
