#include "megatron/plan/parameters/gradient_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "megatron/config/options.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/pipeline_plan.h"
#include "tests/testing/folders.h"

namespace megatron::plan {
namespace {

ParameterSpec parameter(std::int64_t size, std::int64_t depth, int stage = 0, bool in_forward = false) {
  return {.name = "p", .shape = {size}, .stage = stage, .depth = depth, .in_forward = in_forward};
}

GradientPool pool_of(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size,
                     const GradientPoolOptions& options) {
  return gradient_pool(buffer_layout(specs, bucket_size, {.alignment = 1}), specs, options);
}

/// An embedding, four layers, what follows them; a bucket each, the last parameter's first.
std::vector<ParameterSpec> equal_layers() {
  return {parameter(50, 0), parameter(10, 1), parameter(10, 2), parameter(10, 3), parameter(10, 4), parameter(2, 5)};
}

TEST(GradientPool, HoldsTwoNeighboursWhileOneIsReducedAndElseOne) {
  const GradientPool two = pool_of(equal_layers(), 1, {.overlap = true});
  EXPECT_EQ(two.size, 60);  // embedding and first layer
  EXPECT_EQ(two.begin, (std::vector<std::int64_t>{10, 0, 10, 0, 50, 0}));
  const GradientPool one = pool_of(equal_layers(), 1, {.overlap = false});
  EXPECT_EQ(one.size, 50);
  EXPECT_EQ(one.begin, (std::vector<std::int64_t>(6, 0)));
}

TEST(GradientPool, GivesStagesTheSameMemory) {
  const std::vector<ParameterSpec> specs{parameter(10, 1, 0), parameter(10, 2, 0), parameter(10, 5, 1),
                                         parameter(10, 6, 1)};
  EXPECT_EQ(pool_of(specs, 1, {}).size, 20);
  EXPECT_EQ(pool_of(specs, 1, {.overlap = false}).size, 10);
}

TEST(GradientPool, LeavesABucketAloneWhoseContributionsWaitForOtherOperations) {
  auto specs = equal_layers();
  specs.push_back(parameter(30, 5, 0, /*in_forward=*/true));
  EXPECT_EQ(pool_of(specs, 1, {.overlap = false}).size, 50 + 30);
  EXPECT_EQ(pool_of(specs, 1, {.overlap = true}).size, 60 + 30);
  EXPECT_EQ(pool_of(equal_layers(), 1, {.split_backward = true, .overlap = false}).size, 10 + 50);
  EXPECT_EQ(pool_of(equal_layers(), 1, {.split_backward = true, .overlap = true}).size, 20 + 50);
}

// The words of a T5's decoder are written between its layers and the encoder's, wherever in a stage it begins.
TEST(GradientPool, LeavesTheWordsOfADecoderAlone) {
  const ModelShape shape{.num_layers = 6,
                         .hidden = 8,
                         .num_heads = 2,
                         .ffn_hidden = 16,
                         .vocab = 40,
                         .padded_vocab = 40,
                         .learned_positions = false,
                         .encoder_layers = 3};
  for (const std::int64_t first : {1, 2, 3}) {
    const std::vector<StageSpec> parts = parts_of_layers({first, 4 - first, 2});
    const auto specs = model_parameters(shape, 1, 0, {parts[1]});
    const BufferLayout layout = buffer_layout(specs, 1, {.alignment = 1});
    const GradientPool pool = gradient_pool(layout, specs, {});
    const auto words = std::ranges::find_if(layout.buckets, [&](const BufferLayout::Bucket& bucket) {
      return specs[static_cast<std::size_t>(bucket.parameters.front())].name == kWordEmbedding;
    });
    ASSERT_NE(words, layout.buckets.end());
    const std::int64_t begin = pool.begin[static_cast<std::size_t>(words - layout.buckets.begin())];
    for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
      const auto& bucket = layout.buckets[b];
      if (&bucket == &*words) continue;
      EXPECT_TRUE(pool.begin[b] >= begin + words->end - words->begin ||
                  pool.begin[b] + bucket.end - bucket.begin <= begin)
          << "first layer " << first << ", bucket " << b;
    }
  }
}

// Goes backward through random models as a rank does and asks of every moment that what is there lies apart.
TEST(GradientPool, KeepsApartWhateverIsThereAtTheSameTime) {
  std::mt19937 random(3);
  const auto upto = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
  std::int64_t saved = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<ParameterSpec> specs;
    const int stages = upto(2), layers = upto(6);
    for (int stage = 0; stage < stages; ++stage)
      for (int layer = 0; layer < layers; ++layer)
        for (int k = upto(3); k > 0; --k) specs.push_back(parameter(upto(40), 1 + stage * layers + layer, stage));
    const BufferLayout layout = buffer_layout(specs, upto(90), {.alignment = 1});
    const bool overlap = round % 2 == 0;
    const GradientPool pool = gradient_pool(layout, specs, {.overlap = overlap});
    saved += layout.size - pool.size;
    EXPECT_LE(pool.size, layout.size);
    for (int stage = 0; stage < stages; ++stage) {
      std::set<std::size_t> before;  // finished at the depth before: under way with overlap
      for (std::int64_t depth = (stage + 1) * layers; depth > stage * layers; --depth) {
        std::set<std::size_t> here, after;
        for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
          std::int64_t first = 1 << 20, last = 0;
          for (const int p : layout.buckets[b].parameters) {
            first = std::min(first, specs[static_cast<std::size_t>(p)].depth);
            last = std::max(last, specs[static_cast<std::size_t>(p)].depth);
          }
          if (layout.buckets[b].stage != stage) continue;
          if (first <= depth && depth <= last) here.insert(b);
          if (first == depth) after.insert(b);
        }
        if (overlap) here.insert(before.begin(), before.end());
        std::vector<bool> used(static_cast<std::size_t>(pool.size));
        for (const std::size_t b : here)
          for (std::int64_t at = 0; at < layout.buckets[b].end - layout.buckets[b].begin; ++at) {
            const auto place = static_cast<std::size_t>(pool.begin[b] + at);
            ASSERT_LT(place, used.size());
            EXPECT_FALSE(used[place]) << "round " << round << " depth " << depth;
            used[place] = true;
          }
        before = after;
      }
    }
  }
  EXPECT_GT(saved, 0);
}

TEST(RankGradientPool, IsThereWithTheStrategyAndSeveralDataParallelRanksAlone) {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 500;
  config.optimizer.bucket_size = 10'000;
  config.optimizer.use_distributed_optimizer = true;
  const auto size = [&](int dp, const char* strategy) -> std::int64_t {
    config.parallel.world_size = dp;
    config.optimizer.data_parallel_sharding_strategy = strategy;
    const ResolvedRun run = resolve(config);
    const auto specs = model_parameters(run.shape, 1, 0);
    const auto pool = rank_gradient_pool(run, specs, rank_layout(run, specs));
    return pool ? pool->size : 0;
  };
  EXPECT_EQ(size(1, "optim_grads"), 0);
  EXPECT_EQ(size(4, "optim"), 0);
  // The tied embedding with the positions, 128 + 512 rows of 256; two layers of 789,760 and padding.
  EXPECT_GT(size(4, "optim_grads"), 2 * 789'760 + 512 * 256);
  EXPECT_LT(size(4, "optim_grads"), 3 * 789'760 + 2 * 512 * 256);
}

config::RunConfig gpt2(int dp, bool tied, bool overlap) {
  config::RunConfig config;
  config::load_toml(config, tests_folder() + "/../configs/gpt2_124m.toml");
  config.parallel.world_size = dp;
  config.model.untie_embeddings_and_output_weights = !tied;
  config.optimizer.use_distributed_optimizer = true;
  config.optimizer.overlap_grad_reduce = overlap;
  return config;
}

std::int64_t gradient_bytes(config::RunConfig config, const char* strategy) {
  config.optimizer.data_parallel_sharding_strategy = strategy;
  return memory_plan(resolve(config), 0, 0, 0).gradients;
}

TEST(RankGradientPool, OfBucketsOfTheDefaultSizeIsSmallerThanWholeGradients) {
  for (const int dp : {2, 4, 8})
    for (const bool tied : {true, false})
      for (const bool overlap : {true, false}) {
        const auto config = gpt2(dp, tied, overlap);
        const std::int64_t whole = gradient_bytes(config, "optim"), shared = gradient_bytes(config, "optim_grads");
        // A table of the vocabulary and the positions, and the layers (7.1 M) that are there with it: a tied one keeps
        // its place beside them, others go when their neighbours have come.
        const std::int64_t table = 39'500'000, layers = (tied ? 1 : 0) + (overlap ? 1 : 0);
        EXPECT_LT(shared, whole) << dp << tied << overlap;
        EXPECT_LT(shared, whole / dp + 4 * (table + layers * 7'100'000)) << dp << tied << overlap;
      }
}

TEST(RankGradientPool, TakesTheBucketSizeThatIsGivenWithAndWithoutOverlap) {
  for (const bool overlap : {true, false}) {
    config::RunConfig config = gpt2(4, true, overlap);
    config.optimizer.data_parallel_sharding_strategy = "optim_grads";
    for (const std::int64_t size : {2'000'000, 20'000'000}) {
      config.optimizer.bucket_size = size;
      const ResolvedRun run = resolve(config);
      const BufferLayout layout = rank_layout(run, model_parameters(run.shape, 1, 0));
      ASSERT_GT(layout.buckets.size(), 3u);
      for (std::size_t b = 0; b + 1 < layout.buckets.size(); ++b)
        EXPECT_GE(layout.buckets[b].end - layout.buckets[b].begin, size) << b;
    }
  }
}

TEST(RankGradientPool, IsLeftOutByDefaultAndWarnedOfWhereItSavesNothing) {
  config::RunConfig config = gpt2(2, true, true);
  config.model.num_layers = 2;  // both layers are there at once, and the embedding
  config.optimizer.data_parallel_sharding_strategy = "optim_grads";
  const auto warnings = [&] { return sharding_warnings(resolve(config)); };
  EXPECT_EQ(gradient_bytes(config, "optim_grads"), gradient_bytes(config, "optim"));
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("they are held whole"), std::string::npos) << warnings()[0];
  config.optimizer.bucket_size = 2'000'000;
  EXPECT_GT(gradient_bytes(config, "optim_grads"), gradient_bytes(config, "optim"));
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("leave optimizer.bucket_size out"), std::string::npos) << warnings()[0];
  config.model.num_layers = 12;
  EXPECT_TRUE(warnings().empty());
  config.optimizer.bucket_size = 40'000'000;  // Megatron's
  EXPECT_EQ(warnings().size(), 1u);
}

/// Goes through a rank's program and asks, whenever a bucket's first gradient is written, that no other one that is
/// being written overlaps it. Of schedules that compute backward in one.
void expect_apart(const ResolvedRun& run, int pp_rank) {
  const auto specs = model_parameters(run.shape, 1, 0, parts_of_rank(run.parts, run.placement, pp_rank));
  const BufferLayout layout = rank_layout(run, specs);
  const auto pool = rank_gradient_pool(run, specs, layout);
  ASSERT_TRUE(pool);
  const auto size_of = [&](std::size_t b) { return layout.buckets[b].end - layout.buckets[b].begin; };
  std::set<std::size_t> open;
  const auto enter = [&](std::size_t b) {
    for (const std::size_t other : open)
      EXPECT_TRUE(other == b || pool->begin[b] + size_of(b) <= pool->begin[other] ||
                  pool->begin[other] + size_of(other) <= pool->begin[b])
          << "buckets " << b << " and " << other;
    open.insert(b);
  };
  const auto holds = [&](std::size_t b, const auto& which) {
    const auto& parameters = layout.buckets[b].parameters;
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](int p) { return which(specs[static_cast<std::size_t>(p)]); });
  };
  const int last = run.placement.num_stages() - 1;
  int forwards = 0;  // of the last stage, whose backward is to come
  const schedule::Program program = pipeline_program(run, run.microbatches_per_step);
  for (const schedule::Op& op : program.ranks.at(static_cast<std::size_t>(pp_rank))) {
    if (op.kind == schedule::Kind::Forward && op.stage == last) {
      ++forwards;
      for (std::size_t b = 0; b < layout.buckets.size(); ++b)
        if (holds(b, [](const ParameterSpec& spec) { return spec.in_forward; })) enter(b);
    }
    if (op.kind != schedule::Kind::Backward) continue;
    if (op.stage == last) --forwards;
    for (std::int64_t depth = run.shape.num_layers + 1; depth >= 0; --depth) {
      const auto here = [&](const ParameterSpec& spec) { return spec.depth == depth; };
      const auto below = [&](const ParameterSpec& spec) { return spec.depth < depth; };
      const auto waits = [&](const ParameterSpec& spec) { return spec.in_forward && forwards > 0; };
      for (std::size_t b = 0; b < layout.buckets.size(); ++b)
        if (layout.buckets[b].stage == op.stage && holds(b, here)) enter(b);
      for (std::size_t b = 0; b < layout.buckets.size(); ++b)
        if (layout.buckets[b].stage == op.stage && !holds(b, below) && !holds(b, waits)) open.erase(b);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(RankGradientPool, KeepsApartWhatAProgramWritesAtTheSameTime) {
  for (const schedule::ScheduleInfo& info : schedule::schedules())
    for (const int pp : {1, 2, 4})
      for (const bool tied : {true, false})
        for (const int microbatches : {1, 2, 4, 7, 12})
          for (const int group : {0, 2 * pp}) {
            if (info.splits_backward || (pp == 1 && &info != &schedule::schedules().front())) continue;
            if (group > 0 && (!info.takes_groups || microbatches % group > 0)) continue;
            config::RunConfig config;
            config.model.num_layers = 16;
            config.model.vocab_size = 3000;
            config.model.untie_embeddings_and_output_weights = !tied;
            config.parallel.pp = pp;
            config.parallel.vpp = pp > 1 ? info.min_chunks : 1;
            config.parallel.pp_schedule = pp > 1 ? info.name : "";
            config.parallel.microbatch_group_size = group;
            config.parallel.world_size = 8 * pp;
            config.train.micro_batch_size = 1;
            config.train.global_batch_size = 8 * microbatches;
            config.optimizer.use_distributed_optimizer = true;
            config.optimizer.data_parallel_sharding_strategy = "optim_grads";
            const ResolvedRun run = resolve(config);
            SCOPED_TRACE(std::string(info.name) + " m " + std::to_string(microbatches) + " pp " + std::to_string(pp) +
                         (tied ? " tied" : " untied"));
            for (int rank = 0; rank < pp; ++rank) expect_apart(run, rank);
          }
}

}  // namespace
}  // namespace megatron::plan
