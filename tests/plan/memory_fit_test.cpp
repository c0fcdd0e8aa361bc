#include "megatron/plan/cost/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"

namespace megatron::plan {
namespace {

using testing::HasSubstr;

ResolvedRun run_of(int tp, int pp, int dp) {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 4096;
  config.train.global_batch_size = 8;
  config.parallel.tp = tp;
  config.parallel.pp = pp;
  config.parallel.world_size = tp * pp * dp;
  return resolve(config);
}

std::string error_of(const ResolvedRun& run, LocalRanks ranks, Holding holding, std::uint64_t bytes) {
  try {
    check_memory(run, ranks, holding, {bytes, "the memory that is free"});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(MemoryFit, IsTheSumOfThePlansOfTheRanksOfAMachine) {
  for (const auto& [tp, pp, dp] : {std::tuple{1, 1, 1}, {2, 1, 2}, {2, 2, 2}, {1, 4, 1}}) {
    const ResolvedRun run = run_of(tp, pp, dp);
    const auto timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                             stage_costs(run.config, run.shape, run.parts));
    std::int64_t training = 0, weights = 0;
    for (int rank = 0; rank < tp * pp * dp; ++rank) {
      const Coord coord = run.grid.coord_of(rank);
      const int pp_rank = coord[static_cast<std::size_t>(Axis::Pp)];
      const MemoryPlan plan = memory_plan(run, coord[static_cast<std::size_t>(Axis::Tp)], pp_rank,
                                          timeline.peak_bytes[static_cast<std::size_t>(pp_rank)]);
      training += plan.total();
      weights += plan.parameters;
      EXPECT_EQ(bytes_of_ranks(run, {.first = rank, .count = 1}, Holding::Training), plan.total());
    }
    const LocalRanks all{.first = 0, .count = tp * pp * dp};
    EXPECT_EQ(bytes_of_ranks(run, all, Holding::Training), training);
    EXPECT_EQ(bytes_of_ranks(run, all, Holding::Weights), weights);
  }
}

TEST(MemoryFit, OfWeightsThatStayCountsOneCopyOfEachMatrixThatIsMultiplied) {
  for (const auto& [tp, pp, dp] : {std::tuple{1, 1, 1}, {2, 1, 2}, {2, 2, 2}, {1, 4, 1}}) {
    ResolvedRun run = run_of(tp, pp, dp);
    run.config.train.dtype = "bf16";
    const LocalRanks all{.first = 0, .count = tp * pp * dp};
    const auto with = [&](bool copies, const char* processor) {
      return bytes_of_ranks(run, all, {.what = Holding::What::Weights, .copies = copies}, processor);
    };
    // Of a layer 4 h^2 of attention and 8 h^2 of the MLP; the output layer's once, whichever stages have the matrix.
    const std::int64_t h = run.shape.hidden, copies = dp * 2 * (8 * 12 * h * h + 4096 * h);
    EXPECT_EQ(with(true, "amx") - with(false, "amx"), copies);
    EXPECT_EQ(with(true, "avx512_bf16") - with(false, "avx512_bf16"), copies);
    EXPECT_EQ(with(true, "avx2"), with(false, "avx2"));
    EXPECT_EQ(with(false, "amx"), with(false, "avx2"));
    const Holding holding{.what = Holding::What::Weights, .copies = true};
    const auto needed = static_cast<std::uint64_t>(with(true, "amx"));
    const auto fits = [&](std::uint64_t memory, std::int64_t besides) {
      const MachineMemory machine{.bytes = 100 * needed, .limit = "", .without_swap = memory};
      return fits_amply(run, all, holding, machine, "amx", {.bytes = besides});
    };
    EXPECT_TRUE(fits(needed + needed / 7 + 8, 0));
    EXPECT_FALSE(fits(needed + needed / 7 - 16, 0)) << "an eighth is left";
    EXPECT_FALSE(fits(needed + needed / 7 + 8, 100));
  }
}

TEST(MemoryFit, OfWordsThatAreOnlyLookedUpCountsNoCopy) {
  ResolvedRun tied = run_of(1, 1, 1);
  tied.config.train.dtype = "bf16";
  config::RunConfig config = tied.config;
  config.model.untie_embeddings_and_output_weights = true;
  const ResolvedRun untied = resolve(config);
  EXPECT_EQ(forward_copy_bytes(untied, 0, 0, "amx"), forward_copy_bytes(tied, 0, 0, "amx"));
}

TEST(MemoryFit, RefusesOneByteTooMuch) {
  const ResolvedRun run = run_of(1, 1, 2);
  const LocalRanks both{.first = 0, .count = 2}, one{.first = 1, .count = 1};
  const auto bytes = static_cast<std::uint64_t>(bytes_of_ranks(run, both, Holding::Training));
  EXPECT_EQ(error_of(run, both, Holding::Training, bytes), "no error");
  const std::string error = error_of(run, both, Holding::Training, bytes - 1);
  EXPECT_THAT(error, HasSubstr("of its 2 ranks."));
  EXPECT_THAT(error, HasSubstr("the memory that is free: "));
  EXPECT_THAT(error, HasSubstr("\n  fix:  "));
  EXPECT_EQ(error_of(run, one, Holding::Training, bytes - 1), "no error") << "the other is on another machine";
  EXPECT_EQ(error_of(run, both, Holding::Weights, bytes - 1), "no error");
}

TEST(MemoryFit, CountsWhatIsComputedForwardBesideTheWeights) {
  const ResolvedRun run = run_of(2, 1, 2);
  const LocalRanks all{.first = 0, .count = 4}, half{.first = 2, .count = 2};
  const auto weights = static_cast<std::uint64_t>(bytes_of_ranks(run, all, Holding::Weights));
  const auto error = [&](LocalRanks ranks, std::uint64_t bytes) {
    try {
      check_memory(run, ranks, Holding::Weights, {bytes, "the memory that is free"}, {},
                   {.bytes = 1000, .what = "keys and values", .fix = "fewer texts"});
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(all, weights + 1000), "no error");
  EXPECT_THAT(error(all, weights + 999), HasSubstr("the weights, and keys and values, of its 4 ranks."));
  EXPECT_THAT(error(all, weights + 999), HasSubstr("\n  fix:  fewer texts"));
  EXPECT_THAT(error(all, weights - 1), HasSubstr("\n  fix:  --dtype bf16"));
  EXPECT_EQ(error(half, weights / 2 + 500), "no error") << "the other ranks' share is on another machine";
  EXPECT_THAT(error(half, weights / 2 + 499), HasSubstr("of its 2 ranks."));
}

TEST(MemoryFit, ALayersForwardIsAsLongAsItsRowsAndOnEveryRank) {
  // Of float32 numbers a token: the stream twice, q, k, v, the attention's output and the MLP's two products, at least.
  const ResolvedRun one = run_of(1, 1, 1);
  const std::int64_t bytes = forward_bytes(one, 3, 100), h = one.shape.hidden;
  EXPECT_GE(bytes, 3 * 100 * 4 * (2 * h + 3 * h + h + 4 * h));
  EXPECT_LE(bytes, 3 * 100 * 4 * 20 * h);
  EXPECT_EQ(forward_bytes(one, 6, 100), 2 * bytes);
  EXPECT_EQ(forward_bytes(run_of(1, 1, 4), 3, 100), 4 * bytes) << "each has rows of its own";
}

TEST(MemoryFit, OfALargePlanDoesNotOverflow) {
  config::RunConfig config;
  config.model.num_layers = 4096;
  config.model.hidden_size = 65536;
  config.model.vocab_size = 4096;
  const ResolvedRun run = resolve(config);
  EXPECT_GT(bytes_of_ranks(run, {}, Holding::Training), std::int64_t{1} << 51);
  EXPECT_THAT(error_of(run, {}, Holding::Training, std::uint64_t{1} << 50), HasSubstr("memory must hold"));
}

}  // namespace
}  // namespace megatron::plan
