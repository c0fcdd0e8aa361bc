#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/plan/rules.h"
#include "tests/plan/refusal.h"

// Mixtures of experts: which combinations of options are taken, and what each rank holds.
namespace megatron::plan {
namespace {

using config::RunConfig;
using testing::HasSubstr;

RunConfig mixture() {
  RunConfig config;
  config.model.vocab_size = 1000;
  config.model.num_layers = 2;
  config.model.num_experts = 6;
  config.model.moe_ffn_hidden_size = 64;
  config.model.add_bias_linear = false;
  config.parallel.world_size = 4;
  config.parallel.ep = 2;
  return config;
}

TEST(Experts, AreRefusedWhereTheyDoNotFit) {
  EXPECT_EQ(refusal_of(mixture(), [](RunConfig&) {}), "no error");
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> all = {
      {"A shared expert has no biases",
       [](RunConfig& c) {
         c.model.add_bias_linear = true;
         c.model.moe_shared_expert_intermediate_size = 16;
       }},
      {"moe_input_jitter_eps must be from 0 to below 1", [](RunConfig& c) { c.model.moe_input_jitter_eps = 1; }},
      {"need model.gated_linear_unit", [](RunConfig& c) { c.model.glu_linear_offset = 1; }},
      {"activation_func_clamp_value must be from 0", [](RunConfig& c) { c.model.activation_func_clamp_value = -1; }},
      {"moe_router_topk must be at most model.num_experts", [](RunConfig& c) { c.model.moe_router_topk = 7; }},
      {"num_experts must divide by parallel.ep", [](RunConfig& c) { c.parallel.ep = 4; }},
      {"ep must divide the data-parallel size", [](RunConfig& c) { c.parallel.ep = 3; }},
      {"it needs model.num_experts", [](RunConfig& c) { c.model.num_experts = 0; }},
      {"moe_ffn_hidden_size must divide by parallel.tp",
       [](RunConfig& c) {
         c.model.moe_ffn_hidden_size = 63;
         c.parallel.tp = 2;
       }},
      {"model.num_experts is for model.architecture gpt", [](RunConfig& c) { c.model.architecture = "bert"; }},
      {"needs a shared expert", [](RunConfig& c) { c.model.moe_shared_expert_gate = true; }},
      {"needs model.moe_router_score_function softmax",
       [](RunConfig& c) {
         c.model.moe_router_pre_softmax = true;
         c.model.moe_router_score_function = "sigmoid";
       }},
      {"needs model.moe_router_score_function sigmoid",
       [](RunConfig& c) { c.model.moe_router_enable_expert_bias = true; }},
      {"num_groups must divide model.num_experts",
       [](RunConfig& c) {
         c.model.moe_router_num_groups = 4;
         c.model.moe_router_group_topk = 2;
       }},
      {"group_topk must be at least 1", [](RunConfig& c) { c.model.moe_router_num_groups = 3; }},
      {"as many experts as a token passes",
       [](RunConfig& c) {
         c.model.moe_router_num_groups = 3;
         c.model.moe_router_group_topk = 1;
         c.model.moe_router_topk = 3;
       }},
      {"group_topk needs model.moe_router_num_groups", [](RunConfig& c) { c.model.moe_router_group_topk = 1; }},
      {"group_best must be at most the experts of a group",
       [](RunConfig& c) {
         c.model.moe_router_num_groups = 3;
         c.model.moe_router_group_topk = 2;
         c.model.moe_router_group_best = 3;
       }},
      {"some layer must have experts", [](RunConfig& c) { c.model.first_k_dense_replace = 2; }},
      {"some layer must have experts",
       [](RunConfig& c) {
         c.model.first_k_dense_replace = 1;
         c.model.moe_layer_freq = 2;
       }},
      {"first_k_dense_replace must be from 0", [](RunConfig& c) { c.model.first_k_dense_replace = -1; }},
      {"moe_expert_capacity_factor must be from 0", [](RunConfig& c) { c.model.moe_expert_capacity_factor = -1; }},
      {"moe_layer_freq must be from 1", [](RunConfig& c) { c.model.moe_layer_freq = 0; }},
      {"num_experts must be from 0", [](RunConfig& c) { c.model.num_experts = -1; }},
      {"moe_aux_loss_coeff must be from 0", [](RunConfig& c) { c.model.moe_aux_loss_coeff = -1; }}};
  for (const auto& [rule, change] : all) EXPECT_THAT(refusal_of(mixture(), change), HasSubstr(rule));
}

TEST(Experts, AreInAllLayersBehindTheDenseOnes) {
  RunConfig config = mixture();
  config.model.num_layers = 5;
  config.model.first_k_dense_replace = 2;
  EXPECT_EQ(resolve(config).shape.expert_layers(), (std::vector<std::int64_t>{2, 3, 4}));
  config.model.moe_layer_freq = 2;
  EXPECT_EQ(resolve(config).shape.expert_layers(), (std::vector<std::int64_t>{2, 4}));
}

TEST(Experts, AreHeldOnceByTheRanksThatShareThem) {
  const ModelShape shape = resolve(mixture()).shape;
  std::map<std::string, int> holders;
  for (int rank = 0; rank < 3; ++rank)
    for (const ParameterSpec& spec : model_parameters(shape, 1, 0, {whole_model(2)}, {.ep = 3, .rank = rank})) {
      ++holders[spec.name];
      EXPECT_EQ(spec.of_expert, spec.name.find(".local_experts.") != std::string::npos) << spec.name;
    }
  const auto whole = model_parameters(shape, 1, 0);
  EXPECT_EQ(holders.size(), whole.size());
  for (const ParameterSpec& spec : whole) EXPECT_EQ(holders[spec.name], spec.of_expert ? 1 : 3) << spec.name;
}

TEST(Experts, HaveBiasesWhereLinearLayersDo) {
  RunConfig config = mixture();
  config.model.add_bias_linear = config.model.gated_linear_unit = true;
  config.model.softmax_type = "learnable";
  const ModelShape shape = resolve(config).shape;
  std::map<std::string, ParameterSpec> specs;
  for (const ParameterSpec& spec : model_parameters(shape, 2, 1)) specs[spec.name] = spec;
  const std::string layer = "decoder.layers.1.", expert = layer + "mlp.experts.local_experts.5.";
  const auto router = specs.at(layer + "mlp.router.bias"), first = specs.at(expert + "linear_fc1.bias"),
             second = specs.at(expert + "linear_fc2.bias"),
             sinks = specs.at(layer + "self_attention.core_attention.softmax_offset");
  EXPECT_EQ(router.local_shape(), std::vector<std::int64_t>{6});
  EXPECT_TRUE(router.heads_partial && !router.of_expert) << "each rank has the part that goes through its features";
  EXPECT_EQ(first.local_shape(), std::vector<std::int64_t>{64}) << "half of the gates, half of the values";
  EXPECT_TRUE(first.of_expert && second.of_expert);
  EXPECT_EQ(second.local_shape(), std::vector<std::int64_t>{256});
  EXPECT_FALSE(second.sequence_partial || second.heads_partial) << "each rank sees all tokens of the expert";
  EXPECT_EQ(sinks.local_shape(), std::vector<std::int64_t>{2}) << "of the rank's own heads";
  EXPECT_EQ(sinks.begin(), 2);
  EXPECT_FALSE(sinks.weight_decay);
  config.model.linear_bias_in = "attention";
  for (const ParameterSpec& spec : model_parameters(resolve(config).shape, 1, 0))
    EXPECT_FALSE(spec.name.find(".mlp.") != std::string::npos && spec.name.ends_with("bias")) << spec.name;
}

TEST(Experts, HaveBucketsThatTheirOwnRanksDivide) {
  RunConfig config = mixture();
  config.optimizer.use_distributed_optimizer = true;
  const ResolvedRun run = resolve(config);
  const auto specs = model_parameters(run.shape, 1, 0, run.parts, {.ep = 2});
  const BufferLayout layout = rank_layout(run, specs);
  for (const BufferLayout::Bucket& bucket : layout.buckets)
    for (const int parameter : bucket.parameters)
      EXPECT_EQ(specs[static_cast<std::size_t>(parameter)].of_expert, bucket.experts);
  std::map<int, std::int64_t> dense, experts;  // elements by rank
  for (int rank = 0; rank < 4; ++rank) {
    const Owners owners = owners_of(run, rank);
    EXPECT_EQ(owners.dense, (Owner{4, rank}));
    EXPECT_EQ(owners.experts, (Owner{2, rank / 2})) << "ranks 0 and 2 have the same experts";
    const auto own = shards(layout, owners);
    for (std::size_t b = 0; b < own.size(); ++b)
      (layout.buckets[b].experts ? experts : dense)[rank] += own[b].world.size();
    EXPECT_EQ(total_size(own), owned_elements(layout, owners));
  }
  EXPECT_EQ(4 * dense[0] + 2 * experts[0], layout.size);
}

TEST(Experts, AreOfTheSameSizesOnPipelineRanksThatAreSaidToBeAlike) {
  std::int64_t alike = 0, others = 0;
  for (const std::int64_t frequency : {1, 2, 3, 4, 0}) {  // 0: in all layers but the first four
    RunConfig config = mixture();
    config.model.num_layers = 12;
    config.model.first_k_dense_replace = frequency == 0 ? 4 : 0;
    config.model.moe_layer_freq = std::max<std::int64_t>(1, frequency);
    config.model.untie_embeddings_and_output_weights = frequency == 2;
    config.parallel.ep = 1;
    config.parallel.pp = 4;
    config.parallel.vpp = frequency == 4 ? 3 : 1;
    config.train.global_batch_size = 8;
    config.train.micro_batch_size = 1;
    config.optimizer.use_distributed_optimizer = true;
    const ResolvedRun run = resolve(config);
    const auto sizes_of = [&](int rank) {
      std::vector<std::int64_t> sizes;
      for (const auto& spec : model_parameters(run.shape, 1, 0, parts_of_rank(run.parts, run.placement, rank)))
        sizes.push_back(spec.local_size());
      return sizes;
    };
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b) {
        const bool same = same_sizes(run, a, b);
        if (same) {
          EXPECT_EQ(sizes_of(a), sizes_of(b)) << frequency << ": " << a << " and " << b;
        }
        ++(same && a != b ? alike : others);
      }
  }
  EXPECT_GE(alike, 4) << "the inner ranks";
  EXPECT_GT(others, 4 * 4);
}

}  // namespace
}  // namespace megatron::plan
