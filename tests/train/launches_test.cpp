#include "megatron/plan/steps/launches.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "megatron/base/ranges.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/cuda/epilogue_choice.h"
#include "megatron/kernels/phases/norms/norm_gradient.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/steps/launch_writer.h"
#include "tests/train/tiny_run.h"

// What is planned of a layer's launches on a GPU against the operators that a step calls, where CUDA is emulated.
namespace megatron::train {
namespace {

static_assert(plan::kRowsOfSums == kernels::phases::AddNormGradient<float>::kRows);
static_assert(plan::kMostBytesOfSums == kernels::phases::AddNormGradient<float>::kMostSums);

using Calls = std::map<std::string, int>;

thread_local Calls calls;
thread_local int depth;

/// Operators that the microbatch of a step calls on the first rank, as a profiler is told; not those that they call
/// themselves.
Calls calls_of(config::RunConfig config, std::int64_t layers) {
  config.model.num_layers = layers;
  config.train.global_batch_size = config.parallel.world_size / config.parallel.tp;
  const plan::ResolvedRun run = plan::resolve(config);
  kernels::force_instruction_set(kernels::kCudaEmulated);
  static constexpr RangeHooks hooks{.begin =
                                        [](const char* name) {
                                          if (++depth == 2) ++calls[name];  // 1: an operation of the schedule
                                        },
                                    .end = [] { --depth; }};
  Calls of_first;
  range_hooks = &hooks;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    Engine engine(run, world, at::kCPU);
    calls.clear();
    depth = 0;
    testing::take_step(run, engine, 0);
    if (world.rank() == 0) of_first = calls;
  });
  range_hooks = nullptr;
  kernels::force_instruction_set("auto");
  return of_first;
}

/// Of one layer in a stack of many.
Calls calls_of_layer(const config::RunConfig& config) {
  Calls calls = calls_of(config, 3);
  for (const auto& [name, count] : calls_of(config, 2)) calls[name] -= count;
  std::erase_if(calls, [](const auto& call) { return call.second == 0; });
  return calls;
}

Calls planned(config::RunConfig config) {
  config.parallel.device = "cuda";
  Calls calls;
  for (const plan::Launch& launch : plan::layer_launches(plan::resolve(config)).launches)
    if (!launch.call.empty()) ++calls[launch.call];
  return calls;
}

config::RunConfig small(const char* dtype) {
  config::RunConfig config = testing::tiny_config(1, 1, dtype);
  config.data.seq_length = 16;
  return config;
}

/// Llama's layers, in place of GPT-2's.
void take_llamas_layers(config::ModelConfig& model) {
  model.normalization = "RMSNorm";
  model.gated_linear_unit = true;
  model.activation = "silu";
  model.add_bias_linear = false;
  model.position_embedding_type = "rope";
  model.hidden_dropout = model.attention_dropout = 0;
  model.num_query_groups = 2;
}

/// Mixtral's layers.
config::RunConfig small_mixtral(const char* dtype) {
  config::RunConfig mixtral = small(dtype);
  take_llamas_layers(mixtral.model);
  mixtral.model.num_experts = 4;
  mixtral.model.moe_router_topk = 2;
  mixtral.model.moe_aux_loss_coeff = 0.02;
  return mixtral;
}

TEST(LayerLaunches, OfExpertsAreWhatAStepCalls) {
  for (const char* dtype : {"fp32", "bf16"})
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << dtype << " on " << ranks);
      config::RunConfig mixtral = small_mixtral(dtype);
      mixtral.parallel.world_size = mixtral.parallel.ep = ranks;
      EXPECT_EQ(planned(mixtral), calls_of_layer(mixtral));
      mixtral.model.moe_shared_expert_intermediate_size = 32;
      EXPECT_EQ(planned(mixtral), calls_of_layer(mixtral)) << "with a shared expert";
      mixtral.model.moe_shared_expert_gate = true;
      EXPECT_EQ(planned(mixtral), calls_of_layer(mixtral)) << "with its gate";
      mixtral.model.gated_linear_unit = false;
      mixtral.model.add_bias_linear = true;
      mixtral.model.moe_shared_expert_gate = false;
      mixtral.model.moe_shared_expert_intermediate_size = 0;
      EXPECT_EQ(planned(mixtral), calls_of_layer(mixtral)) << "with biases";
    }
}

/// Calls of at::_grouped_mm on every thread.
std::atomic<int> grouped_products;

// Weights of experts lie as one call for all of them reads them.
TEST(LayerLaunches, MultiplyAllExpertsAtOnceOnHopper) {
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
    if (std::string(function.name()) == "aten::_grouped_mm") ++grouped_products;
    return std::unique_ptr<at::ObserverContext>();
  }));
  for (const int layers : {1, 2}) {
    grouped_products = 0;
    calls_of(small_mixtral("bf16"), layers);
    EXPECT_EQ(grouped_products, 4 * layers) << "two products forward, two of inputs' gradients";
  }
  at::removeCallback(handle);
}

TEST(LayerLaunches, AreWhatAStepCalls) {
  for (const char* dtype : {"fp32", "bf16"}) {
    config::RunConfig gpt2 = small(dtype);
    EXPECT_EQ(planned(gpt2), calls_of_layer(gpt2)) << dtype;
    gpt2.model.hidden_dropout = 0;
    EXPECT_EQ(planned(gpt2), calls_of_layer(gpt2)) << dtype << " without dropout";
    config::RunConfig llama = small(dtype);
    take_llamas_layers(llama.model);
    EXPECT_EQ(planned(llama), calls_of_layer(llama)) << dtype << " of Llama's layers";
    llama.model.add_qkv_bias = true;
    EXPECT_EQ(planned(llama), calls_of_layer(llama)) << dtype << " of Qwen2's layers";
  }
}

TEST(LayerLaunches, OfASequenceInPartsAreWhatAStepCalls) {
  for (const char* dtype : {"fp32", "bf16"})
    for (const bool sp : {false, true}) {
      config::RunConfig config = small(dtype);
      config.parallel.tp = config.parallel.world_size = 2;
      config.parallel.sp = sp;
      EXPECT_EQ(planned(config), calls_of_layer(config)) << dtype << (sp ? " in parts" : "");
    }
}

/// Layers of sizes that units multiply, which the emulated device has too: whole blocks, on two ranks each.
config::RunConfig small_fp8(const char* dtype, const char* recipe) {
  config::RunConfig config = small(dtype);
  config.model.hidden_size = config.model.ffn_hidden_size = 256;
  config.model.num_attention_heads = 4;
  config.data.seq_length = config.model.max_position_embeddings = 128;
  config.fp8.format = "e4m3";
  config.fp8.recipe = recipe;
  return config;
}

TEST(LayerLaunches, In8BitsAreWhatAStepCalls) {
  for (const char* recipe : {"delayed", "tensorwise", "blockwise", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    config::RunConfig config = small_fp8("bf16", recipe);
    const Calls gpt2 = planned(config);
    EXPECT_EQ(gpt2, calls_of_layer(config));
    EXPECT_EQ(gpt2.count("linear"), 0U) << "no product is that of the type";
    config.fp8.wgrad = false;
    EXPECT_EQ(planned(config), calls_of_layer(config)) << "with weight gradients of the type";
    config = small_fp8("fp32", recipe);
    config.parallel.tp = config.parallel.world_size = 2;
    config.parallel.sp = true;
    take_llamas_layers(config.model);
    EXPECT_EQ(planned(config), calls_of_layer(config)) << "of Llama's layers on two ranks, in parts";
  }
}

// The plan's rule is the operators' own.
TEST(LayerLaunches, HaveActivationsInProductsWhereCuBlasLtComputesThem) {
  for (const char* dtype : {"fp32", "bf16", "fp16"})
    for (const char* activation : {"gelu_tanh", "gelu", "relu"})
      for (const std::int64_t width : {96, 100})
        for (const bool gated : {false, true}) {
          config::RunConfig config = small(dtype);
          config.parallel.device = "cuda";
          config.model.activation = activation;
          config.model.ffn_hidden_size = width;
          config.model.gated_linear_unit = gated;
          const plan::ResolvedRun run = plan::resolve(config);
          const bool computes =
              kernels::cuda::epilogue_computes({.capability = 8,
                                                .sixteen_bits = std::string(dtype) != "fp32",
                                                .tanh_gelu = std::string(activation) == "gelu_tanh" && !gated,
                                                .aligned = true,
                                                .rows = config.data.seq_length,
                                                .f = width,
                                                .other = run.shape.hidden});
          EXPECT_EQ(plan::activates_in_products(run), computes) << dtype << activation << width << gated;
          int products = 0;
          for (const plan::Launch& launch : plan::layer_launches(run).launches)
            products += launch.name == "fc1 + activation product" || launch.name == "fc2, input, activation product";
          EXPECT_EQ(products, computes ? 2 : 0);
        }
}

}  // namespace
}  // namespace megatron::train
