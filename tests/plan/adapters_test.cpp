#include "megatron/plan/parameters/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

using ::testing::HasSubstr;

config::RunConfig llama(std::int64_t groups, int tp) {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 8;
  config.model.num_query_groups = groups;
  config.model.ffn_hidden_size = 48;
  config.model.vocab_size = 64;
  config.model.normalization = "RMSNorm";
  config.model.gated_linear_unit = true;
  config.model.add_bias_linear = false;
  config.model.position_embedding_type = "rope";
  config.parallel.tp = config.parallel.world_size = tp;
  config.train.global_batch_size = 4;
  config.lora.rank = 4;
  config.lora.alpha = 12;
  return config;
}

// What PEFT makes of a LlamaForCausalLM: of a module with `in` inputs and `out` outputs A [r, in] and B [out, r].
TEST(Adapters, HaveTheShapesThatPeftGivesThem) {
  const ResolvedRun run = resolve(llama(2, 1));
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, run.parts)) shapes[spec.name] = spec.shape;
  EXPECT_EQ(shapes.size(), 2u * 7 * 2);
  const auto expect = [&](const std::string& module, std::int64_t in, std::int64_t out) {
    EXPECT_EQ(shapes["decoder.layers.1." + module + ".lora_A.weight"], (std::vector<std::int64_t>{4, in})) << module;
    EXPECT_EQ(shapes["decoder.layers.1." + module + ".lora_B.weight"], (std::vector<std::int64_t>{out, 4})) << module;
  };
  expect("self_attention.linear_qkv.q_proj", 32, 32);
  expect("self_attention.linear_qkv.k_proj", 32, 8);
  expect("self_attention.linear_qkv.v_proj", 32, 8);
  expect("self_attention.linear_proj.o_proj", 32, 32);
  expect("mlp.linear_fc1.gate_proj", 32, 48);
  expect("mlp.linear_fc1.up_proj", 32, 48);
  expect("mlp.linear_fc2.down_proj", 48, 32);
}

config::RunConfig with_latents(std::int64_t q_rank, int tp) {
  config::RunConfig config = llama(0, tp);
  config.model.multi_latent_attention = config.model.qk_layernorm = config.model.rotary_interleaved = true;
  config.model.q_lora_rank = q_rank;
  config.model.kv_lora_rank = 12;
  config.model.qk_head_dim = 6;
  config.model.qk_pos_emb_head_dim = 4;
  config.model.v_head_dim = 8;
  return config;
}

// The shapes that PEFT gives adapters of DeepseekV3Attention: heads of 6 + 4 features of a query and 8 of a value.
TEST(Adapters, OfLatentsHaveTheShapesThatPeftGivesThem) {
  for (const std::int64_t q_rank : {0, 10}) {
    const ResolvedRun run = resolve(with_latents(q_rank, 1));
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, run.parts)) shapes[spec.name] = spec.shape;
    EXPECT_EQ(shapes.size(), 2u * 2 * (q_rank > 0 ? 8 : 7));
    const auto expect = [&](const std::string& module, std::int64_t in, std::int64_t out) {
      const std::string layer = "decoder.layers.1.self_attention." + module;
      EXPECT_EQ(shapes[layer + ".lora_A.weight"], (std::vector<std::int64_t>{4, in})) << module;
      EXPECT_EQ(shapes[layer + ".lora_B.weight"], (std::vector<std::int64_t>{out, 4})) << module;
    };
    if (q_rank > 0) {
      expect("linear_q_down_proj.q_a_proj", 32, 10);
      expect("linear_q_up_proj.q_b_proj", 10, 8 * 10);
    } else {
      expect("linear_q_proj.q_proj", 32, 8 * 10);
    }
    expect("linear_kv_down_proj.kv_a_proj_with_mqa", 32, 12 + 4);
    expect("linear_kv_up_proj.kv_b_proj", 12, 8 * 14);
    expect("linear_proj.o_proj", 8 * 8, 32);
  }
}

config::RunConfig with_experts(int tp) {
  config::RunConfig config = llama(2, tp);
  config.model.num_experts = 4;
  config.model.moe_router_topk = 2;
  config.model.moe_ffn_hidden_size = 24;
  config.model.moe_shared_expert_intermediate_size = 16;
  config.lora.targets = {"gate_proj", "down_proj"};
  return config;
}

// Those of PEFT where each expert is three modules, of transformers before 5.
TEST(Adapters, OfExpertsHaveTheShapesThatPeftGivesThem) {
  const ResolvedRun run = resolve(with_experts(1));
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, run.parts)) {
    shapes[spec.name] = spec.shape;
    EXPECT_EQ(spec.of_expert, spec.name.find(".local_experts.") != std::string::npos) << spec.name;
  }
  EXPECT_EQ(shapes.size(), 2u * 2 * 2 * (4 + 1)) << "none of routers";
  using Sizes = std::vector<std::int64_t>;
  const std::string layer = "decoder.layers.1.mlp.", third = layer + "experts.local_experts.3.linear_";
  EXPECT_EQ(shapes[third + "fc1.gate_proj.lora_A.weight"], (Sizes{4, 32}));
  EXPECT_EQ(shapes[third + "fc1.gate_proj.lora_B.weight"], (Sizes{24, 4}));
  EXPECT_EQ(shapes[third + "fc2.down_proj.lora_A.weight"], (Sizes{4, 24}));
  EXPECT_EQ(shapes[layer + "shared_experts.linear_fc2.down_proj.lora_A.weight"], (Sizes{4, 16}));
}

// Each by the ranks of one ep rank, in the slices of its etp ranks; what these all have gets a part of its gradient.
TEST(Adapters, OfExpertsAreWhereTheirExpertsAre) {
  const ModelShape shape = resolve(with_experts(2)).shape;
  for (const int etp : {0, 1, 2, 4}) {
    const int ep = 2, slices = etp > 0 ? etp : 2;
    std::map<std::string, std::int64_t> held;
    for (int rank = 0; rank < ep; ++rank)
      for (int slice = 0; slice < slices; ++slice)
        for (const ParameterSpec& spec :
             adapter_parameters(shape, 2, etp > 0 ? 0 : slice, {whole_model(shape.num_layers)},
                                {.ep = ep, .rank = rank, .etp = etp, .etp_rank = etp > 0 ? slice : 0})) {
          if (!spec.of_expert) continue;
          held[spec.name] += spec.local_size();
          EXPECT_EQ(spec.heads_partial, spec.replicated()) << spec.name;
        }
    EXPECT_EQ(held.size(), 2u * 4 * 4);
    for (const ParameterSpec& spec : adapter_parameters(shape, 1, 0, {whole_model(shape.num_layers)})) {
      if (!spec.of_expert) continue;
      const bool row = spec.name.find("fc2") != std::string::npos, a = spec.name.find("lora_A") != std::string::npos;
      EXPECT_EQ(held[spec.name], spec.size() * (row == a ? 1 : slices)) << spec.name;
    }
  }
}

TEST(Adapters, OfExpertsTakeTheOperationsOfTheirTokens) {
  const ModelShape shape = resolve(with_experts(1)).shape;
  // r (in + out) of gate and down, of two experts of a token and the shared one.
  EXPECT_DOUBLE_EQ(adapter_flops(shape, 0, 128, 0).own, 2.0 * 128 * 4 * (2 * 2 * (32 + 24) + 2 * (32 + 16)));
}

config::RunConfig t5(int tp) {
  config::RunConfig config;
  config.model.architecture = "t5";
  config.model.num_layers = 1;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.kv_channels = 6;
  config.model.ffn_hidden_size = 48;
  config.model.vocab_size = 64;
  config.model.normalization = "RMSNorm";
  config.model.add_bias_linear = false;
  config.model.position_embedding_type = "relative";
  config.data.decoder_seq_length = 8;
  config.parallel.tp = config.parallel.world_size = tp;
  config.lora.rank = 4;
  return config;
}

// Of each T5Attention q, k, v and o, of a T5DenseActDense wi and wo.
TEST(Adapters, OfAT5HaveTheShapesThatPeftGivesThem) {
  const ResolvedRun run = resolve(t5(1));
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, run.parts)) shapes[spec.name] = spec.shape;
  EXPECT_EQ(shapes.size(), 2u * ((4 + 2) + (4 + 4 + 2)));
  using Sizes = std::vector<std::int64_t>;
  const std::string across = "decoder.layers.0.cross_attention.linear_";
  EXPECT_EQ(shapes[across + "q.q_proj.lora_B.weight"], (Sizes{24, 4}));
  EXPECT_EQ(shapes[across + "kv.v_proj.lora_B.weight"], (Sizes{24, 4}));
  EXPECT_EQ(shapes[across + "proj.o_proj.lora_A.weight"], (Sizes{4, 24}));
  EXPECT_EQ(shapes["encoder.layers.0.mlp.linear_fc1.up_proj.lora_A.weight"], (Sizes{4, 32}));
  // Keys and values of the decoder's cross attention are of as many tokens as the encoder has.
  const double self = 4 * (32 + 24), mlp = 2 * (32 + 48), queries = 2 * (32 + 24), keys = 2 * (32 + 24);
  EXPECT_DOUBLE_EQ(adapter_flops(run.shape, 1, 8, 100).own, 2.0 * 4 * (8 * (self + mlp + queries) + 100 * keys));
}

TEST(Adapters, HaveAMagnitudePerOutputWithDora) {
  config::RunConfig config = llama(2, 1);
  config.lora.dora = true;
  config.lora.targets = {"k_proj", "down_proj"};
  const ResolvedRun run = resolve(config);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, run.parts)) {
    if (spec.shape.size() > 1) continue;
    names.push_back(spec.name);
    EXPECT_EQ(spec.shape[0], spec.name.find("k_proj") != std::string::npos ? 8 : 32) << spec.name;
    EXPECT_FALSE(spec.weight_decay) << spec.name;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("decoder.layers.0.self_attention.linear_qkv.k_proj.lora_magnitude_vector",
                                            "decoder.layers.0.mlp.linear_fc2.down_proj.lora_magnitude_vector",
                                            "decoder.layers.1.self_attention.linear_qkv.k_proj.lora_magnitude_vector",
                                            "decoder.layers.1.mlp.linear_fc2.down_proj.lora_magnitude_vector"));
}

TEST(Adapters, AreHeldByTheRanksOnceOrInCopiesThatAreCounted) {
  for (const std::int64_t groups : {-1, 0, 1, 2, 4, 8})  // -1: of a T5, 0: of latents
    for (const int tp : {1, 2, 4, 8}) {
      if (groups < 0 && tp > 4) continue;
      config::RunConfig config = groups < 0 ? t5(tp) : groups > 0 ? llama(groups, tp) : with_latents(10, tp);
      config.lora.dora = true;
      const ResolvedRun run = resolve(config);
      std::map<std::string, std::map<std::int64_t, int>> held;  // by name: how often each index is somebody's own
      for (int rank = 0; rank < tp; ++rank)
        for (const ParameterSpec& spec : trained_parameters(run.shape, tp, rank, run.parts)) {
          if (spec.replicated()) {
            EXPECT_TRUE(spec.heads_partial) << spec.name;
            continue;
          }
          EXPECT_FALSE(spec.heads_partial) << spec.name;
          EXPECT_FALSE(spec.sequence_partial) << spec.name;
          for (const ShardSlice& piece : spec.pieces)
            for (std::int64_t i = 0; i < piece.length; ++i)
              if (piece.copy == 0) ++held[spec.name][piece.offset + i];
        }
      for (const ParameterSpec& spec : trained_parameters(run.shape, 1, 0, run.parts)) {
        if (!held.contains(spec.name)) continue;
        const bool row =
            spec.name.find("linear_proj") != std::string::npos || spec.name.find("fc2") != std::string::npos;
        EXPECT_EQ(std::ssize(held[spec.name]), spec.shape[row ? 1 : 0]) << spec.name;
        for (const auto& [index, times] : held[spec.name]) EXPECT_EQ(times, 1) << spec.name << " " << index;
      }
    }
}

TEST(Adapters, PartsOfALayerOnARankAreItsOutputsOnce) {
  for (const std::int64_t groups : {-1, 1, 2, 8})  // -1: of a T5
    for (const int tp : {1, 2, 4}) {
      const ModelShape shape = resolve(groups < 0 ? t5(tp) : llama(groups, tp)).shape;
      const LayerSpec layer = shape.layer(shape.num_layers - 1);
      for (const Branch& branch : layer.branches)
        for (const Linear& linear : branch.linears(layer.hidden)) {
          std::map<std::int64_t, int> rows;
          std::int64_t all = 0;
          for (const ProjectionSlice& part : projection_slices(layer, linear, tp)) {
            all = part.groups * part.group_outputs;
            for (std::int64_t group = 0; group < part.groups; ++group)
              for (std::int64_t i = 0; i < part.length; ++i) ++rows[group * part.group_outputs + part.offset + i];
          }
          EXPECT_EQ(std::ssize(rows), all) << linear.name;
          for (const auto& [row, times] : rows) EXPECT_EQ(times, 1) << linear.name << " " << row;
        }
    }
}

TEST(Adapters, CountAlphaOverTheRankOrItsRoot) {
  config::LoraConfig config;
  EXPECT_FALSE(lora_of(config).has_value());
  config.rank = 16;
  config.alpha = 8;
  EXPECT_DOUBLE_EQ(lora_of(config)->scale(), 0.5);
  config.rslora = true;
  EXPECT_DOUBLE_EQ(lora_of(config)->scale(), 2);
}

MemoryPlan memory_of(const ResolvedRun& run) {
  const auto timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                           stage_costs(run.config, run.shape, run.parts));
  return memory_plan(run, 0, 0, timeline.peak_bytes[0]);
}

TEST(Adapters, AloneHaveGradientsAndStateInThePlannedMemory) {
  config::RunConfig config = llama(8, 1);
  const MemoryPlan adapted = memory_of(resolve(config));
  config.lora.rank = 0;
  const ResolvedRun plain = resolve(config);
  // r (in + out) of seven modules and two layers: 4 times 32 + 32, 3 times 32 + 48; all multiples of 16 elements.
  const std::int64_t elements = 2 * 4 * (4 * 64 + 3 * 80);
  EXPECT_EQ(adapted.gradients, 4 * elements);
  EXPECT_EQ(adapted.optimizer_state, 8 * elements);
  EXPECT_EQ(adapted.parameters, memory_of(plain).parameters + 4 * elements);
  config.lora.rank = 4;
  config.lora.dora = true;  // a number per output, of all 4 * 32 + 2 * 48 + 32 multiples of 16
  const MemoryPlan with_magnitudes = memory_of(resolve(config));
  EXPECT_EQ(with_magnitudes.gradients, 4 * (elements + 2 * 256));
  EXPECT_EQ(with_magnitudes.optimizer_state, 8 * (elements + 2 * 256));
  EXPECT_EQ(with_magnitudes.parameters, adapted.parameters + 4 * 2 * 256);
  config.lora.dora = false;
  config.train.dtype = "bf16";
  EXPECT_EQ(memory_of(resolve(config)).optimizer_state, 12 * elements) << "with float32 masters";
}

TEST(Adapters, TakeTwoThirdsOfTheMatricesOperations) {
  config::RunConfig config = llama(8, 1);
  const ResolvedRun run = resolve(config);
  const double adapters = 2.0 * 128 * 2 * 4 * (4 * 64 + 3 * 80), attention = 4.0 * 128 * 128 * 0.5 * 32 * 2;
  const double matrices = 2.0 * 128 * (2 * (4 * 32 * 32 + 3 * 32 * 48) + 64 * 32);
  ModelShape shape = run.shape;
  shape.padded_vocab = 64;
  EXPECT_DOUBLE_EQ(training_flops(shape, 1, 128), 2 * matrices + 3 * (adapters + attention));
  shape.lora->dora = true;
  EXPECT_DOUBLE_EQ(training_flops(shape, 1, 128), 2 * matrices + 3 * (adapters + attention));
  shape.lora->dropout = 0.1;  // W x and W drop(x)
  const double dropped = 2.0 * 128 * 2 * (4 * 32 * 32 + 3 * 32 * 48);
  EXPECT_DOUBLE_EQ(training_flops(shape, 1, 128), 2 * (matrices + dropped) + 3 * (adapters + attention));
}

std::string error_after(const std::function<void(config::RunConfig&)>& change) {
  config::RunConfig config = llama(2, 1);
  change(config);
  return broken_rules(config);
}

TEST(AdapterRules, RefuseModelsAndOptimizersWithoutAdapters) {
  EXPECT_EQ(error_after([](auto&) {}), "");
  EXPECT_THAT(error_after([](auto& c) {
                c.model.num_experts = 4;
                c.lora.dora = true;
              }),
              HasSubstr("Experts have no magnitudes"));
  EXPECT_EQ(error_after([](auto& c) {
              c.model.num_experts = 4;
              c.lora.dora = true;
              c.lora.targets = {"q_proj", "o_proj"};
            }),
            "");
  EXPECT_THAT(error_after([](auto& c) { c.optimizer.name = "muon"; }), HasSubstr("muon sees whole weights"));
  EXPECT_THAT(error_after([](auto& c) { c.model.head = "classes", c.model.num_classes = 2; }),
              HasSubstr("lora.rank needs model.head tokens"));
  EXPECT_THAT(error_after([](auto& c) { c.lora.targets = {"q_proj", "fc1"}; }), HasSubstr("lora.targets"));
  EXPECT_THAT(error_after([](auto& c) {
                c.lora.targets = {"gate_proj"};
                c.model.gated_linear_unit = false;
              }),
              HasSubstr("lora.targets must name layers of the model"));
  EXPECT_THAT(error_after([](auto& c) { c.lora.dropout = 1; }), HasSubstr("lora.dropout"));
  EXPECT_THAT(error_after([](auto& c) { c.lora.rank = 0, c.lora.base = "model"; }),
              HasSubstr("lora.base needs lora.rank"));
}

}  // namespace
}  // namespace megatron::plan
