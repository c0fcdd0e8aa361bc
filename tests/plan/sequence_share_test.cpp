#include "megatron/plan/ranks/sequence_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/plan/report.h"
#include "megatron/plan/rules.h"
#include "tests/plan/refusal.h"

namespace megatron::plan {
namespace {

using ::testing::HasSubstr;

TEST(SequenceShare, GivesEachPositionToOneRankAndEachRankEqualWork) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (const std::int64_t chunk : {1, 3, 8}) {
      const std::int64_t length = 2 * ranks * chunk;
      std::set<std::int64_t> all;
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t own = 0, seen = 0;  // keys that its queries see
        for (const Positions& piece : SequenceShare{ranks, rank}.pieces(length))
          for (std::int64_t p = piece.begin; p < piece.end; ++p, ++own) {
            all.insert(p);
            seen += p + 1;
          }
        EXPECT_EQ(own, length / ranks);
        EXPECT_EQ(seen * ranks, length * (length + 1) / 2);
      }
      EXPECT_EQ(static_cast<std::int64_t>(all.size()), length);
    }
}

// Chunks of Megatron-Core's get_batch_on_this_cp_rank: val.view(.., 2 * cp_size, ..)[cp_rank, 2 * cp_size - cp_rank -
// 1].
TEST(SequenceShare, HasTheChunksThatMegatronCoreTakes) {
  EXPECT_EQ(text_of(SequenceShare{1, 0}.pieces(16)), "0-15");
  EXPECT_EQ(text_of(SequenceShare{2, 0}.pieces(16)), "0-3 12-15");
  EXPECT_EQ(text_of(SequenceShare{2, 1}.pieces(16)), "4-7 8-11");
  EXPECT_EQ(text_of(SequenceShare{4, 1}.pieces(16)), "2-3 12-13");
  EXPECT_THROW((SequenceShare{3, 0}.pieces(16)), std::logic_error);
}

TEST(SequenceShare, SaysWhereEachChunkLies) {
  for (int ranks = 2; ranks <= 6; ++ranks) {
    const auto places = SequenceShare{ranks, 0}.places();
    ASSERT_EQ(places.size(), static_cast<std::size_t>(2 * ranks));
    for (std::size_t chunk = 0; chunk < places.size(); ++chunk) {
      const auto pieces = SequenceShare{ranks, places[chunk].rank}.pieces(2 * ranks);
      EXPECT_EQ(pieces[static_cast<std::size_t>(places[chunk].piece)].begin, static_cast<std::int64_t>(chunk));
    }
  }
}

config::RunConfig shared() {
  config::RunConfig config;
  config.model.vocab_size = 1000;
  config.model.num_layers = 2;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 8;
  config.data.seq_length = 64;
  config.parallel.world_size = 8;
  config.parallel.cp = 4;
  return config;
}

TEST(SharedSequences, AreRefusedWhereTheyDoNotFit) {
  using config::RunConfig;
  EXPECT_EQ(refusal_of(shared(), [](RunConfig&) {}), "no error");
  EXPECT_EQ(refusal_of(shared(), [](RunConfig& c) { c.parallel.cp_comm_type = "a2a"; }), "no error");
  EXPECT_EQ(refusal_of(shared(), [](RunConfig& c) { c.model.architecture = "bert"; }), "no error");
  EXPECT_EQ(refusal_of(shared(),
                       [](RunConfig& c) {
                         c.model.num_experts = 4;
                         c.model.add_bias_linear = false;
                         c.model.moe_expert_capacity_factor = 1;
                       }),
            "no error");
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> all = {
      {"data.seq_length must divide by 2 x parallel.cp", [](RunConfig& c) { c.data.seq_length = 60; }},
      {"by parallel.cp x parallel.tp",
       [](RunConfig& c) {
         c.parallel.tp = 2;
         c.parallel.cp = 3;
         c.parallel.world_size = 6;
         c.parallel.sp = true;
         c.data.seq_length = 64;
       }},
      {"data.decoder_seq_length must divide by 2 x parallel.cp",
       [](RunConfig& c) {
         c.model.architecture = "t5";
         c.model.position_embedding_type = "relative";
         c.data.decoder_seq_length = 60;
       }},
      {"not for the head of a task",
       [](RunConfig& c) {
         c.model.head = "classes";
         c.model.num_classes = 3;
       }},
      {"parallel.ep must divide the data-parallel size x parallel.cp",
       [](RunConfig& c) {
         c.model.num_experts = 3;
         c.model.add_bias_linear = false;
         c.parallel.ep = 3;
       }},
      {"tp*cp*dp*pp must equal the world size", [](RunConfig& c) { c.parallel.world_size = 6; }},
      {"parallel.cp_comm_type a2a divides heads",
       [](RunConfig& c) {
         c.parallel.cp_comm_type = "a2a";
         c.model.num_query_groups = 2;
       }},
      {"parallel.cp_comm_type", [](RunConfig& c) { c.parallel.cp_comm_type = "ring"; }},
      {"parallel.cp must be from 1", [](RunConfig& c) { c.parallel.cp = 0; }}};
  for (const auto& [rule, change] : all) EXPECT_THAT(refusal_of(shared(), change), HasSubstr(rule));
}

TEST(SharedSequences, LeaveTheGlobalBatchToTheOtherRanks) {
  config::RunConfig config = shared();
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8;
  const ResolvedRun run = resolve(config);
  EXPECT_EQ(run.grid.sample_shares(), 2);
  EXPECT_EQ(run.microbatches_per_step, 2);
  EXPECT_EQ(rank_name(run.grid, 5), "rank 5 (tp 0, cp 1, dp 1, pp 0)");
  EXPECT_EQ(sizes_text(run.grid), "tp 1 x cp 4 x pp 1 x dp 2");
}

TEST(SharedSequences, DivideWhatLayersKeepAndCompute) {
  config::RunConfig config = shared();
  const ResolvedRun run = resolve(config);
  config.parallel.cp = 1;
  config.parallel.world_size = 2;
  const ResolvedRun whole = resolve(config);
  EXPECT_EQ(4 * layer_activation_bytes(run.config, run.shape.layer(0)),
            layer_activation_bytes(whole.config, whole.shape.layer(0)));
  EXPECT_DOUBLE_EQ(4 * stage_costs(run.config, run.shape, run.parts).backward_weight[0],
                   stage_costs(whole.config, whole.shape, whole.parts).backward_weight[0]);
}

TEST(SharedSequences, AreExchangedAsThePlanChooses) {
  const auto chosen = [](const std::function<void(config::RunConfig&)>& change) -> std::string {
    config::RunConfig config = shared();
    change(config);
    const ResolvedRun run = resolve(config);
    return name_of(sequence_exchange(run.config, run.shape));
  };
  EXPECT_EQ(chosen([](auto&) {}), "a2a");
  EXPECT_EQ(chosen([](auto& c) { c.model.num_query_groups = 2; }), "allgather");
  EXPECT_EQ(chosen([](auto& c) { c.parallel.cp_comm_type = "p2p"; }), "p2p");
  // 30 heads that 16 ranks do not divide, with keys and values of their own: all of them are more than a layer keeps.
  EXPECT_EQ(chosen([](auto& c) {
              c.model.num_attention_heads = 30;
              c.model.hidden_size = 960;
              c.model.ffn_hidden_size = 64;
              c.parallel.cp = c.parallel.world_size = 16;
            }),
            "p2p");
  const ResolvedRun run = resolve(shared());
  const LayerSpec layer = run.shape.layer(0);
  // 16 tokens of 64 features on each rank: q, k, v and the output, of which a quarter stays; or k and v, to three.
  EXPECT_EQ(exchanged_elements(run.config, layer, SequenceExchange::AllToAll), 16 * 4 * 64 * 3 / 4);
  EXPECT_EQ(exchanged_elements(run.config, layer, SequenceExchange::Ring), 16 * 2 * 64 * 3);
}

TEST(SharedSequences, OfAT5SendAndKeepThoseOfBothStacks) {
  config::RunConfig config = shared();
  config.model.architecture = "t5";
  config.model.position_embedding_type = "relative";
  config.data.decoder_seq_length = 32;
  const ResolvedRun run = resolve(config);
  config.parallel.cp = 1;
  config.parallel.world_size = 2;
  const ResolvedRun whole = resolve(config);
  const StageSpec part = whole_model(run.shape.num_layers);
  EXPECT_EQ(4 * stage_activation_bytes(run.config, run.shape, part),
            stage_activation_bytes(whole.config, whole.shape, part));
  // 16 tokens of the encoder and 8 of the decoder on each rank, of 64 features. A layer of the decoder has two
  // attentions, of its own keys and the encoder's.
  const LayerSpec encoder = run.shape.layer(0), decoder = run.shape.layer(run.shape.encoder_layers);
  EXPECT_EQ(exchanged_elements(run.config, encoder, SequenceExchange::Ring), 16 * 2 * 64 * 3);
  EXPECT_EQ(exchanged_elements(run.config, decoder, SequenceExchange::Ring), (8 + 16) * 2 * 64 * 3);
  EXPECT_EQ(exchanged_elements(run.config, decoder, SequenceExchange::AllToAll), (6 * 8 + 2 * 16) * 64 * 3 / 4);
  const MovedBytes moved = moved_bytes(run.config, decoder, SequenceExchange::AllGather);
  const double q = 8 * 64, own = 2 * q, across = 2 * own;  // fp32 or its kind: of elements
  EXPECT_NEAR(moved.forward, ((2 + 2 * 4) * (own + across) + 4 * q) * static_cast<double>(element_bytes(run.config)),
              1e-9 * moved.forward);
}

config::RunConfig shared_by(int cp, const char* way, const char* dtype = "fp32") {
  config::RunConfig config = shared();
  config.parallel.cp = config.parallel.world_size = cp;
  config.parallel.cp_comm_type = way;
  config.train.dtype = dtype;
  return config;
}

/// What a ring's rank 0 reads and writes, walked through: bytes of queries' width, and of keys and values'.
MovedBytes walked_ring(int ranks, double rows, double queries, double keys, double element, bool causal) {
  const double wide = std::max(element, 4.0), piece = rows / 2;
  MovedBytes moved;
  const auto copy = [&](double& sum, double numbers) { sum += 2 * numbers * element; };
  copy(moved.forward, rows * keys);         // put together
  copy(moved.backward, rows * keys);        // again
  moved.forward += rows * queries * wide;   // zeros
  moved.backward += rows * queries * wide;  // of the gradient
  for (int owner = 0; owner < ranks; ++owner) {
    moved.backward += rows * keys * wide;                     // zeros
    if (owner > 0) moved.backward += 3 * rows * keys * wide;  // a sum that has come is added
    for (const Positions& own : SequenceShare{ranks, 0}.pieces(2 * ranks))
      for (const Positions& seen : SequenceShare{ranks, owner}.pieces(2 * ranks)) {
        if (causal && seen.begin > own.begin) continue;
        // The sum so far times a factor, what came times one, and both added.
        moved.forward += piece * queries * (2 * wide + (element + wide) + 3 * wide);
        moved.backward += piece * (queries + keys) * (2 * wide + element);
      }
  }
  moved.forward += rows * queries * (wide + element);            // in the model's type
  moved.backward += rows * (queries + keys) * (wide + element);  // copied
  return moved;
}

TEST(SharedSequences, MoveWhatEachWayCopies) {
  for (const auto& [dtype, causal] : {std::pair{"bf16", true}, {"fp64", true}, {"bf16", false}})
    for (const int cp : {2, 4, 8}) {
      config::RunConfig config = shared_by(cp, "p2p", dtype);
      if (!causal) config.model.architecture = "bert";
      const LayerSpec layer = resolve(config).shape.layer(0);
      const SelfAttention& attention = layer.attention();
      const double element = std::string(dtype) == "bf16" ? 2 : 8;
      const double rows = static_cast<double>(config.train.micro_batch_size * config.data.seq_length) / cp,
                   queries = static_cast<double>(attention.query_rows()),
                   keys = 2 * static_cast<double>(attention.key_rows());
      const MovedBytes want = walked_ring(cp, rows, queries, keys, element, causal),
                       got = moved_bytes(config, layer, SequenceExchange::Ring);
      EXPECT_NEAR(got.forward, want.forward, 1e-9 * want.forward) << cp;
      EXPECT_NEAR(got.backward, want.backward, 1e-9 * want.backward) << cp;
      const double q = rows * queries, k = rows * keys;
      const auto expect = [&](SequenceExchange way, double forward, double backward) {  // elements
        const MovedBytes moved = moved_bytes(config, layer, way);
        EXPECT_NEAR(moved.forward, forward * element, 1e-9 * moved.forward) << cp;
        EXPECT_NEAR(moved.backward, backward * element, 1e-9 * moved.backward) << cp;
      };
      // A copy reads and writes. All three are put together, by heads, by position; outputs by rank, by token.
      // Backward the same, outputs and their gradient go as queries went and are taken apart, gradients come back by
      // rank, by token, and are copied.
      const double there = 2 * 3 * (q + k);
      expect(SequenceExchange::AllToAll, there + 2 * 2 * q, there + 2 * (3 * 2 + 2) * q + there);
      // Keys and values of the rank put together, those of all by position; the outputs of both pieces put together.
      // Backward the former again; gradients zeroed, the second piece's added, which ends at half of the sequence on
      // the last rank where attention is causal, then by rank, and the rank's own copied.
      const double whole = cp * k, gathered = 2 * k + 2 * whole, second = causal ? whole / 2 : whole;
      expect(SequenceExchange::AllGather, gathered + 2 * q, gathered + whole + 3 * second + 2 * whole + 2 * k);
    }
}

TEST(SharedSequences, HoldWholeKeysAndValuesWhereTheyAreGathered) {
  for (const int cp : {2, 4}) {
    const ResolvedRun run = resolve(shared_by(cp, "allgather"));
    const std::int64_t keys =
        run.config.train.micro_batch_size * run.config.data.seq_length * run.shape.groups() * run.shape.head() * 4;
    EXPECT_EQ(gathered_bytes(run.config, run.shape), 3 * 2 * keys) << "whatever cp is";
    for (const char* way : {"a2a", "p2p"}) {
      const ResolvedRun other = resolve(shared_by(cp, way));
      EXPECT_EQ(gathered_bytes(other.config, other.shape), 0);
    }
  }
  const ResolvedRun alone = resolve(shared_by(1, "allgather"));
  EXPECT_EQ(gathered_bytes(alone.config, alone.shape), 0);
}

TEST(SharedSequences, AreShownInAPlan) {
  const ResolvedRun run = resolve(shared());
  const nlohmann::json all = report(run);
  EXPECT_EQ(all["layout"]["cp"], 4);
  EXPECT_EQ(all["groups"]["sequence"], nlohmann::json::parse("[[0,1,2,3],[4,5,6,7]]"));
  EXPECT_EQ(all["groups"]["data"], nlohmann::json::parse("[[0,4],[1,5],[2,6],[3,7]]"));
  EXPECT_EQ(all["sequence"]["positions"][1], nlohmann::json::parse("[[8,16],[48,56]]"));
  const std::string text = report_text(run);
  EXPECT_THAT(text, HasSubstr("ranks: 8 = tp 1 x cp 4 x dp 2 x pp 1"));
  EXPECT_THAT(text,
              HasSubstr("tokens of a sample: 16 on each rank, attention by a2a\n  cp rank 0            0-7 56-63"));
}

}  // namespace
}  // namespace megatron::plan
