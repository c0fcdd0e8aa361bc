#include "megatron/plan/parameters/counted.h"

#include <gtest/gtest.h>

#include "megatron/plan/rules.h"
#include "megatron/plan/stages.h"

namespace megatron::plan {
namespace {

struct Spread {
  int tp = 1, pp = 1, groups = 6;
  bool untied = false;
};

ResolvedRun run_of(const Spread& spread) {
  config::RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 24;
  config.model.num_attention_heads = 6;
  config.model.num_query_groups = spread.groups;
  config.model.vocab_size = 61;
  config.model.make_vocab_size_divisible_by = 2;
  config.model.untie_embeddings_and_output_weights = spread.untied;
  config.data.seq_length = 8;
  config.parallel.tp = spread.tp;
  config.parallel.pp = spread.pp;
  config.parallel.world_size = spread.tp * spread.pp;
  config.train.global_batch_size = 4;
  return resolve(config);
}

// Elements that the ranks count together.
std::int64_t counted(const Spread& spread, bool with_padding) {
  const ResolvedRun run = run_of(spread);
  std::int64_t total = 0;
  for (int stage = 0; stage < spread.pp; ++stage)
    for (int rank = 0; rank < spread.tp; ++rank)
      for (const ParameterSpec& spec :
           model_parameters(run.shape, spread.tp, rank, parts_of_rank(run.parts, run.placement, stage)))
        for (const Range& range :
             with_padding ? counted_ranges(spec, rank == 0) : counted_ranges(spec, rank == 0, run.shape.vocab)) {
          EXPECT_LE(range.end, spec.local_size());
          total += range.size();
        }
  return total;
}

// GPT-2's parameters by hand: word and position embeddings, per layer two norms, attention with its keys' and values'
// groups, an MLP of four times the width, and the last norm.
std::int64_t by_hand(const Spread& spread, std::int64_t rows) {
  const std::int64_t h = 24, kv = h / 6 * spread.groups;
  const std::int64_t layer = 4 * h + (h + 1) * (h + 2 * kv) + (h + 1) * h + (h + 1) * 4 * h + (4 * h + 1) * h;
  return rows * h * (spread.untied ? 2 : 1) + 8 * h + 4 * layer + 2 * h;
}

TEST(CountedRanges, CoverEveryElementOfTheModelOnceInEveryLayout) {
  for (const int tp : {1, 2, 3, 6})
    for (const int pp : {1, 2, 4})
      for (const int groups : {6, 3, 1})
        for (const bool untied : {false, true}) {
          if (groups % tp != 0 && tp % groups != 0) continue;
          const Spread spread{tp, pp, groups, untied};
          SCOPED_TRACE(::testing::Message() << "tp " << tp << ", pp " << pp << ", groups " << groups << untied);
          const std::int64_t padded = tp % 3 == 0 ? 66 : 62;
          EXPECT_EQ(counted(spread, /*with_padding=*/true), by_hand(spread, padded));
          EXPECT_EQ(counted(spread, /*with_padding=*/false), by_hand(spread, 61));
        }
}

}  // namespace
}  // namespace megatron::plan
