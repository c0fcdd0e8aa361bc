#include "megatron/plan/cost/cost_model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "megatron/base/error.h"
#include "megatron/plan/cost/counts.h"
#include "tests/plan/load_hardware.h"
#include "tests/plan/small_gpt.h"
#include "tests/testing/folders.h"

namespace megatron::plan {
namespace {

using ::testing::HasSubstr;

/// A machine on which nothing takes time but products, at their peak of 10^12 operations a second.
Hardware products_alone() {
  Hardware hardware;
  hardware.name = "test";
  hardware.ranks_per_node = 16;
  hardware.compute.bf16_tflops = hardware.compute.fp16_tflops = 1;
  hardware.memory.bandwidth_gb_s = hardware.node.bandwidth_gb_s = hardware.cluster.bandwidth_gb_s = 1e12;
  hardware.software.whole_square = true;
  return hardware;
}

constexpr double kStream = 2 * 32 * 64 * 2;  ///< bytes of its residual stream

StepCost cost_of(const config::RunConfig& config, const Hardware& hardware) {
  return step_cost(resolve(config), hardware);
}

TEST(ProductTime, IsThatOfItsArithmeticAtTheShareThatItsShapeReaches) {
  Hardware hardware = products_alone();
  hardware.compute.product_efficiency = 0.5;
  hardware.compute.product_half_size = 100;
  const double operations = 2.0 * 3 * 100 * 300 * 900, rate = 1e12 * 0.5 * (1 / 2.0) * (3 / 4.0) * (9 / 10.0);
  EXPECT_DOUBLE_EQ(product_s(hardware, "bf16", {3, 100, 300, 900}), operations / rate);
  EXPECT_EQ(product_s(hardware, "bf16", {0, 100, 300, 900}), 0);
}

TEST(ProductTime, IsThatOfItsBytesWhereTheyTakeLonger) {
  Hardware hardware = products_alone();
  hardware.memory = {.bandwidth_gb_s = 1, .efficiency = 0.5};
  EXPECT_DOUBLE_EQ(product_s(hardware, "bf16", {1, 1, 300, 900}), 2 * (300.0 + 900 + 300 * 900) / 0.5e9);
}

TEST(ProductTime, NeedsAPeakOfTheType) {
  try {
    product_s(products_alone(), "fp64", {1, 2, 3, 4});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("fp64"));
    EXPECT_THAT(error.what(), HasSubstr("fix:  --train.dtype bf16, or fp64_tflops in its [compute]"));
  }
}

/// Seconds of an all-gather by pieces that really go around: each rank passes on what came last.
double seconds_around(int ranks, double bytes, double rate, double latency) {
  std::vector<std::set<int>> has(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) has[static_cast<std::size_t>(rank)].insert(rank);
  double seconds = 0;
  const auto complete = [&] {
    return std::all_of(has.begin(), has.end(), [&](const auto& own) { return std::ssize(own) == ranks; });
  };
  for (int step = 0; !complete(); ++step, seconds += bytes / ranks / rate + latency)
    for (int rank = 0; rank < ranks; ++rank)
      has[static_cast<std::size_t>((rank + 1) % ranks)].insert(((rank - step) % ranks + ranks) % ranks);
  return seconds;
}

TEST(RingTime, IsThatOfPiecesWhichGoAroundTheRing) {
  Hardware hardware = products_alone();
  hardware.node = {.bandwidth_gb_s = 100, .efficiency = 0.5, .latency_us = 7};
  hardware.cluster = {.bandwidth_gb_s = 80, .efficiency = 0.25, .latency_us = 11};
  for (const int ranks : {1, 2, 3, 8, 64}) {
    const double within = seconds_around(ranks, 3e6, 50e9, 7e-6);
    EXPECT_NEAR(ring_pass_s(hardware, {.ranks = ranks}, 3e6), within, 1e-12 * within) << ranks;
    EXPECT_NEAR(all_reduce_s(hardware, {.ranks = ranks}, 3e6), 2 * within, 1e-12 * within) << ranks;
    const double between = seconds_around(ranks, 3e6, 20e9 / 4, 11e-6);  // four rings share a node's adapters
    EXPECT_NEAR(ring_pass_s(hardware, {.ranks = ranks, .nodes = 2, .sharing = 4}, 3e6), between, 1e-12 * between);
  }
  hardware.node.bandwidth_gb_s = 1;  // a ring that leaves nodes goes through them too
  EXPECT_NEAR(ring_pass_s(hardware, {.ranks = 2, .nodes = 2}, 1e9), 1e9 / 2 / 0.5e9 + 11e-6, 1e-12);
}

TEST(SpanOfAGroup, CountsNodesAndTheGroupsThatShareThem) {
  for (const int tp : {1, 2, 8})
    for (const int dp : {1, 4, 16})
      for (const int pp : {1, 2, 4})
        for (const int per_node : {1, 4, 16})
          for (const Axis axis : {Axis::Tp, Axis::Dp, Axis::Pp}) {
            const RankGrid grid(tp, 1, dp, pp, tp * dp * pp);
            std::set<int> nodes;
            for (const int rank : grid.peers(0, axis)) nodes.insert(rank / per_node);
            int touching = 0;
            for (const std::vector<int>& group : grid.groups({axis}))
              touching += std::any_of(group.begin(), group.end(), [&](int rank) { return rank < per_node; });
            const Span expected{.ranks = grid.size(axis),
                                .nodes = static_cast<int>(nodes.size()),
                                .sharing = nodes.size() > 1 ? touching : 1};
            EXPECT_EQ(span_of(grid, grid.peers(0, axis), per_node), expected)
                << tp << ' ' << dp << ' ' << pp << ' ' << per_node;
          }
}

TEST(MeanOfLargest, IsThatOfNormalDeviates) {
  EXPECT_EQ(mean_of_largest(1), 0);
  EXPECT_NEAR(mean_of_largest(2), 1 / std::sqrt(M_PI), 1e-12);
  EXPECT_NEAR(mean_of_largest(3), 1.5 / std::sqrt(M_PI), 1e-12);
  EXPECT_NEAR(mean_of_largest(10), 1.538752730835, 1e-9);  // tables of order statistics
}

TEST(StepCost, OfProductsAloneIsTheirArithmetic) {
  // Narayanan et al. 2021: 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)) with recomputation of layers.
  config::RunConfig config = small_gpt(1, 1, 1, 3);
  config.train.recompute = "full";
  const double h = 64, s = 32, l = 4, batch = 6, v = 256;
  const double flops = 96 * batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
  Hardware hardware = products_alone();
  hardware.software.score_forward_passes = 1;  // scores are kept, which takes no time here
  const StepCost cost = cost_of(config, hardware);
  EXPECT_NEAR(cost.computed_flops, flops, 1e-12 * flops);
  EXPECT_NEAR(cost.step_s, flops / 1e12, 1e-6 * cost.step_s);
  EXPECT_NEAR(cost.rank_tflops, 1, 1e-6);
  const double model = training_flops(resolve(config).shape, 6, 32);
  EXPECT_NEAR(cost.utilization, model / flops, 1e-6);

  config.train.recompute = "none";
  Hardware causal = products_alone();
  causal.software.whole_square = false;
  EXPECT_NEAR(cost_of(config, causal).computed_flops, model, 1e-12 * model);
  // Scores that are not kept are products once more: two operations for half of s s h.
  EXPECT_NEAR(cost_of(config, causal).step_s, (model + batch * l * s * s * h) / 1e12, 1e-6 * model / 1e12);
}

TEST(StepCost, ComputesRouterAndFirstLayersOfExpertsAgainWhereTheMlpIs) {
  for (const std::int64_t shared : {0, 48}) {
    config::RunConfig config = small_gpt(1, 1);
    config.model.add_bias_linear = false;
    config.model.gated_linear_unit = true;
    config.model.num_experts = 8;
    config.model.moe_ffn_hidden_size = 24;
    config.model.moe_shared_expert_intermediate_size = shared;
    config.model.moe_shared_expert_gate = shared > 0;
    config.train.recompute = "selective";
    const auto matrices_with = [&](const std::vector<std::string>& modules) {
      config.train.recompute_modules = modules;
      return cost_of(config, products_alone()).parts.matrices;
    };
    const double again = matrices_with({"core_attn", "mlp"}) - matrices_with({"core_attn"});
    // 64 tokens: a logit of each expert, both halves of two experts, of the shared one, its gate.
    const double token = 2.0 * 64 * (8 + 2 * 2 * 24 + 2.0 * static_cast<double>(shared) + (shared > 0 ? 1 : 0));
    EXPECT_NEAR(again, 4 * 64 * token / 1e12, 1e-9 * again) << shared;
  }
}

TEST(StepCost, SplitsProductsOverTensorParallelRanks) {
  const StepCost one = cost_of(small_gpt(1, 1), products_alone()), four = cost_of(small_gpt(4, 1), products_alone());
  EXPECT_NEAR(four.step_s, one.step_s / 4, 1e-6 * one.step_s);
  EXPECT_DOUBLE_EQ(four.computed_flops, one.computed_flops);
}

TEST(StepCost, SharesSequencesAndSendsTheirKeysAndValues) {
  Hardware causal = products_alone();
  causal.software.whole_square = false;
  const StepCost one = cost_of(small_gpt(1, 1), causal);
  config::RunConfig config = small_gpt(1, 1);
  config.parallel.cp = config.parallel.world_size = 4;
  config.parallel.cp_comm_type = "allgather";
  const StepCost four = cost_of(config, causal);
  EXPECT_NEAR(four.step_s, one.step_s / 4, 1e-6 * one.step_s);
  EXPECT_NEAR(four.computed_flops, one.computed_flops, 1e-9 * one.computed_flops);
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  // Of a quarter of the tokens keys and values to three others, forward; twice as much backward, in four layers.
  EXPECT_NEAR(cost_of(config, hardware).parts.tensor, 4 * 3 * (2 * kStream / 4 * 3) / 1e9, 1e-12);
  config.parallel.cp_comm_type = "a2a";  // queries and outputs too, each element once: of four quarters three leave
  EXPECT_NEAR(cost_of(config, hardware).parts.tensor, 4 * 3 * (4 * kStream / 4 * 3 / 4) / 1e9, 1e-12);
  // Keys and values to three others each way, their gradients in float32 to four: less what attention hides.
  config.parallel.cp_comm_type = "p2p";
  const double sent = 4 * (2 + 2 * 4.0 / 3) * (2 * kStream / 4 * 3) / 1e9;
  EXPECT_LT(cost_of(config, hardware).parts.tensor, sent);
  EXPECT_GT(cost_of(config, hardware).parts.tensor, 0.9 * sent) << "these links are slow";
}

TEST(StepCost, HidesAllButOneMessageOfARingBesideAttention) {
  config::RunConfig config = small_gpt(1, 1);
  config.parallel.cp = config.parallel.world_size = 4;
  config.parallel.cp_comm_type = "p2p";
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1e5;  // fast
  const double message = 2 * kStream / 4 / 1e14;
  // Forward three of keys and values, backward three of them and four of their gradients, of twice the bytes.
  EXPECT_NEAR(cost_of(config, hardware).parts.tensor, 4 * (3 + 3 + 4 * 2) * message / 4, 1e-3 * message);
}

TEST(StepCost, ComputesAttentionOfSharedSequencesInThePiecesOfTheirWay) {
  Hardware hardware = products_alone();
  hardware.compute.product_half_size = 16;  // a head's features, too
  config::RunConfig config = small_gpt(1, 1);
  const auto attention = [&](int cp, const char* way) {
    config.parallel.cp = config.parallel.world_size = cp;
    config.parallel.cp_comm_type = way;
    return cost_of(config, hardware).parts.attention;
  };
  const auto slower = [](double pieces) { return (32 / pieces + 16) / (32 / pieces); };  // of one dimension so divided
  const double one = attention(1, "auto"), unit = one / slower(1) / slower(1);
  EXPECT_NEAR(attention(4, "a2a"), one / 4, 1e-9 * one);
  // Of 8 pieces the queries of each meet the keys of those up to their own: of 64 pairs, 1 + 2 + … + 8.
  const double met = 36.0 / 64;
  EXPECT_NEAR(attention(4, "allgather"), met * unit * slower(8) * slower(1) / 4, 1e-9 * one);
  EXPECT_NEAR(attention(4, "p2p"), met * unit * slower(8) * slower(8) / 4, 1e-9 * one);
  // An encoder's all meet.
  config.model.architecture = "bert";
  EXPECT_NEAR(attention(1, "auto"), one, 1e-9 * one);
  EXPECT_NEAR(attention(4, "a2a"), one / 4, 1e-9 * one);
  EXPECT_NEAR(attention(4, "allgather"), unit * slower(8) * slower(1) / 4, 1e-9 * one);
  EXPECT_NEAR(attention(4, "p2p"), unit * slower(8) * slower(8) / 4, 1e-9 * one);
}

TEST(StepCost, ComputesAttentionInOneKernelAtItsOwnRates) {
  Hardware hardware = products_alone();
  const config::RunConfig config = small_gpt(1, 1);
  const double plain = cost_of(config, hardware).parts.attention;  // at the peak: 2 products forward, 5 backward
  hardware.compute.attention_forward_efficiency = 0.5;
  EXPECT_NEAR(cost_of(config, hardware).parts.attention, plain * (2 / 0.5 + 5) / 7, 1e-9 * plain);
  hardware.compute.attention_backward_efficiency = 0.25;
  EXPECT_NEAR(cost_of(config, hardware).parts.attention, plain * (2 / 0.5 + 5 / 0.25) / 7, 1e-9 * plain);
  hardware.compute.product_half_size = 1000;  // of products alone
  EXPECT_NEAR(cost_of(config, hardware).parts.attention, plain * (2 / 0.5 + 5 / 0.25) / 7, 1e-9 * plain);
}

TEST(StepCost, HasFourAllReducesALayerAndTwoMore) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  const double stream = 2 * 3 / 4.0 * kStream / 1e9, per_token = 2 * 3 / 4.0 * 4 * 64 / 1e9;
  EXPECT_NEAR(cost_of(small_gpt(4, 1), hardware).parts.tensor, (4 * 4 + 2) * stream + 3 * per_token, 1e-15);
  config::RunConfig config = small_gpt(4, 1);
  config.train.recompute = "full";
  EXPECT_NEAR(cost_of(config, hardware).parts.tensor, (6 * 4 + 2) * stream + 3 * per_token, 1e-15);
  config.train.recompute = "none";
  config.parallel.sp = true;  // the same bytes; inputs of both products are gathered again
  EXPECT_NEAR(cost_of(config, hardware).parts.tensor, (4 * 4 + 2 + 4) * stream + 3 * per_token, 1e-15);
}

TEST(StepCost, ReducesGradientsOnceAStep) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  const auto parameters = static_cast<double>(parameter_count(resolve(small_gpt(1, 8)).shape));
  config::RunConfig config = small_gpt(1, 8, 1, 2);
  EXPECT_NEAR(cost_of(config, hardware).parts.data, 2 * 7 / 8.0 * 4 * parameters / 1e9, 1e-6);
  config.optimizer.grad_dtype = "bf16";
  EXPECT_NEAR(cost_of(config, hardware).parts.data, 2 * 7 / 8.0 * 2 * parameters / 1e9, 1e-6);
  config.optimizer.use_distributed_optimizer = true;  // half of that, and the parameters gathered
  config.optimizer.overlap_param_gather = false;
  EXPECT_NEAR(cost_of(config, hardware).parts.data, 7 / 8.0 * (2 + 2) * parameters / 1e9, 1e-6);
}

TEST(StepCost, ReducesGradientsOfExpertsBetweenTheRanksThatHoldThem) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  config::RunConfig config = small_gpt(1, 4);
  config.model.add_bias_linear = false;
  config.model.num_experts = 8;
  config.model.moe_ffn_hidden_size = 32;
  const double experts = 4 * 8 * 2 * 64 * 32,
               dense = static_cast<double>(parameter_count(resolve(config).shape)) - experts;
  for (const int ep : {1, 2, 4}) {
    config.parallel.ep = ep;
    const double copies = 4.0 / ep;  // of an expert
    const double sent = 4 * (3 / 4.0 * dense + (copies - 1) / copies * experts / ep) / 1e9;
    config.optimizer.use_distributed_optimizer = false;
    EXPECT_NEAR(cost_of(config, hardware).parts.data, 2 * sent, 1e-6) << ep;
    config.optimizer.use_distributed_optimizer = true;  // reduced once, and half as many bytes gathered
    config.optimizer.overlap_param_gather = false;
    EXPECT_NEAR(cost_of(config, hardware).parts.data, 1.5 * sent, 3e-6) << ep;
    config.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
    config.optimizer.bucket_size = 1;  // every layer by itself: nothing is held whole
    const double stage3 = cost_of(config, hardware).parts.data;
    config.optimizer.data_parallel_sharding_strategy = "optim";
    config.optimizer.bucket_size = 0;
    // Gathered forward and backward, but for units that are still there; of experts that nobody shares nothing.
    EXPECT_GT(stage3, 1.4 * sent) << ep;
    EXPECT_LT(stage3, 2 * sent + 3e-6) << ep;
  }
}

// Of experts that are whole on each of two tensor-parallel ranks: products of full width with the tokens of both, no
// sum behind them but that of the shared expert, and each rank's own tokens to the other's experts and back.
TEST(StepCost, SendsEachRanksTokensToWholeExperts) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  config::RunConfig config = small_gpt(2, 1);
  config.model.add_bias_linear = false;
  config.model.num_experts = 4;
  config.model.moe_ffn_hidden_size = 32;
  config.parallel.sp = true;
  for (const std::int64_t shared : {0, 32}) {
    config.model.moe_shared_expert_intermediate_size = shared;
    config.parallel.ep = 1;
    config.parallel.etp = 0;
    const double matrices = cost_of(config, hardware).parts.matrices;
    config.parallel.ep = 2;
    config.parallel.etp = 1;
    const StepParts parts = cost_of(config, hardware).parts;
    EXPECT_NEAR(parts.matrices, matrices, 1e-9 * matrices) << shared;
    // Forward attention's sum, half of 64 copies there and back, logits; backward the sum with a gather, three
    // messages.
    const double sums = shared > 0 ? 2 : 1, logits = 64 * 4 * 4 / 2.0;
    const double layer = sums * (1 + 1 + 0.5) * kStream + (2 + 3) * kStream / 2 + logits;
    const double ends = 2 * kStream + 3 * 4 * 64;  // embedding and output
    EXPECT_NEAR(parts.tensor, (4 * layer + ends) / 1e9, 1e-12) << shared;
  }
}

// Without sequence parallelism both ranks have all tokens: they send none, and add up what their experts give, as
// slices of experts do. Experts on ranks of other samples get tokens from these.
TEST(StepCost, SendsNoTokensToExpertsOfRanksThatHaveThem) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  config::RunConfig config = small_gpt(2, 1);
  config.model.add_bias_linear = false;
  config.model.num_experts = 4;
  config.model.moe_ffn_hidden_size = 32;
  const StepParts split = cost_of(config, hardware).parts;
  config.parallel.etp = 1;
  for (const int ep : {1, 2}) {
    config.parallel.ep = ep;
    const StepParts whole = cost_of(config, hardware).parts;
    EXPECT_NEAR(whole.tensor, split.tensor, 1e-12) << ep;
    EXPECT_NEAR(whole.matrices, split.matrices, 1e-9 * split.matrices) << ep;
  }
  config.parallel.ep = 4;
  config.parallel.world_size = 4;
  config.train.global_batch_size = 4;
  EXPECT_GT(cost_of(config, hardware).parts.tensor, 1.1 * split.tensor);
}

TEST(MicrobatchCost, IsAStepWithoutItsEnd) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 1;
  hardware.memory.bandwidth_gb_s = 10;
  hardware.software.optimizer_bytes = 30;
  hardware.software.stream_forward_passes = 3;
  config::RunConfig config = small_gpt(2, 2);
  config.train.recompute = "full";
  const ResolvedRun run = resolve(config);
  const StepParts parts = step_cost(run, hardware).parts;
  const MicrobatchCost cost = microbatch_cost(run, hardware);
  EXPECT_NEAR(cost.forward.sum() + cost.backward.sum(), parts.sum() - parts.data - parts.optimizer - parts.waiting,
              1e-9 * parts.sum());
  EXPECT_NEAR(cost.forward.matrices + cost.backward.matrices, parts.matrices, 1e-9 * parts.matrices);
  EXPECT_GT(cost.backward.sum(), cost.forward.sum());
}

TEST(StepCost, UpdatesItsShareOfTheParameters) {
  Hardware hardware = products_alone();
  hardware.memory.bandwidth_gb_s = 100;
  hardware.software.optimizer_bytes = 30;
  config::RunConfig config = small_gpt(1, 4);
  const auto parameters = static_cast<double>(parameter_count(resolve(config).shape));
  const double whole = cost_of(config, hardware).parts.optimizer;
  EXPECT_NEAR(whole, 30 * parameters / 100e9, 1e-3 * whole);
  config.optimizer.use_distributed_optimizer = true;
  EXPECT_NEAR(cost_of(config, hardware).parts.optimizer, whole / 4, 1e-2 * whole);
}

TEST(StepCost, HidesReductionBesideBackwardButItsLastBucket) {
  Hardware hardware = products_alone();
  hardware.node.bandwidth_gb_s = 100;
  config::RunConfig config = small_gpt(1, 4);
  const double whole = cost_of(config, hardware).parts.data;
  config.optimizer.overlap_grad_reduce = true;
  config.optimizer.bucket_size = 20000;
  const ResolvedRun run = resolve(config);
  const StepCost hidden = step_cost(run, hardware);
  const double backward = 2.0 / 3 * hidden.parts.matrices;
  ASSERT_LT(whole, backward);
  EXPECT_GT(hidden.parts.data, 0);
  EXPECT_LT(hidden.parts.data, 0.2 * whole);
  hardware.software.overlap_slowdown = 0.5;
  EXPECT_NEAR(step_cost(run, hardware).parts.data, hidden.parts.data + (whole - hidden.parts.data) / 2, 1e-6 * whole);
  hardware.software.overlap_slowdown = 0;
  hardware.node.bandwidth_gb_s = 0.01;  // much longer than backward: nearly all shows
  EXPECT_GT(step_cost(run, hardware).parts.data, 0.9e4 * whole);
}

TEST(StepCost, OfAPipelineHasItsBubble) {
  // 1F1B of equal stages: p - 1 of m + p - 1 times of a microbatch. Embedding and output cost next to nothing.
  config::RunConfig config = small_gpt(1, 1, 4, 6);
  config.model.vocab_size = 1;
  config.model.make_vocab_size_divisible_by = 1;
  config.model.hidden_size = 512;
  config.model.num_attention_heads = 8;
  const StepCost cost = cost_of(config, products_alone());
  const double computing = cost.step_s - cost.parts.pipeline;
  EXPECT_NEAR(cost.parts.pipeline, computing * 3 / 6, 0.01 * computing);

  Hardware slow = products_alone();
  slow.node.bandwidth_gb_s = 1e-3;
  EXPECT_GT(cost_of(config, slow).parts.pipeline, 2 * cost.parts.pipeline);
}

TEST(StepCost, WaitsForTheSlowestRank) {
  Hardware hardware = products_alone();
  hardware.software.speed_spread = 0.1;
  const StepCost one = cost_of(small_gpt(1, 1), hardware), eight = cost_of(small_gpt(1, 8), hardware);
  EXPECT_EQ(one.parts.waiting, 0);
  EXPECT_NEAR(eight.parts.waiting, 0.1 * mean_of_largest(8) * (eight.step_s - eight.parts.waiting), 1e-12);
}

Hardware file(const std::string& name) {
  return load_hardware(tests_folder() + "/../configs/hardware/" + name + ".toml");
}

TEST(StepCost, IsTheSumOfItsPartsAndFallsWithEveryRate) {
  config::RunConfig config = small_gpt(2, 4, 2, 4);
  config.parallel.sp = true;
  config.train.recompute = "selective";
  config.optimizer.use_distributed_optimizer = true;
  const ResolvedRun run = resolve(config);
  Hardware hardware = file("dgx-h100");
  hardware.ranks_per_node = 4;  // all levels take part
  const StepCost cost = step_cost(run, hardware);
  double sum = 0;
  for (const auto& [name, seconds] : cost.parts.named()) {
    EXPECT_GT(seconds, 0) << name;
    sum += seconds;
  }
  EXPECT_NEAR(cost.step_s, sum, 1e-12 * sum);
  const auto faster = [&](auto&& change) {
    Hardware better = hardware;
    change(better);
    return step_cost(run, better).step_s;
  };
  EXPECT_LT(faster([](Hardware& h) { h.compute.bf16_tflops *= 2, h.memory.bandwidth_gb_s *= 2; }), cost.step_s);
  EXPECT_LT(faster([](Hardware& h) { h.memory.bandwidth_gb_s *= 2; }), cost.step_s);
  EXPECT_LT(faster([](Hardware& h) { h.node.bandwidth_gb_s *= 2; }), cost.step_s);
  EXPECT_LT(faster([](Hardware& h) { h.cluster.bandwidth_gb_s *= 2; }), cost.step_s);
  EXPECT_LT(faster([](Hardware& h) { h.node.latency_us /= 2; }), cost.step_s);
  EXPECT_LT(faster([](Hardware& h) { h.cluster.latency_us /= 2; }), cost.step_s);
  EXPECT_LT(faster([](Hardware& h) { h.software.launch_us /= 2; }), cost.step_s);
}

constexpr const char* kFile = R"(ranks_per_node = 8
[compute]
bf16_tflops = 100
[memory]
capacity_gb = 80
bandwidth_gb_s = 1000
[node]
bandwidth_gb_s = 100
[cluster]
bandwidth_gb_s = 50
)";

TEST(HardwareFile, NeedsWhatHasNoDefaultAndNoMore) {
  const Hardware hardware = parse_hardware(kFile, "mine.toml");
  EXPECT_EQ(hardware.name, "mine.toml");
  EXPECT_EQ(hardware.compute.bf16_tflops, 100);
  EXPECT_THROW(parse_hardware("", "empty.toml"), ConfigError);
}

TEST(HardwareFile, IsRefusedForWhatNoMachineHas) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"bf16_tflops = 100", "bf16_tflops = -1"},
      {"bf16_tflops = 100", "bf16_tflops = nan"},
      {"bf16_tflops = 100", "bf16_tflops = 1e300"},
      {"bf16_tflops = 100", "bf16_tflops = \"fast\""},
      {"bf16_tflops = 100", "bf16_tflop = 100"},
      {"bf16_tflops = 100", "bf16_tflops = 100\nfp8_tflops = -1"},
      {"bf16_tflops = 100", "fp8_tflops = 100"},
      {"bf16_tflops = 100", "bf16_tflops = 100\ncapability = 900"},
      {"bandwidth_gb_s = 1000", "bandwidth_gb_s = 0"},
      {"capacity_gb = 80\n", ""},
      {"bandwidth_gb_s = 100\n", "bandwidth_gb_s = 100\nefficiency = 1.5\n"},
      {"bandwidth_gb_s = 50", "bandwidth_gb_s = inf"},
      {"ranks_per_node = 8", "ranks_per_node = 0"},
      {"ranks_per_node = 8", "device = \"gpu\""},
      {"ranks_per_node = 8", "processor = \"amx2\""},
      {"ranks_per_node = 8", "ranks_per_node = 9223372036854775807"},
      {"ranks_per_node = 8", "[software]\nspeed_spread = 2"},
      {"[cluster]\nbandwidth_gb_s = 50", ""},
      {"[cluster]", "[cluster"}};
  for (const auto& [right, change] : wrong) {
    std::string text = kFile;
    ASSERT_NE(text.find(right), std::string::npos) << right;
    text.replace(text.find(right), right.size(), change);
    try {
      parse_hardware(text, "bad.toml");
      ADD_FAILURE() << change;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("bad.toml")) << change;
      EXPECT_THAT(error.what(), HasSubstr("got:")) << change;
    }
  }
}

TEST(HardwareFile, IsToldAllThatIsWrongAtOnce) {
  try {
    parse_hardware("[memory]\nefficiency = 7\n", "bad.toml");
    FAIL();
  } catch (const ConfigError& error) {
    for (const char* key : {"compute.bf16_tflops", "memory.capacity_gb", "memory.bandwidth_gb_s", "memory.efficiency",
                            "node.bandwidth_gb_s", "cluster.bandwidth_gb_s"})
      EXPECT_THAT(error.what(), HasSubstr(key));
    EXPECT_THAT(error.what(), HasSubstr("fix:  efficiency = 0.8"));
  }
}

// What is shown has to be a value that is taken, which the default is not.
TEST(HardwareFile, IsToldANumberThatIsTakenInPlaceOfOneThatIsNone) {
  for (const char* line : {"capacity_gb = 80", "bandwidth_gb_s = 1000", "bandwidth_gb_s = 50"}) {
    std::string text = kFile;
    const std::string key = std::string(line).substr(0, std::string_view(line).find(' '));
    text.replace(text.find(line), std::string_view(line).size(), key + " = nan");
    try {
      parse_hardware(text, "bad.toml");
      ADD_FAILURE() << line;
    } catch (const ConfigError& error) {
      const std::string head = "fix:  such as ", message = error.what();
      const std::size_t at = message.find(head);
      ASSERT_NE(at, std::string::npos) << message;
      text.replace(text.find(key + " = nan"), key.size() + 6, message.substr(at + head.size()));
      EXPECT_NO_THROW(parse_hardware(text, "good.toml")) << text;
    }
  }
}

TEST(HardwareFile, SaysWhatItsRanksComputeOn) {
  EXPECT_EQ(parse_hardware(kFile, "mine.toml").device, "");
  EXPECT_EQ(parse_hardware(std::string("device = \"cuda\"\n") + kFile, "mine.toml").device, "cuda");
  for (const char* name : {"dgx2h", "dgx-a100", "dgx-h100", "b200"}) EXPECT_EQ(file(name).device, "cuda") << name;
}

TEST(HardwareFile, OfEachClusterIsThere) {
  for (const char* name : {"dgx2h", "dgx-a100", "dgx-h100", "b200"}) EXPECT_FALSE(file(name).name.empty());
  for (const auto& entry : std::filesystem::directory_iterator(tests_folder() + "/../configs/hardware"))
    EXPECT_GT(peak_flops(load_hardware(entry.path().string()), "fp16"), 1e14) << entry.path();
}

}  // namespace
}  // namespace megatron::plan
