#include "megatron/plan/cost/fit/teacher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/plan/cost/memory_fit.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/layout_search.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/report.h"
#include "tests/testing/folders.h"

namespace megatron::plan {
namespace {

config::RunConfig student(int tp, int pp, int dp) {
  config::RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 100;
  config.model.make_vocab_size_divisible_by = 1;
  config.data.seq_length = 16;
  config.parallel.tp = tp;
  config.parallel.pp = pp;
  config.parallel.world_size = tp * pp * dp;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8 * dp;
  config.distill.teacher = "a folder";
  return config;
}

/// Of a GPT of 6 layers and twice the student's width.
TeacherNetwork teacher() {
  config::RunConfig config = student(1, 1, 1);
  config.model.num_layers = 6;
  config.model.hidden_size = 64;
  const ResolvedRun run = resolve(config);
  return {run.config.model, run.shape};
}

ResolvedRun taught(const config::RunConfig& config) { return resolve(config, {.teacher = teacher()}); }

TEST(Teacher, IsOnEachRankItsSlicesAndOnTheLastWhatItsLastStageReads) {
  for (const int tp : {1, 2})
    for (const int pp : {1, 2, 4})
      for (const int dp : {1, 2}) {
        SCOPED_TRACE(testing::Message() << "tp " << tp << " pp " << pp << " dp " << dp);
        const ResolvedRun run = taught(student(tp, pp, dp));
        std::int64_t bytes = 0, numbers = 0;
        for (int rank = 0; rank < pp; ++rank) bytes += teacher_bytes(run, rank);
        // The parameters of the whole model; the tied embedding of a pipeline's last stage is a copy.
        for (const ParameterSpec& spec : model_parameters(teacher().shape, tp, 0)) {
          const bool is_twice = pp > 1 && spec.name == kWordEmbedding;
          numbers += spec.local_size() * (is_twice ? 2 : 1);
        }
        if (pp > 1) numbers += 4 * 2 * 16 * 64;  // microbatches, samples, tokens, width
        EXPECT_EQ(bytes, 4 * numbers);
      }
}

TEST(Teacher, IsARowOfThePlanAndOfItsTotal) {
  const ResolvedRun alone = resolve(student(2, 2, 1)), run = taught(student(2, 2, 1));
  const nlohmann::json without = report(alone)["memory_bytes"], with = report(run)["memory_bytes"];
  EXPECT_FALSE(without.contains("teacher"));
  for (int rank = 0; rank < 4; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_EQ(with["teacher"][at], teacher_bytes(run, rank / 2)) << rank;
    EXPECT_EQ(with["total"][at].get<std::int64_t>(),
              without["total"][at].get<std::int64_t>() + with["teacher"][at].get<std::int64_t>())
        << rank;
  }
  EXPECT_NE(report_text(run).find("\n  teacher "), std::string::npos);
  EXPECT_NE(report_text(alone).find("not counted: only training reads such a folder"), std::string::npos);
}

/// What the rank holds that holds most, and what all hold.
std::int64_t largest(const ResolvedRun& run) { return largest_memory(run).total(); }
std::int64_t held(const ResolvedRun& run) {
  return bytes_of_ranks(run, {.first = 0, .count = run.grid.world_size()}, Holding::Training);
}

TEST(Teacher, IsInWhatAllHoldWhoAsk) {
  for (const int pp : {1, 2}) {
    const config::RunConfig config = student(1, pp, 1);
    const ResolvedRun alone = resolve(config), run = taught(config);
    std::int64_t bytes = 0;
    for (int rank = 0; rank < pp; ++rank) bytes += teacher_bytes(run, rank);
    EXPECT_EQ(held(run), held(alone) + bytes);
    EXPECT_GT(largest(run), largest(alone));
    try {
      check_memory(run, {.first = 0, .count = pp}, Holding::Training,
                   {.bytes = static_cast<std::uint64_t>(held(alone)), .limit = "the machine has"});
      ADD_FAILURE() << "fits without its teacher";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("activations and the weights of distill.teacher"), std::string::npos);
    }
  }
}

// A fix that names the student's vocabulary alone would have the teacher read ids of another tokenizer.
TEST(Teacher, OfOtherTokensIsRefusedWithAFixThatNamesItsTokenizer) {
  config::RunConfig config = student(1, 1, 1);
  config.model.vocab_size = 90;
  try {
    resolve(config, {.launched_world_size = 1, .teacher = teacher()});
    ADD_FAILURE() << "has other tokens";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("fix:  the teacher's tokenizer, with --model.vocab_size 100"),
              std::string::npos)
        << error.what();
  }
}

// Of 2 ranks with 2 stages each a teacher of 3 layers has none for the last.
TEST(Teacher, HasALayerForEachStageOfAScheduleThatIsChosen) {
  config::RunConfig config = student(1, 2, 1);
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.parallel.pp_schedule = "auto";
  const std::size_t stages = resolve(config).parts.size();
  TeacherNetwork few = teacher();
  few.network.num_layers = 3;
  few.shape.num_layers = 3;
  EXPECT_EQ(stages, 4u);
  EXPECT_EQ(resolve(config, {.teacher = few}).parts.size(), 2u);
}

TEST(Teacher, IsWithinTheLimitOfMemory) {
  config::RunConfig config = student(1, 1, 1);
  const std::int64_t alone = largest(resolve(config)), with = largest(taught(config));
  config.train.memory_limit_gb = static_cast<double>(alone + with) / 2e9;
  EXPECT_NO_THROW(resolve(config));
  try {
    taught(config);
    ADD_FAILURE() << "needs less without its teacher";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("train.memory_limit_gb must hold"), std::string::npos) << error.what();
  }
  config.train.memory_limit_gb = static_cast<double>(with + 1) / 1e9;
  EXPECT_NO_THROW(taught(config));
  // Layers are recomputed until the teacher has room.
  config.train.recompute = "full";
  config.train.recompute_layers = kFitLayers;
  const auto kept = [&](const ResolvedRun& run) {
    const auto again = layers_again(run.config.train, run.shape, run.parts[0], false);
    return std::ranges::count(again, false);
  };
  EXPECT_EQ(kept(resolve(config)), 4);
  config.train.memory_limit_gb = static_cast<double>(with - 1) / 1e9;
  EXPECT_EQ(kept(resolve(config)), 4);
  EXPECT_LT(kept(taught(config)), 4);
}

Hardware dgx_h100() {
  const auto path = std::filesystem::path(tests_folder()).parent_path() / "configs/hardware/dgx-h100.toml";
  return parse_hardware(read_file(path, 1 << 20), path.string());
}

TEST(Teacher, IsCountedByTheSearchOfALayout) {
  config::RunConfig config = student(1, 1, 1);
  config.parallel.world_size = 2;
  const auto found = [&](double capacity, const Facts& facts) {
    return search_layouts(config, dgx_h100(), capacity, facts, 1000, 1 << 20, 1);
  };
  const LayoutSearch alone = found(1e9, {}), with = found(1e9, {.teacher = teacher()});
  ASSERT_FALSE(alone.layouts.empty() || with.layouts.empty());
  std::int64_t least = alone.layouts[0].held_bytes(), least_with = with.layouts[0].held_bytes();
  for (const FoundLayout& each : alone.layouts) least = std::min(least, each.held_bytes());
  for (const FoundLayout& each : with.layouts) {
    EXPECT_GT(each.memory.teacher, 0);
    least_with = std::min(least_with, each.held_bytes());
  }
  ASSERT_LT(least, least_with);
  const double between = static_cast<double>(least + least_with) / 2;
  EXPECT_FALSE(found(between, {}).layouts.empty());
  EXPECT_TRUE(found(between, {.teacher = teacher()}).layouts.empty());
}

TEST(Teacher, ThatCannotTeachIsRefusedWithTheRules) {
  config::RunConfig config = student(1, 1, 1);
  config.model.vocab_size = 99;
  EXPECT_THROW(taught(config), ConfigError);
  config.distill.teacher = "";
  EXPECT_FALSE(taught(config).teacher.has_value());
}

}  // namespace
}  // namespace megatron::plan
