#include "megatron/plan/cost/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/layer_kinds.h"
#include "megatron/plan/pipeline_plan.h"

namespace megatron::plan {
namespace {

config::RunConfig small() {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 4096;
  config.train.global_batch_size = 8;
  return config;
}

ResolvedRun with(const std::function<void(config::RunConfig&)>& change) {
  config::RunConfig config = small();
  change(config);
  config.parallel.world_size = config.parallel.tp * config.parallel.pp;
  return resolve(config);
}

MemoryPlan memory_of(const ResolvedRun& run, int tp_rank = 0, int pp_rank = 0) {
  const auto timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                           stage_costs(run.config, run.shape, run.parts));
  return memory_plan(run, tp_rank, pp_rank, timeline.peak_bytes[static_cast<std::size_t>(pp_rank)]);
}

TEST(MemoryPlan, SplitsStateOverTensorParallelRanks) {
  const ResolvedRun whole = with([](auto&) {});
  const MemoryPlan one = memory_of(whole);
  EXPECT_EQ(one.parameters, 4 * parameter_count(whole.shape));
  EXPECT_EQ(one.gradients, one.parameters);
  EXPECT_EQ(one.optimizer_state, 2 * one.parameters);
  EXPECT_EQ(one.logits, 4 * 128 * 4096);

  const ResolvedRun split = with([](auto& c) { c.parallel.tp = 2; });
  std::int64_t replicated = 0, sum = 0;
  for (const ParameterSpec& spec : model_parameters(split.shape, 2, 0))
    if (spec.replicated()) replicated += 4 * spec.size();
  for (int rank = 0; rank < 2; ++rank) sum += memory_of(split, rank).parameters;
  EXPECT_EQ(sum, one.parameters + replicated);
  EXPECT_LT(memory_of(split).activations, one.activations);
  EXPECT_EQ(memory_of(split).logits * 2, one.logits);
}

// What a loss of preferences keeps, and one with a teacher, of every token and whole on each rank of tp.
TEST(MemoryPlan, HoldsAllLogitsWhereALossNeedsThem) {
  const auto bytes = [](const char* dtype, bool teacher) {
    const ResolvedRun run = with([&](auto& c) {
      c.train.loss_chunk_tokens = 16;
      c.train.micro_batch_size = 2;
      c.train.dtype = dtype;
      c.parallel.tp = 2;
      if (teacher)
        c.distill.teacher = "a folder";
      else
        c.dpo.beta = 0.1;
    });
    return memory_of(run).logits / (2 * 128 * 4096);
  };
  EXPECT_EQ(bytes("bf16", false), 4);
  EXPECT_EQ(bytes("fp64", false), 8);
  EXPECT_EQ(bytes("bf16", true), 2 * 2);
  EXPECT_EQ(bytes("fp32", true), 2 * 4);
  EXPECT_EQ(bytes("fp16", true), 2 * 2 + 4);
}

// As the output layer computes them: of masked tokens alone, unless these are nearly all.
TEST(MemoryPlan, HoldsLogitsOfMaskedTokensOfABert) {
  const auto logits = [](double share, std::int64_t chunk = 0) {
    const ResolvedRun bert = with([&](auto& c) {
      c.model.architecture = "bert";
      c.data.mask_prob = share;
      c.train.loss_chunk_tokens = chunk;
    });
    return memory_of(bert).logits / (4 * bert.shape.padded_vocab);
  };
  EXPECT_EQ(logits(0.15), 20);  // of 128
  EXPECT_EQ(logits(0.5), 64);
  EXPECT_EQ(logits(0.5, 48), 48);
  EXPECT_EQ(logits(0.9), 128);
  EXPECT_EQ(logits(0), 1);
}

TEST(MemoryPlan, SplitsLayersOverPipelineRanksAndHoldsLogitsOnTheLast) {
  const MemoryPlan one = memory_of(with([](auto&) {}));
  const ResolvedRun run = with([](auto& c) { c.parallel.pp = 4; });
  std::int64_t parameters = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const MemoryPlan memory = memory_of(run, 0, rank);
    parameters += memory.parameters;
    EXPECT_EQ(memory.logits, rank == 3 ? one.logits : 0) << rank;
    // Two layers each, of as many microbatches as are under way: 4, 3, 2, 1. The last also has the output's.
    const std::int64_t layers = 2 * (4 - rank) * layer_activation_bytes(run.config, run.shape.layer(0));
    EXPECT_EQ(memory.activations, layers + (rank == 3 ? 2 * 128 * 256 * 4 : 0)) << rank;
  }
  EXPECT_EQ(parameters, one.parameters + 4 * 4096 * 256);  // the tied embedding twice
}

TEST(MemoryPlan, DividesActivationsByCpAndExpertsByEp) {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 8;
  config.model.vocab_size = 256;
  config.model.add_bias_linear = false;
  config.model.num_experts = 8;
  config.model.moe_ffn_hidden_size = 96;
  config.data.seq_length = 64;
  const auto plan_of = [&](int cp, int ep) {
    config.parallel.cp = cp;
    config.parallel.ep = ep;
    config.parallel.world_size = std::max(cp, ep);
    return largest_memory(resolve(config));
  };
  const MemoryPlan one = plan_of(1, 1);
  const std::int64_t experts = 2 * 8 * 2 * 64 * 96;  // elements; of each 4 bytes, gradients 4, moments 8
  for (const int ranks : {2, 4, 8}) {
    const MemoryPlan sequences = plan_of(ranks, 1), shared = plan_of(1, ranks), both = plan_of(ranks, ranks);
    EXPECT_EQ(sequences.activations * ranks, one.activations);
    EXPECT_EQ(sequences.parameters, one.parameters);
    EXPECT_EQ(one.parameters - shared.parameters, 4 * (experts - experts / ranks));
    EXPECT_EQ(one.gradients - shared.gradients, 4 * (experts - experts / ranks));
    EXPECT_EQ(one.optimizer_state - shared.optimizer_state, 8 * (experts - experts / ranks));
    EXPECT_EQ(shared.activations, one.activations);
    EXPECT_EQ(both.parameters, shared.parameters);
    EXPECT_EQ(both.activations, sequences.activations);
  }
}

TEST(MemoryPlan, DoublesInDoublePrecision) {
  const auto in = [](const char* dtype) { return with([=](auto& c) { c.train.dtype = dtype; }); };
  EXPECT_EQ(memory_of(in("fp64")).total(), 2 * memory_of(in("fp32")).total());
}

TEST(MemoryPlan, CountsTwoPackedCopiesOfEveryMatrixOfLayersForAmxAndDotProducts) {
  const auto packed = [](const char* dtype, const char* kernels, const char* machine, const char* precision = "highest",
                         int tokens = 128, int pp = 1, int experts = 0) {
    const ResolvedRun run = with([&](auto& c) {
      c.train.micro_batch_size = 1;
      c.data.seq_length = tokens;
      c.model.num_experts = experts;
      c.train.dtype = dtype;
      c.train.kernels = kernels;
      c.train.matmul_precision = precision;
      c.parallel.pp = pp;
    });
    const MemoryPlan with_unit = memory_plan(run, 0, pp - 1, 0, machine);
    EXPECT_EQ(with_unit.total() - memory_plan(run, 0, pp - 1, 0).total(),
              kernels == std::string("auto") ? with_unit.packed_weights : 0);
    return with_unit.packed_weights;
  };
  // 8 layers of 12 x 256^2: 4 bytes an element. The loss packs the output layer's while it reads it.
  const std::int64_t layers = 8 * 12 * 256 * 256;
  EXPECT_EQ(packed("bf16", "auto", "amx"), 4 * layers);
  EXPECT_EQ(packed("fp32", "auto", "amx", "high"), 8 * layers);
  EXPECT_EQ(packed("bf16", "amx", ""), 4 * layers);
  EXPECT_EQ(packed("bf16", "auto", "amx", "highest", 128, /*pp=*/2), 2 * layers);
  for (const char* kernels : {"avx512", "reference"}) EXPECT_EQ(packed("bf16", kernels, "amx"), 0);
  EXPECT_EQ(packed("bf16", "auto", "avx512"), 0);
  EXPECT_EQ(packed("bf16", "auto", "avx512_bf16"), 4 * layers);
  EXPECT_EQ(packed("fp32", "auto", "avx512_bf16", "high"), 0) << "three such products are slower than one of float32";
  EXPECT_EQ(packed("fp32", "auto", "amx", "highest", 127), 0) << "such a product is MKL's";
  EXPECT_EQ(packed("fp32", "auto", "avx512"), 0);
  EXPECT_EQ(packed("fp16", "auto", "amx"), 0);
  EXPECT_EQ(packed("bf16", "auto", "amx", "highest", 255), 4 * layers);
  EXPECT_EQ(packed("bf16", "auto", "amx", "highest", 256), 0) << "they are packed while they are read";
  // Of experts few rows may come together. Their router has 4 rows, which are padded to 32 with the attention's
  // matrices.
  EXPECT_EQ(packed("bf16", "auto", "amx", "highest", 256, 1, /*experts=*/4), 4 * 8 * 4 * 8 * 256 * 256);
}

TEST(MemoryPlan, CountsBothOperandsOfTheLargestProductOfFloat32OnAmx) {
  // Forward, and the gradients of the input and of the weight: what is packed are both operands, six bytes an element.
  EXPECT_EQ(packed_operand_bytes(128, 512, 256), 6 * (128 * 512 + 512 * 256));
  EXPECT_EQ(packed_operand_bytes(1024, 256, 512), 6 * (1024 * 256 + 1024 * 512));
  EXPECT_EQ(packed_operand_bytes(128, 257, 256), 6 * (128 * 288 + 288 * 256));
  for (const auto& [tokens, out, in] : {std::tuple{127, 512, 512}, {128, 255, 512}, {128, 512, 255}})
    EXPECT_EQ(packed_operand_bytes(tokens, out, in), 0) << tokens << ' ' << out << ' ' << in;
  EXPECT_EQ(packed_operand_bytes(1 << 20, 50304, 768), 2 * kMostPackedOperandBytes);
  // Of a model of 256 features the MLP's, of the last stage the output layer's, of as many tokens as the loss has at
  // once.
  const auto planned = [](int chunk, int pp, int rank) {
    const ResolvedRun run = with([&](auto& c) {
      c.train.micro_batch_size = 1;
      c.data.seq_length = 512;
      c.train.loss_chunk_tokens = chunk;
      c.parallel.pp = pp;
    });
    const std::int64_t mlp = packed_operand_bytes(512, 4 * 256, 256),
                       output = packed_operand_bytes(chunk, run.shape.padded_vocab, 256);
    EXPECT_EQ(memory_plan(run, 0, rank, 0, "amx").packed_weights, rank == pp - 1 ? std::max(mlp, output) : mlp);
  };
  planned(128, 1, 0);
  planned(512, 1, 0);
  planned(512, 2, 0);
  planned(512, 2, 1);
}

TEST(MemoryPlan, CountsNoPackedCopiesOnAGpuWhateverProcessorPlans) {
  const ResolvedRun gpu = with([](auto& c) {
    c.train.dtype = "bf16";
    c.parallel.device = "cuda";
  });
  for (const char* processor : {"", "amx", "avx512_bf16", "avx2"})
    EXPECT_EQ(memory_plan(gpu, 0, 0, 0, processor).packed_weights, 0) << processor;
}

TEST(MemoryPlan, OfTheRankThatHoldsMostIsThatOfNoOtherRank) {
  const ResolvedRun run = with([](auto& c) {
    c.parallel.tp = 2;
    c.parallel.pp = 4;
  });
  const MemoryPlan largest = largest_memory(run);
  bool found = false;
  for (int pp_rank = 0; pp_rank < 4; ++pp_rank)
    for (int tp_rank = 0; tp_rank < 2; ++tp_rank) {
      const MemoryPlan memory = memory_of(run, tp_rank, pp_rank);
      EXPECT_LE(memory.total(), largest.total());
      found = found || memory.total() == largest.total();
    }
  EXPECT_TRUE(found);
}

TEST(LayerActivationBytes, CountEachTensorThatIsKept) {
  // Width 256, 4 heads, MLP 1024, 128 tokens: two streams, q, k, v, attention's output and logsumexp, MLP, statistics.
  const auto bytes = [](auto change) {
    const ResolvedRun run = with(change);
    return layer_activation_bytes(run.config, run.shape.layer(0));
  };
  EXPECT_EQ(bytes([](auto&) {}), 4 * 128 * (2 * 256 + 3 * 256 + 256 + 4 + 1024 + 4));
  EXPECT_EQ(bytes([](auto& c) { c.train.recompute_gelu = false; }), 4 * 128 * (2 * 256 + 4 * 256 + 4 + 2 * 1024 + 4));
  EXPECT_EQ(bytes([](auto& c) { c.parallel.tp = 2; }), 4 * 128 * (2 * 256 + 4 * 128 + 2 + 512 + 4));
  const auto sequence = [](auto& c) {
    c.parallel.tp = 2;
    c.parallel.sp = true;
  };
  EXPECT_EQ(bytes(sequence), 4 * 128 * (2 * 128 + 4 * 128 + 2 + 512 + 2));
  EXPECT_EQ(bytes([](auto& c) {
              c.train.recompute = "selective";
              c.train.recompute_modules = {"core_attn", "mlp"};
            }),
            4 * 128 * (2 * 256 + 3 * 256 + 4));
}

TEST(LayerActivationBytes, OfLlamasLayersCountGroupsAndBothHalvesOfTheGate) {
  // Width 256, 4 heads in 2 groups of 64, gated MLP 2 x 512, one statistic a norm.
  const auto bytes = [](auto change) {
    const ResolvedRun run = with([&](auto& c) {
      c.model.num_query_groups = 2;
      c.model.normalization = "RMSNorm";
      c.model.gated_linear_unit = true;
      c.model.ffn_hidden_size = 512;
      change(c);
    });
    return layer_activation_bytes(run.config, run.shape.layer(0));
  };
  EXPECT_EQ(bytes([](auto&) {}), 4 * 128 * (2 * 256 + (256 + 2 * 128) + 256 + 4 + 2 * 512 + 2));
  EXPECT_EQ(bytes([](auto& c) { c.train.recompute_gelu = false; }),
            4 * 128 * (2 * 256 + (256 + 2 * 128) + 256 + 4 + 3 * 512 + 2));
  // Four ranks share two keys and values: each has a whole one.
  EXPECT_EQ(bytes([](auto& c) { c.parallel.tp = 4; }), 4 * 128 * (2 * 256 + (64 + 2 * 64) + 64 + 1 + 2 * 128 + 2));
}

TEST(StageActivationBytes, KeepInputsAloneWhereLayersAreRecomputed) {
  const auto bytes = [](const char* method, std::int64_t layers, bool distribute = false, int tp = 1) {
    const ResolvedRun run = with([=](auto& c) {
      c.train.recompute = "full";
      c.train.recompute_method = method;
      c.train.recompute_num_layers = layers;
      c.train.distribute_saved_activations = distribute;
      c.parallel.pp = 2;
      c.parallel.tp = tp;
    });
    return stage_activation_bytes(run.config, run.shape, run.parts[0]);
  };
  const ResolvedRun run = with([](auto&) {});
  const std::int64_t input = 4 * 128 * 256, layer = layer_activation_bytes(run.config, run.shape.layer(0));
  EXPECT_EQ(bytes("uniform", 0), 4 * input);
  EXPECT_EQ(bytes("uniform", 2), 2 * input);
  EXPECT_EQ(bytes("uniform", 3), 2 * input);
  EXPECT_EQ(bytes("uniform", 9), input);
  EXPECT_EQ(bytes("block", 1), input + 3 * layer);
  EXPECT_EQ(bytes("block", 9), 4 * input);
  EXPECT_EQ(bytes("uniform", 1, true, 2), 2 * input);
}

TEST(StageCosts, AddUpToTheArithmeticOfAStep) {
  const ResolvedRun run = with([](auto& c) { c.parallel.pp = 4, c.parallel.vpp = 2; });
  const schedule::Costs costs = stage_costs(run.config, run.shape, run.parts);
  double sum = 0;
  for (std::size_t stage = 0; stage < 8; ++stage)
    sum += costs.forward[stage] + costs.backward_input[stage] + costs.backward_weight[stage];
  // The embedding beside it: 8 rows of 256 floats a token, 16 operations a byte.
  EXPECT_NEAR(sum * 1e12, training_flops(run.shape, 1, 128) + 16.0 * 8 * 128 * 256 * 4, 1e-9 * sum * 1e12);
  EXPECT_GT(costs.forward[7], costs.forward[0]);
  EXPECT_EQ(costs.message_bytes, 0) << "messages take no time";
}

TEST(SplitCosts, CountTheEmbeddingAndWhatIsComputedAgain) {
  const auto costs = [](auto change) {
    const ResolvedRun run = with(change);
    return split_costs(run.config, run.shape, 4);
  };
  const SplitCosts plain = costs([](auto&) {});
  const ModelShape shape = with([](auto&) {}).shape;
  const LayerFlops flops = layer_flops(shape.layer(0), {.sequences = 1, .length = 128});
  ASSERT_EQ(std::ssize(plain.layers), shape.num_layers);
  for (const double layer : plain.layers) EXPECT_NEAR(layer * 1e12, 3 * (flops.matrices + flops.attention), 1);
  EXPECT_NEAR(plain.output * 1e12, 3 * output_flops(shape, 128), 1);
  EXPECT_GT(plain.embedding, 0);
  EXPECT_LT(plain.embedding, plain.layers[0]);
  const SplitCosts again = costs([](auto& c) { c.train.recompute = "full"; });
  EXPECT_NEAR(again.layers[0], plain.layers[0] * 4 / 3, 1e-9 * plain.layers[0]);
  EXPECT_EQ(again.output, plain.output);
  // Two layers a stage, one of them again.
  const SplitCosts half = costs([](auto& c) {
    c.train.recompute = "full";
    c.train.recompute_method = "block";
    c.train.recompute_num_layers = 1;
  });
  EXPECT_NEAR(half.layers[0], plain.layers[0] * 7 / 6, 1e-9 * plain.layers[0]);
  const SplitCosts some = costs([](auto& c) {
    c.train.recompute = "full";
    c.train.recompute_layers = "1-2";
  });
  EXPECT_NEAR(some.layers[0], plain.layers[0], 1e-9 * plain.layers[0]);
  EXPECT_NEAR(some.layers[2], plain.layers[2] * 4 / 3, 1e-9 * plain.layers[2]);
}

TEST(LayerKinds, HoldAndCostTheSame) {
  const auto base = [] {
    config::RunConfig config;
    config.model.num_layers = 6;
    config.model.hidden_size = 64;
    config.model.num_attention_heads = 8;
    config.model.vocab_size = 256;
    config.data.seq_length = 64;
    return config;
  };
  config::RunConfig experts = base(), windows = base(), pair = base();
  experts.model.add_bias_linear = false;
  experts.model.num_experts = 4;
  experts.model.moe_layer_freq = 2;
  experts.model.first_k_dense_replace = 1;
  windows.model.sliding_window = 16;
  windows.model.window_attn_skip_freq = 2;
  pair.model.architecture = "t5";
  std::vector<std::size_t> kinds;
  for (const config::RunConfig& config : {base(), experts, windows, pair}) {
    const ResolvedRun run = resolve(config);
    std::map<std::int64_t, std::int64_t> first;  // layers by kind
    for (std::int64_t l = 0; l < run.shape.num_layers; ++l) {
      const LayerSpec same = run.shape.layer(first.try_emplace(layer_kind(run.shape, l), l).first->second),
                      layer = run.shape.layer(l);
      const LayerTokens tokens{.sequences = 2, .length = 64, .encoder_length = 64};
      const LayerFlops a = layer_flops(same, tokens), b = layer_flops(layer, tokens);
      EXPECT_EQ(a.matrices, b.matrices) << l;
      EXPECT_EQ(a.attention, b.attention) << l;
      EXPECT_EQ(layer_activation_bytes(run.config, same), layer_activation_bytes(run.config, layer)) << l;
    }
    kinds.push_back(first.size());
    EXPECT_EQ(one_layer_kind(run.shape), first.size() == 1);
  }
  EXPECT_THAT(kinds, testing::ElementsAre(1, 2, 6, 12));
}

TEST(SplitCosts, AreThoseOfEachLayer) {
  const auto costs = [](auto change) {
    const ResolvedRun run = with(change);
    return split_costs(run.config, run.shape, 4).layers;
  };
  const auto windows = costs([](auto& c) { c.model.sliding_window = 16, c.model.window_attn_skip_freq = 4; });
  for (std::size_t l = 0; l < windows.size(); ++l)
    EXPECT_EQ(windows[l] == windows[0], l % 4 != 3) << "every fourth layer sees all tokens";
  EXPECT_GT(windows[3], windows[0]);
  const auto stacks = costs([](auto& c) {
    c.model.architecture = "t5";
    c.model.position_embedding_type = "relative";
    c.model.decoder_num_layers = 3;
    c.data.decoder_seq_length = 32;
  });
  ASSERT_EQ(stacks.size(), 11U);
  EXPECT_EQ(stacks[0], stacks[7]);
  EXPECT_EQ(stacks[8], stacks[10]);
  EXPECT_LT(stacks[8], stacks[0]) << "a quarter of the tokens";
}

TEST(MemoryPlan, IsTheTableOfBytesAParameterOnDRanks) {
  struct Row {
    const char *dtype, *gradients, *optimizer, *state;
    double each, shared;
  };
  for (const Row& row : {Row{"fp32", "fp32", "adam", "fp32", 8, 8}, Row{"bf16", "fp32", "adam", "fp32", 6, 12},
                         Row{"fp16", "fp16", "adam", "fp32", 4, 12}, Row{"bf16", "bf16", "adam", "bf16", 4, 8},
                         Row{"fp64", "fp32", "adam", "fp32", 16, 16}, Row{"bf16", "fp32", "lion", "fp32", 6, 8},
                         Row{"fp32", "fp32", "sgd", "fp32", 8, 4}})
    for (const int dp : {1, 2, 3, 8}) {
      config::RunConfig config;
      config.model.vocab_size = 1000;
      config.parallel.world_size = dp;
      config.train.dtype = row.dtype;
      config.optimizer.grad_dtype = row.gradients;
      config.optimizer.state_dtype = row.state;
      config.optimizer.name = row.optimizer;
      config.optimizer.use_distributed_optimizer = true;
      const ResolvedRun run = resolve(config);
      const MemoryPlan memory = memory_plan(run, 0, 0, 0);
      const double bytes = static_cast<double>(memory.parameters + memory.gradients + memory.optimizer_state) /
                           static_cast<double>(parameter_count(run.shape));
      EXPECT_NEAR(bytes, row.each + row.shared / dp, 0.02 * bytes) << row.dtype << " dp " << dp;
    }
}

TEST(StageActivationBytes, OfPartialMicrobatchesKeepWhatOthersRecompute) {
  const auto bytes = [](const char* method, std::int64_t layers, bool partial) {
    const ResolvedRun run = with([=](auto& c) {
      c.train.recompute = "full";
      c.train.recompute_method = method;
      c.train.recompute_num_layers = layers;
      c.train.recompute_partial_microbatches = 1;
      c.parallel.pp = 2;
    });
    return stage_activation_bytes(run.config, run.shape, run.parts[0], partial);
  };
  const ResolvedRun run = with([](auto&) {});
  const std::int64_t input = 4 * 128 * 256, layer = layer_activation_bytes(run.config, run.shape.layer(0));
  EXPECT_EQ(bytes("uniform", 2, false), 2 * input);
  EXPECT_EQ(bytes("uniform", 2, true), 4 * layer);
  EXPECT_EQ(bytes("block", 1, false), 4 * input);
  EXPECT_EQ(bytes("block", 1, true), input + 3 * layer);
}

TEST(StageActivationBytes, OfPartialMicrobatchesKeepTheModulesThatOthersRecompute) {
  const auto bytes = [](const char* recompute, bool partial) {
    const ResolvedRun run = with([=](auto& c) {
      c.train.recompute = recompute;
      c.train.recompute_modules = {"core_attn", "mlp"};
      c.train.recompute_partial_microbatches = std::string(recompute) == "none" ? 0 : 1;
      c.parallel.pp = 2;
    });
    return stage_activation_bytes(run.config, run.shape, run.parts[0], partial);
  };
  EXPECT_EQ(bytes("selective", true), bytes("none", false));
  EXPECT_LE(bytes("selective", false), bytes("none", false) / 2);
}

TEST(MemoryPlan, CountsPartialMicrobatchesOfEachPipelineRank) {
  const ResolvedRun run = with([](auto& c) {
    c.parallel.pp = 4;
    c.train.recompute = "full";
    c.train.recompute_partial_microbatches = 2;
  });
  const auto timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                           stage_costs(run.config, run.shape, run.parts));
  const std::int64_t input = 4 * 128 * 256, layer = layer_activation_bytes(run.config, run.shape.layer(0));
  for (int rank = 0; rank < 4; ++rank) {
    // Of 4, 3, 2, 1 microbatches two keep their two layers, the others their inputs, and one layer while it is
    // recomputed. The last rank also has what the output layer takes.
    const std::int64_t window = 4 - rank, whole = std::min<std::int64_t>(window, 2);
    const std::int64_t expected = whole * 2 * layer + (window - whole) * 2 * input + (window > whole ? layer : 0);
    EXPECT_EQ(memory_plan(run, 0, rank, {timeline, rank}).activations, expected + (rank == 3 ? 2 * input : 0)) << rank;
  }
}

TEST(MemoryPlan, HoldsMoreLogitsAtOnceOnAGpuUnlessToldHowMany) {
  config::RunConfig config;
  EXPECT_EQ(loss_chunk_tokens(config), 1024);
  config.parallel.device = "cuda";
  EXPECT_EQ(loss_chunk_tokens(config), 8192);
  config.train.loss_chunk_tokens = 100;
  EXPECT_EQ(loss_chunk_tokens(config), 100);
}

}  // namespace
}  // namespace megatron::plan
