#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/cuda/grouped.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/parallel/context.h"
#include "tests/model/small_model.h"
#include "tests/testing/adapters.h"

// Experts that are split over another number of ranks than other weights, where all ranks have all tokens: decoding has
// no sequence parallelism.
namespace megatron::model {
namespace {

using megatron::testing::kept;
using megatron::testing::make_store;
using megatron::testing::merged;
using megatron::testing::mixtures;
using megatron::testing::random_adapter;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::WholeAdapter;

struct SliceRanks {
  int tp, ep, etp;

  std::string name() const { return concat("tp ", tp, ", ep ", ep, ", etp ", etp); }
};

/// Whole experts and halves, each once on the ranks or in several copies.
constexpr SliceRanks kSliceRanks[] = {{2, 2, 1}, {2, 1, 1}, {4, 4, 1}, {4, 2, 1}, {4, 2, 2}, {4, 1, 2}};

/// Calls on_rank(model's options, its parameters, tp) on each rank of `ranks`, with `adapters` beside the weights.
template <class OnRank>
void on_ranks(const TransformerOptions& of_one, const SliceRanks& ranks, at::ScalarType dtype, const OnRank& on_rank,
              const std::vector<WholeAdapter>& adapters = {}) {
  const auto weights = random_weights(of_one.shape, 4);
  comm::run_ranks(ranks.tp, [&](const comm::Group& world) {
    const plan::RankGrid grid(ranks.tp, 1, 1, 1, ranks.tp);
    const plan::ExpertLayout layout{.ep = ranks.ep, .etp = ranks.etp};
    const parallel::ParallelContext context(grid, world, at::kCPU, layout);
    const plan::RankRoles roles(grid, layout);
    const plan::Peers experts = roles.experts(world.rank()),
                      slices = roles.tensor(world.rank(), plan::Weights::Experts);
    const plan::ExpertShare share{
        .ep = experts.size(), .rank = experts.index, .etp = slices.size(), .etp_rank = slices.index};
    const auto store = make_store(of_one.shape, ranks.tp, world.rank(), weights, dtype, 1, at::kCPU, {}, share);
    TransformerOptions options = of_one;
    options.experts = context.experts();
    options.expert_slices = slices.size();
    if (!adapters.empty())
      options.kept =
          kept(of_one.shape, plan::whole_model(of_one.shape.num_layers), context.tensor(), adapters, dtype, share);
    on_rank(options, store, context.tensor());
  });
}

TEST(ExpertSlicesOfAllTokens, GiveTheLogitsOfOneRankHoweverTheTokensCome) {
  const auto batch = random_batch(10);
  for (const auto& [name, options] : mixtures()) {
    const auto whole =
        TransformerStage(options, make_store(options.shape, 1, 0, random_weights(options.shape, 4)), {}).logits(batch);
    for (const SliceRanks& ranks : kSliceRanks) {
      SCOPED_TRACE(concat(name, ", ", ranks.name()));
      on_ranks(options, ranks, at::kDouble, [&](const auto& of_rank, const auto& store, const comm::Group& tp) {
        EXPECT_NEAR_TENSOR(TransformerStage(of_rank, store, tp).logits(batch), whole, 1e-12);
        const CachedGpt gpt(of_rank, store, tp);
        auto cache = gpt.make_cache(2, 7);
        std::int64_t seen = 0;
        for (const std::int64_t s : {3, 1, 2, 1}) {
          const auto next = gpt.forward(batch.tokens_bs.narrow(1, seen, s), cache);
          seen += s;
          EXPECT_NEAR_TENSOR(next, whole.select(1, seen - 1), 1e-12) << "after " << seen;
        }
      });
    }
  }
}

TEST(ExpertSlicesOfAllTokens, GiveATokenTheBitsThatItGetsAlone) {
  constexpr std::int64_t kSequences = 9;
  const auto tokens = random_batch(10, kSequences).tokens_bs;
  for (const auto& [name, options] : mixtures())
    for (const SliceRanks& ranks : kSliceRanks) {
      SCOPED_TRACE(concat(name, ", ", ranks.name()));
      on_ranks(options, ranks, at::kFloat, [&](const auto& of_rank, const auto& store, const comm::Group& tp) {
        const CachedGpt gpt(of_rank, store, tp);
        const KvPool pool = gpt.make_pool(2 * kSequences);
        std::vector<PagedCache> alone, together;
        for (std::int64_t b = 0; b < kSequences; ++b)
          for (auto* caches : {&alone, &together}) {
            caches->push_back({.pool = &pool, .blocks = {caches == &alone ? b : kSequences + b}});
            gpt.forward(tokens.narrow(0, b, 1).narrow(1, 0, 3), caches->back());
          }
        std::vector<PagedCache*> all;
        for (PagedCache& cache : together) all.push_back(&cache);
        const auto logits = gpt.step(tokens.select(1, 3), all);
        for (std::int64_t b = 0; b < kSequences; ++b) {
          PagedCache* const one = &alone[static_cast<std::size_t>(b)];
          EXPECT_TRUE(gpt.step(tokens.select(1, 3).narrow(0, b, 1), {&one, 1})[0].equal(logits[b])) << b;
        }
      });
    }
}

/// Logits of sequences [b, s], each with its adapter, after a prompt of three tokens and after another one: [2, b, v].
at::Tensor logits_of(const CachedGpt& gpt, const at::Tensor& tokens, const std::vector<std::int64_t>& adapters) {
  const KvPool pool = gpt.make_pool(std::ssize(adapters));
  std::vector<PagedCache> caches;
  std::vector<PagedCache*> all;
  std::vector<at::Tensor> after;
  for (std::int64_t b = 0; b < std::ssize(adapters); ++b) {
    caches.push_back({.pool = &pool, .blocks = {b}, .adapter = adapters[static_cast<std::size_t>(b)]});
    after.push_back(gpt.forward(tokens.narrow(0, b, 1).narrow(1, 0, 3), caches.back())[0]);
  }
  for (PagedCache& cache : caches) all.push_back(&cache);
  return at::stack({at::stack(after), gpt.step(tokens.select(1, 3), all)});
}

TEST(ExpertSlicesOfAllTokens, KeepAdaptersBesideTheirWeights) {
  const std::vector<std::int64_t> chosen = {1, 0, 2, 1}, none(chosen.size());
  const auto tokens = random_batch(10, std::ssize(chosen)).tokens_bs;
  for (const auto& [name, options] : mixtures()) {
    const std::vector<WholeAdapter> adapters = {
        random_adapter(options.shape, 20, {.rank = 3, .alpha = 6, .targets = {"all-linear"}}),
        random_adapter(options.shape, 21, {.rank = 2, .alpha = 5, .rslora = true, .targets = {"down_proj"}})};
    const auto weights = random_weights(options.shape, 4);
    std::vector<at::Tensor> want;
    for (const std::int64_t which : {0, 1, 2}) {
      const auto theirs =
          which == 0 ? weights : merged(options.shape, weights, adapters[static_cast<std::size_t>(which - 1)]);
      want.push_back(logits_of(CachedGpt(options, make_store(options.shape, 1, 0, theirs), {}), tokens, none));
    }
    for (const SliceRanks& ranks : kSliceRanks) {
      SCOPED_TRACE(concat(name, ", ", ranks.name()));
      on_ranks(
          options, ranks, at::kDouble,
          [&](const auto& of_rank, const auto& store, const comm::Group& tp) {
            const auto got = logits_of(CachedGpt(of_rank, store, tp), tokens, chosen);
            for (std::size_t b = 0; b < chosen.size(); ++b) {
              const auto own = want[static_cast<std::size_t>(chosen[b])].select(1, static_cast<std::int64_t>(b));
              EXPECT_NEAR_TENSOR(got.select(1, static_cast<std::int64_t>(b)), own, 1e-12) << b;
            }
          },
          adapters);
    }
  }
}

// By which a GPU takes the products of all of them at once (kernels/cuda/grouped.h).
TEST(ExpertWeights, LieAtEqualDistances) {
  for (const auto& [name, options] : mixtures()) {
    const auto store = make_store(options.shape, 1, 0);
    for (const std::string end : {".linear_fc1.weight", ".linear_fc2.weight"}) {
      std::vector<at::Tensor> weights;
      for (const auto& parameter : store.all())
        if (parameter->spec.name.starts_with("decoder.layers.1.mlp.experts.") && parameter->spec.name.ends_with(end))
          weights.push_back(parameter->value.detach());
      ASSERT_EQ(std::ssize(weights), options.shape.experts->count) << name;
      std::ranges::reverse(weights);  // as their rows come
      EXPECT_GE(kernels::cuda::distance_of(weights), weights[0].numel()) << name << end;
    }
  }
}

}  // namespace
}  // namespace megatron::model
