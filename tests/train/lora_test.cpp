#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/parameters/adapters.h"
#include "tests/testing/tensors.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

config::RunConfig adapted_config(int tp, int dp, const char* dtype) {
  config::RunConfig config = testing::tiny_config(tp, dp, dtype);
  config.model.hidden_dropout = config.model.attention_dropout = 0;
  config.model.num_query_groups = 2;
  config.model.gated_linear_unit = true;
  config.model.activation = "silu";
  config.model.ffn_hidden_size = 36;
  config.lora.rank = 3;
  config.lora.alpha = 12;
  return config;
}

/// Every weight of `model` gets scale B A of `adapted` added, as matrices of a whole model, and rows of the magnitudes
/// that there are.
void merge(const Engine& adapted, const Engine& model, const plan::ModelShape& shape) {
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const plan::Branch& branch : layer.branches)
      for (const plan::Linear& linear : branch.linears(layer.hidden)) {
        const at::Tensor weight = model.parameters.get(layer.prefix + linear.name + ".weight")->value.detach();
        for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, 1)) {
          const auto matrix = [&](const char* which) {
            return adapted.parameters.get(plan::adapter_name(layer, linear, part, which))->value.detach();
          };
          const at::Tensor rows =
              weight.view({part.groups, part.group_outputs, linear.inputs}).narrow(1, part.offset, part.length);
          rows.add_(at::matmul(matrix("B"), matrix("A")).view({part.groups, part.length, linear.inputs}),
                    shape.lora->scale());
          if (!shape.lora->dora) continue;
          const at::Tensor m = adapted.parameters.get(plan::magnitude_name(layer, linear, part))->value.detach();
          rows.mul_(m.view({part.groups, part.length, 1}).div(rows.square().sum(2, /*keepdim=*/true).sqrt()));
        }
        kernels::written_to(weight);
      }
  }
}

class Lora : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Lora, ::testing::Bool(), [](const auto& test) { return test.param ? "dora" : "lora"; });

/// After two steps the losses of a run of adapters are those of the model with them merged.
void expect_losses_of_merged_weights(const config::RunConfig& config) {
  const plan::ResolvedRun run = plan::resolve(config);
  config::RunConfig plain_config = run.config;
  plain_config.lora.rank = 0;
  const plan::ResolvedRun plain = plan::resolve(plain_config);
  comm::run_ranks(1, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine adapted(run, world, at::kCPU), model(plain, world, at::kCPU);
    const double before = testing::take_step(run, adapted, 0).loss;
    EXPECT_NEAR(before, testing::take_step(plain, model, 0).loss, 1e-12) << "B is zero at first";
    testing::take_step(run, adapted, 1);
    Engine merged(plain, world, at::kCPU);
    merge(adapted, merged, run.shape);
    const double want = testing::take_step(plain, merged, 2).loss;
    EXPECT_NEAR(testing::take_step(run, adapted, 2).loss, want, 1e-12);
    EXPECT_GT(std::abs(want - before), 1e-6);
  });
}

TEST_P(Lora, TrainsTheModelThatItsMergedWeightsAre) {
  config::RunConfig config = adapted_config(1, 1, "fp64");
  config.lora.dora = GetParam();
  expect_losses_of_merged_weights(config);
}

TEST_P(Lora, OfLatentsTrainsTheModelThatItsMergedWeightsAre) {
  for (const std::int64_t q_rank : {0, 10}) {
    config::RunConfig config = adapted_config(1, 1, "fp64");
    config.lora.dora = GetParam();
    config.model.num_query_groups = 0;
    config.model.normalization = "RMSNorm";
    config.model.add_bias_linear = false;
    config.model.position_embedding_type = "rope";
    config.model.multi_latent_attention = config.model.qk_layernorm = config.model.rotary_interleaved = true;
    config.model.q_lora_rank = q_rank;
    config.model.kv_lora_rank = 12;
    config.model.qk_head_dim = 6;
    config.model.qk_pos_emb_head_dim = 4;
    config.model.v_head_dim = 8;
    expect_losses_of_merged_weights(config);
  }
}

TEST_P(Lora, OfEncodersTrainsTheModelThatItsMergedWeightsAre) {
  for (const char* architecture : {"bert", "t5"}) {
    config::RunConfig config = adapted_config(1, 1, "fp64");
    config.lora.dora = GetParam();
    config.model.architecture = architecture;
    config.model.num_query_groups = 0;
    if (config.model.architecture == "t5") {
      config.model.kv_channels = 6;
      config.model.normalization = "RMSNorm";
      config.model.add_bias_linear = false;
      config.model.position_embedding_type = "relative";
      config.data.decoder_seq_length = 8;
    }
    expect_losses_of_merged_weights(config);
  }
}

config::RunConfig with_experts(config::RunConfig config) {
  config.model.add_bias_linear = false;
  config.model.num_experts = 4;
  config.model.moe_router_topk = 2;
  config.model.moe_ffn_hidden_size = 20;
  config.model.moe_shared_expert_intermediate_size = 12;
  config.model.first_k_dense_replace = 1;
  config.model.moe_aux_loss_coeff = 0.1;
  return config;
}

TEST(ExpertAdapters, TrainTheModelThatTheirMergedWeightsAre) {
  for (const bool gated : {true, false}) {
    config::RunConfig config = with_experts(adapted_config(1, 1, "fp64"));
    config.model.gated_linear_unit = gated;
    expect_losses_of_merged_weights(config);
  }
}

/// Steps change the adapters alone, and ranks hold what is planned of them, of their gradients and moments.
void expect_weights_left_and_planned(const config::RunConfig& config) {
  const plan::ResolvedRun run = plan::resolve(config);
  const plan::MemoryPlan planned = plan::memory_plan(run, 0, 0, 0);
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    const auto& frozen = engine.parameters.frozen();
    ASSERT_NE(frozen, nullptr);
    const at::Tensor before = frozen->values().clone(), adapters = engine.parameters.values().clone();
    for (int i = 0; i < 2; ++i) testing::take_step(run, engine, i);
    EXPECT_TRUE(at::equal(frozen->values(), before));
    EXPECT_FALSE(at::equal(engine.parameters.values(), adapters));
    EXPECT_EQ(frozen->gradient_bytes(), 0);
    EXPECT_EQ(engine.parameters.gradient_bytes(), planned.gradients);
    EXPECT_EQ(engine.optimizer.bytes(), planned.optimizer_state);
    EXPECT_EQ(static_cast<std::int64_t>(frozen->values().nbytes() + engine.parameters.values().nbytes()),
              planned.parameters);
  });
}

// The router's biases too, which are moved by hand and not by gradients.
TEST(ExpertAdapters, LeaveTheWeightsAndHoldWhatIsPlanned) {
  for (const char* dtype : {"fp64", "bf16"})
    for (const int ep : {1, 2}) {
      config::RunConfig config = with_experts(adapted_config(1, 2, dtype));
      config.parallel.ep = ep;
      config.optimizer.use_distributed_optimizer = true;
      config.model.moe_router_score_function = "sigmoid";
      config.model.moe_router_enable_expert_bias = true;
      expect_weights_left_and_planned(config);
    }
}

TEST_P(Lora, LeavesTheWeightsAndHoldsWhatIsPlanned) {
  for (const char* dtype : {"fp64", "bf16"})
    for (const int tp : {1, 2}) {
      config::RunConfig config = adapted_config(tp, 2, dtype);
      config.optimizer.use_distributed_optimizer = true;
      config.lora.dora = GetParam();
      expect_weights_left_and_planned(config);
    }
}

TEST_P(Lora, HoldsShardsOfTheWeightsAndLayersInTurn) {
  config::RunConfig config = adapted_config(1, 4, "fp64");
  config.model.num_layers = 8;
  config.optimizer.use_distributed_optimizer = true;
  config.lora.dora = GetParam();
  const std::int64_t whole = plan::memory_plan(plan::resolve(config), 0, 0, 0).parameters;
  config.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  const plan::ResolvedRun run = plan::resolve(config);
  const plan::MemoryPlan planned = plan::memory_plan(run, 0, 0, 0);
  EXPECT_LT(planned.parameters, whole * 7 / 10);
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    for (int i = 0; i < 2; ++i) testing::take_step(run, engine, i);
    EXPECT_TRUE(engine.parameters.frozen()->pooled_values().has_value());
    EXPECT_EQ(engine.parameters.frozen()->value_bytes() + engine.parameters.value_bytes(), planned.parameters);
  });
}

// W x, which they need, is computed of all outputs of the layer, or of those alone that are adapted.
TEST(Dora, HasTheSameGradientsOfMagnitudesWhateverElseIsAdapted) {
  std::vector<at::Tensor> gradients;
  for (const char* target : {"all-linear", "v_proj"}) {
    config::RunConfig config = adapted_config(1, 1, "fp64");
    config.lora.dora = true;
    config.lora.targets = {target};
    config.optimizer.clip_grad = 0;
    const plan::ResolvedRun run = plan::resolve(config);
    comm::run_ranks(1, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      testing::take_step(run, engine, 0);  // in which every model is that of the weights: B is zero
      gradients.push_back(
          engine.parameters.get("decoder.layers.0.self_attention.linear_qkv.v_proj.lora_magnitude_vector")
              ->grad.clone());
    });
  }
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_GT(gradients[0].abs().min().item<double>(), 0);
  EXPECT_NEAR_TENSOR(gradients[1], gradients[0], 1e-12);
}

// With B zero the magnitudes of a layer are the norms of its rows; of two ranks they are those of one.
TEST(Dora, BeginsAsTheNormsOfTheWeightsInEveryLayout) {
  std::map<std::string, at::Tensor> magnitudes;  // of one rank, in float64
  for (const int tp : {1, 2})
    for (const char* dtype : {"fp64", "bf16"}) {
      config::RunConfig config = adapted_config(tp, 1, dtype);
      config.lora.dora = true;
      const plan::ResolvedRun run = plan::resolve(config);
      comm::run_ranks(tp, [&](const comm::Group& world) {
        kernels::configure_thread(1);
        Engine engine(run, world, at::kCPU);
        std::map<std::string, std::vector<at::Tensor>> of_layer;
        for (const parallel::ParameterPtr& parameter : engine.parameters.all()) {
          const std::string& name = parameter->spec.name;
          if (!name.ends_with(".lora_magnitude_vector")) continue;
          const at::Tensor own = parameter->value.detach().to(at::kDouble);
          if (magnitudes.contains(name)) {
            const double near = dtype == std::string("fp64") ? 1e-14 : 1e-2;
            EXPECT_NEAR_TENSOR(own, megatron::testing::slice_of(magnitudes.at(name), parameter->spec), near) << name;
          } else {
            of_layer[name.substr(0, name.rfind('.', name.rfind('.') - 1))].push_back(own.clone());
          }
        }
        if (!magnitudes.empty()) return;
        EXPECT_EQ(of_layer.size(), 2u * 4);
        for (const auto& [layer, parts] : of_layer) {
          const at::Tensor rows = engine.parameters.get(layer + ".weight")->value.detach().square().sum(1).sqrt();
          EXPECT_NEAR_TENSOR(std::get<0>(at::cat(parts).sort()), std::get<0>(rows.sort()), 1e-14) << layer;
        }
        for (const parallel::ParameterPtr& parameter : engine.parameters.all())
          if (parameter->spec.name.ends_with(".lora_magnitude_vector"))
            magnitudes[parameter->spec.name] = parameter->value.detach().clone();
      });
    }
}

}  // namespace
}  // namespace megatron::train
