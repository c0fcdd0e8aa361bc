#include "megatron/plan/cost/fit/teacher.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/report.h"

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
ModelShape teacher() {
  config::RunConfig config = student(1, 1, 1);
  config.model.num_layers = 6;
  config.model.hidden_size = 64;
  return resolve(config).shape;
}

TEST(Teacher, IsOnEachRankItsSlicesAndOnTheLastWhatItsLastStageReads) {
  for (const int tp : {1, 2})
    for (const int pp : {1, 2, 4})
      for (const int dp : {1, 2}) {
        SCOPED_TRACE(testing::Message() << "tp " << tp << " pp " << pp << " dp " << dp);
        const ResolvedRun run = resolve(student(tp, pp, dp));
        std::int64_t bytes = 0, numbers = 0;
        for (int rank = 0; rank < pp; ++rank) bytes += teacher_bytes(run, teacher(), rank);
        // The parameters of the whole model; the tied embedding of a pipeline's last stage is a copy.
        for (const ParameterSpec& spec : model_parameters(teacher(), tp, 0)) {
          const bool is_twice = pp > 1 && spec.name == kWordEmbedding;
          numbers += spec.local_size() * (is_twice ? 2 : 1);
        }
        if (pp > 1) numbers += 4 * 2 * 16 * 64;  // microbatches, samples, tokens, width
        EXPECT_EQ(bytes, 4 * numbers);
      }
}

TEST(Teacher, IsARowOfThePlanAndOfItsTotal) {
  const ResolvedRun run = resolve(student(2, 2, 1));
  const nlohmann::json without = report(run)["memory_bytes"], with = report(run, {}, teacher())["memory_bytes"];
  EXPECT_FALSE(without.contains("teacher"));
  for (int rank = 0; rank < 4; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_EQ(with["teacher"][at], teacher_bytes(run, teacher(), rank / 2)) << rank;
    EXPECT_EQ(with["total"][at].get<std::int64_t>(),
              without["total"][at].get<std::int64_t>() + with["teacher"][at].get<std::int64_t>())
        << rank;
  }
  EXPECT_NE(report_text(run, {}, teacher()).find("\n  teacher "), std::string::npos);
  EXPECT_NE(report_text(run).find("not counted: only training reads such a folder"), std::string::npos);
}

}  // namespace
}  // namespace megatron::plan
