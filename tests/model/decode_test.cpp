#include "megatron/model/decoding/decode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/plan/cost/kv_cache.h"
#include "tests/kernels/isa.h"
#include "tests/model/small_model.h"

namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::small;

TEST(CachedGpt, GivesTheLogitsOfTheWholeSequenceHoweverTheTokensCome) {
  const auto options = small();
  const auto weights = random_weights(options.shape, 4);
  const auto batch = random_batch(10);
  for (const int t : {1, 2})
    comm::run_ranks(t, [&](comm::Group tp) {
      const auto store = make_store(options.shape, t, tp.rank(), weights);
      const auto whole = TransformerStage(options, store, tp).logits(batch);
      const CachedGpt gpt(options, store, tp);
      auto cache = gpt.make_cache(2, 7);
      std::int64_t seen = 0;
      for (const std::int64_t s : {3, 1, 2, 1}) {
        const auto next = gpt.forward(batch.tokens_bs.narrow(1, seen, s), cache);
        seen += s;
        EXPECT_NEAR_TENSOR(next, whole.select(1, seen - 1), 1e-12) << "after " << seen;
      }
      EXPECT_THROW(gpt.forward(batch.tokens_bs.narrow(1, 0, 1), cache), std::logic_error);
    });
}

TEST(CachedGpt, TakesMemoryForTheRotationsOfThePositionsAskedForAlone) {
  auto options = small();
  options.shape.learned_positions = false;
  options.rope.rotary_dim = 2;
  const auto store = make_store(options.shape, 1, 0, random_weights(options.shape, 4));
  const auto tokens = random_batch(10).tokens_bs.narrow(1, 0, 5);
  const auto logits = [&](std::int64_t capacity, std::int64_t count) {
    const CachedGpt gpt(options, store, {});
    auto cache = gpt.make_cache(2, capacity);
    return gpt.forward(tokens.narrow(1, 0, count), cache);
  };
  const auto expected = logits(5, 5);
  options.shape.max_positions = std::int64_t{1} << 50;  // no machine has a table of as many
  options.rope_positions = 5;
  EXPECT_TRUE(logits(5, 5).equal(expected));
  options.rope_positions = 4;
  EXPECT_NO_THROW(logits(5, 4));
  EXPECT_THROW(logits(5, 5), ConfigError);
}

TEST(CachedGpt, GoesThroughStagesOfAnySplit) {
  const auto options = small();
  const auto store = make_store(options.shape, 1, 0, random_weights(options.shape, 4));
  const auto batch = random_batch(10);
  const auto whole = TransformerStage(options, store, {}).logits(batch);
  const std::int64_t n = options.shape.num_layers;
  for (const std::vector<std::int64_t>& layers : {std::vector<std::int64_t>{1, n - 1}, {0, n}, {n, 0}, {0, n, 0}}) {
    std::vector<CachedGpt> stages;
    std::vector<KvCache> caches;
    for (const auto& part : plan::parts_of_layers(layers)) {
      stages.emplace_back(options, part, store, comm::Group());
      caches.push_back(stages.back().make_cache(2, 7));
    }
    std::int64_t seen = 0;
    for (const std::int64_t s : {4, 1, 2}) {
      auto x = batch.tokens_bs.narrow(1, seen, s);
      for (std::size_t i = 0; i < stages.size(); ++i) x = stages[i].forward(x, caches[i]);
      seen += s;
      EXPECT_NEAR_TENSOR(x, whole.select(1, seen - 1), 1e-12) << layers.size() << " stages, after " << seen;
    }
  }
}

TEST(CachedGpt, SequencesOfDifferentLengthsShareACacheAndLeaveItAlone) {
  const auto options = small();
  const auto store = make_store(options.shape, 1, 0, random_weights(options.shape, 4));
  const TransformerStage gpt(options, store, {});
  const auto batch = random_batch(10);
  // Sample 1 has only its last four tokens.
  Batch shorter;
  shorter.tokens_bs = batch.tokens_bs.narrow(0, 1, 1).narrow(1, 3, 4);
  const auto whole = gpt.logits(batch)[0], part = gpt.logits(shorter)[0];
  const CachedGpt cached(options, store, {});
  auto cache = cached.make_cache(2, 7);
  cache.padding = at::zeros({2}, at::kLong);
  cache.padding[1] = 3;
  auto tokens = batch.tokens_bs.clone();
  tokens[1].slice(0, 0, 3).zero_();
  auto next = cached.forward(tokens.narrow(1, 0, 5), cache);
  EXPECT_NEAR_TENSOR(next[0], whole[4], 1e-12);
  EXPECT_NEAR_TENSOR(next[1], part[1], 1e-12);
  cache.keep(at::ones({1}, at::kLong));
  next = cached.forward(tokens.narrow(0, 1, 1).narrow(1, 5, 2), cache);
  EXPECT_NEAR_TENSOR(next[0], part[3], 1e-12);
}

/// Logits and cache after prompts of three tokens, of which sequence 1 has two, and two more that come in calls of `s`.
std::vector<at::Tensor> continued(const CachedGpt& gpt, const at::Tensor& tokens_bs, std::int64_t s) {
  auto cache = gpt.make_cache(2, 5);
  cache.padding = at::arange(2, at::kLong);
  gpt.forward(tokens_bs.narrow(1, 0, 3), cache);
  at::Tensor logits;
  for (std::int64_t seen = 3; seen < 5; seen += s) logits = gpt.forward(tokens_bs.narrow(1, seen, s), cache);
  std::vector<at::Tensor> all{logits};
  for (const auto* tensors : {&cache.keys, &cache.values})
    for (const at::Tensor& tensor : *tensors) all.push_back(tensor);
  return all;
}

TEST(CachedGpt, OneTokenGoesThroughBuffersWithTheBitsOfTokensThatComeTogether) {
  auto models = megatron::testing::variants();
  std::erase_if(models, [](const auto& model) {
    const plan::ModelShape& shape = model.second.shape;
    return !shape.causal || shape.encoder_decoder() || shape.latents;  // which have no such way
  });
  models.emplace_back("gpt2", small());
  models.emplace_back("original order", small());
  models.back().second.shape.residual_after_norm = true;
  const auto tokens = random_batch(10).tokens_bs;
  for (const std::string& set : kernels::vector_instruction_sets()) {
    kernels::force_instruction_set(set);
    for (const auto& [name, options] : models)
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
        for (const int t : {1, 2})
          comm::run_ranks(t, [&](comm::Group tp) {
            const auto store = make_store(options.shape, t, tp.rank(), random_weights(options.shape, 4), dtype);
            const CachedGpt gpt(options, store, tp);
            const auto one = continued(gpt, tokens, 1), both = continued(gpt, tokens, 2);
            for (std::size_t i = 0; i < both.size(); ++i)
              EXPECT_TRUE(one[i].equal(both[i])) << set << ", " << name << ", " << dtype << ", tp " << t << ", " << i;
          });
  }
  kernels::force_instruction_set("auto");
}

/// Logits of each of `steps` tokens of sequence `b` of tokens [b, s], which follow its prompt of b + 1.
std::vector<at::Tensor> alone(const CachedGpt& gpt, const at::Tensor& tokens_bs, std::int64_t b, std::int64_t steps) {
  auto cache = gpt.make_cache(1, b + 1 + steps);
  gpt.forward(tokens_bs.narrow(0, b, 1).narrow(1, 0, b + 1), cache);
  std::vector<at::Tensor> logits;
  for (std::int64_t i = b + 1; i <= b + steps; ++i)
    logits.push_back(gpt.forward(tokens_bs.narrow(0, b, 1).narrow(1, i, 1), cache)[0]);
  return logits;
}

/// Decoders of every kind of attention.
std::vector<std::pair<std::string, TransformerOptions>> decoders() {
  auto models = megatron::testing::variants();
  std::erase_if(models,
                [](const auto& model) { return !model.second.shape.causal || model.second.shape.encoder_decoder(); });
  models.emplace_back("gpt2", small());
  models.emplace_back("window", small());
  models.back().second.shape.attention.sliding_window = 2;
  models.emplace_back("sinks", small());
  models.back().second.shape.attention.softmax_type = "learnable";
  models.emplace_back("soft cap", small());
  models.back().second.shape.attention.attn_logit_softcapping = 2;
  return models;
}

TEST(CachedGpt, SequencesInAPoolGetTheBitsThatTheyGetAlone) {
  const auto models = decoders();
  const auto tokens = random_batch(10).tokens_bs.repeat({9, 1});  // more than one product of few rows takes at once
  for (const auto& [name, options] : models)
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
      for (const int t : {1, 2})
        comm::run_ranks(t, [&](comm::Group tp) {
          const auto store = make_store(options.shape, t, tp.rank(), random_weights(options.shape, 4), dtype);
          const CachedGpt gpt(options, store, tp);
          constexpr std::int64_t kSteps = 3;
          const KvPool pool = gpt.make_pool(tokens.size(0));
          std::vector<PagedCache> caches;
          std::vector<PagedCache*> all;
          std::vector<std::int64_t> starts;
          std::vector<std::vector<at::Tensor>> expected;  // of each row
          for (std::int64_t row = 0; row < 4; ++row) expected.push_back(alone(gpt, tokens, row, kSteps));
          for (std::int64_t b = 0; b < tokens.size(0); ++b) {
            const std::int64_t row = b % 4;  // prompts of 1 to 4 tokens
            starts.push_back(row + 1);
            caches.push_back({.pool = &pool, .blocks = {tokens.size(0) - 1 - b}});
            gpt.forward(tokens.narrow(0, row, 1).narrow(1, 0, row + 1), caches.back());
          }
          for (PagedCache& cache : caches) all.push_back(&cache);
          for (std::int64_t i = 0; i < kSteps; ++i) {
            std::vector<std::int64_t> next;
            for (std::size_t b = 0; b < all.size(); ++b)
              next.push_back(tokens[starts[b] - 1][starts[b] + i].item<std::int64_t>());
            const auto logits = gpt.step(at::tensor(next, at::kLong), all);
            for (std::size_t b = 0; b < all.size(); ++b) {
              const auto got = logits[static_cast<std::int64_t>(b)];
              const at::Tensor& want = expected[b % 4][static_cast<std::size_t>(i)];
              if (dtype == at::kDouble)
                EXPECT_NEAR_TENSOR(got, want, 1e-12) << name << ", tp " << t << ", " << b;
              else
                EXPECT_TRUE(got.equal(want)) << name << ", " << dtype << ", tp " << t << ", " << b << ", " << i;
            }
          }
          all.front()->length = all.front()->capacity();
          EXPECT_THROW(gpt.step(at::zeros({18}, at::kLong), all), std::logic_error);
        });
}

/// The model with room for several blocks of positions, its attention's window as wide.
TransformerOptions lengthened(TransformerOptions options) {
  options.shape.max_positions = 200;
  if (options.shape.attention.sliding_window > 0) options.shape.attention.sliding_window = 100;
  return options;
}

// Of pieces that begin and end anywhere in a block, and of a prefix that two sequences have in common.
TEST(CachedGpt, ReadsAndWritesOverManyBlocksAsOverRowsSideBySide) {
  const auto tokens = random_batch(10, 1, 200).tokens_bs;
  for (const auto& [name, model] : decoders())
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
      for (const int t : {1, 2})
        comm::run_ranks(t, [&](comm::Group tp) {
          const auto options = lengthened(model);
          const auto store = make_store(options.shape, t, tp.rank(), random_weights(options.shape, 4), dtype);
          const CachedGpt gpt(options, store, tp);
          auto cache = gpt.make_cache(1, 200);
          const KvPool pool = gpt.make_pool(6);
          PagedCache paged{.pool = &pool, .blocks = {4, 1, 5, 0}};
          const auto expect = [&](std::int64_t s, const at::Tensor& got, const at::Tensor& want) {
            EXPECT_TRUE(dtype == at::kDouble ? got.allclose(want, 0, 1e-12) : got.equal(want))
                << name << ", " << dtype << ", tp " << t << ", " << s << " to " << cache.length;
          };
          for (const std::int64_t s : {64, 5, 1, 60, 1, 40}) {
            const auto piece = tokens.narrow(1, cache.length, s);
            expect(s, gpt.forward(piece, paged), gpt.forward(piece, cache));
          }
          PagedCache other{.pool = &pool, .blocks = {4, 2, 3}, .length = 64};
          auto alone = gpt.make_cache(1, 200);
          gpt.forward(tokens.narrow(1, 0, 64), alone);
          const auto rest = tokens.narrow(1, 100, 70);
          expect(70, gpt.forward(rest, other), gpt.forward(rest, alone));
          const auto piece = tokens.narrow(1, cache.length, 20);
          expect(20, gpt.forward(piece, paged), gpt.forward(piece, cache));
          EXPECT_THROW(gpt.forward(tokens.narrow(1, 0, 70), paged), std::logic_error);
        });
}

TEST(CachedGpt, TakesForAPoolWhatIsPlanned) {
  for (const auto& [name, options] : decoders())
    for (const int t : {1, 2})
      for (const auto& part : plan::parts_of_layers({1, 1}))
        comm::run_ranks(t, [&](comm::Group tp) {
          const auto store = make_store(options.shape, t, tp.rank(), random_weights(options.shape, 4), at::kHalf);
          const KvPool pool = CachedGpt(options, part, store, tp).make_pool(3);
          std::int64_t bytes = 0;
          for (const auto* tensors : {&pool.keys, &pool.values})
            for (const at::Tensor& tensor : *tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
          const std::int64_t tokens = 3 * plan::kCacheBlockTokens;
          EXPECT_EQ(bytes, tokens * plan::cache_token_bytes(options.shape, part, t, 2)) << name << ", tp " << t;
        });
}

TEST(CachedGpt, GivesTheLogitsAfterEveryToken) {
  const auto options = small();
  const auto store = make_store(options.shape, 1, 0, random_weights(options.shape, 4));
  const auto tokens = random_batch(10).tokens_bs.narrow(0, 0, 1);
  Batch batch;
  batch.tokens_bs = tokens;
  const auto whole = TransformerStage(options, store, {}).logits(batch)[0];
  const CachedGpt gpt(options, store, {});
  const KvPool pool = gpt.make_pool(1);
  PagedCache cache{.pool = &pool, .blocks = {0}};
  EXPECT_NEAR_TENSOR(gpt.forward_all(tokens.narrow(1, 0, 5), cache), whole.narrow(0, 0, 5), 1e-12);
  EXPECT_NEAR_TENSOR(gpt.forward_all(tokens.narrow(1, 5, 1), cache), whole.narrow(0, 5, 1), 1e-12);
}

}  // namespace
}  // namespace megatron::model
