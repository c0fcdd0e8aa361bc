#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "megatron/base/files/file.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/rules.h"
#include "megatron/train/engine.h"
#include "tests/testing/folders.h"
#include "tests/testing/tensors.h"

// Eight steps of a tiny GPT that Megatron-Core itself trained: DDP, clipping, AdamW, cosine schedule with warm-up.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGolden = fs::path(unpacked_folder()) / "golden/megatron/model/gpt2";

config::RunConfig configuration(const json& reference, int tp, int dp) {
  const auto &network = reference.at("config"), &training = reference.at("train");
  config::RunConfig run;
  run.model.num_layers = network.at("num_layers");
  run.model.hidden_size = network.at("hidden_size");
  run.model.num_attention_heads = network.at("num_attention_heads");
  run.model.ffn_hidden_size = network.at("ffn_hidden_size");
  run.model.vocab_size = reference.at("vocab_size");
  run.model.max_position_embeddings = reference.at("max_sequence_length");
  run.model.hidden_dropout = run.model.attention_dropout = 0;
  run.data.seq_length = reference.at("sequence_length");
  run.parallel.tp = tp;
  run.parallel.world_size = tp * dp;
  run.optimizer = {.adam_beta1 = training.at("beta1"),
                   .adam_beta2 = training.at("beta2"),
                   .adam_eps = training.at("eps"),
                   .weight_decay = training.at("weight_decay"),
                   .clip_grad = training.at("clip_grad"),
                   .bucket_size = 5000};
  const std::int64_t batch = reference.at("batch"), microbatches = training.at("microbatches");
  run.train.micro_batch_size = batch;
  run.train.global_batch_size = batch * microbatches;
  run.train.train_iters = training.at("steps");
  run.schedule.lr = training.at("lr");
  run.schedule.min_lr = training.at("min_lr");
  run.schedule.lr_warmup_samples = training.at("warmup").get<std::int64_t>() * batch * microbatches;
  run.schedule.lr_decay_style = training.at("decay");
  return run;
}

// Row `row` of the recorded microbatches. The reference averages over each microbatch first, ours over the whole global
// batch: dividing the mask by its sum (and giving back the 1 / microbatches) makes the two the same.
model::Batch recorded(const std::map<std::string, at::Tensor>& batches, std::int64_t row) {
  constexpr std::int64_t kEndOfDocument = 1;
  const auto tokens = batches.at("tokens")[row], mask = batches.at("loss_mask")[row];
  model::Batch batch;
  batch.tokens_bs = tokens;
  batch.labels_bs = batches.at("labels")[row];
  batch.loss_mask_bs = mask / mask.sum();
  batch.position_ids_bs = batches.at("position_ids")[row];
  // Positions restart after each end of document, and so does what attention sees.
  const auto first_key = at::empty(tokens.sizes(), at::kInt);
  for (std::int64_t b = 0; b < tokens.size(0); ++b)
    for (std::int64_t i = 0, first = 0; i < tokens.size(1); ++i) {
      first_key[b][i] = first;
      if (tokens[b][i].item<std::int64_t>() == kEndOfDocument) first = i + 1;
    }
  batch.first_key_bs = first_key;
  batch.sample_ids = at::zeros({tokens.size(0)}, at::kLong);
  return batch;
}

// Adam divides a gradient by its own size. The true gradient of the key rows of linear_qkv.bias is 0 (a constant added
// to all scores of a query changes nothing), so there it makes full-size steps of rounding noise: leave them out.
at::Tensor without_key_rows(const at::Tensor& tensor, const plan::ParameterSpec& spec, std::int64_t head_size) {
  if (!spec.name.ends_with("linear_qkv.bias")) return tensor;
  const auto heads = tensor.view({-1, 3, head_size});
  return at::cat({heads.select(1, 0), heads.select(1, 2)});
}

class GoldenTraining : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(GoldenTraining, FollowsMegatronCoreForEightSteps) {
  if (!fs::exists(kGolden)) GTEST_SKIP() << kGolden << " is not there";
  const auto [tp, dp] = GetParam();
  const json reference = json::parse(read_file(kGolden / "case.json"));
  const plan::ResolvedRun run = plan::resolve(configuration(reference, tp, dp));
  const auto weights = testing::read_safetensors(kGolden / "weights.safetensors"),
             trained = testing::read_safetensors(kGolden / "trained.safetensors"),
             batches = testing::read_safetensors(kGolden / "train_batches.safetensors");
  comm::run_ranks(tp * dp, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    for (const auto& parameter : engine.parameters.all())
      parameter->value.detach().copy_(testing::slice_of(weights.at(parameter->spec.name), parameter->spec));

    const int microbatches = 2 / engine.context.grid().sample_shares();
    std::int64_t samples = 0;
    for (const json& step : reference.at("steps")) {
      const std::int64_t first_row = 2 * (step.at("step").get<std::int64_t>() - 1);
      const double learning_rate = run.learning_rate.at(samples);
      EXPECT_NEAR(learning_rate, step.at("lr_used").get<double>(), 1e-15);
      const StepResult result = engine.step(
          microbatches,
          [&](std::size_t m) {
            const int dp_rank = engine.context.samples().rank();
            return recorded(batches, first_row + static_cast<std::int64_t>(m) * dp + dp_rank);
          },
          learning_rate);
      samples += run.config.train.global_batch_size;
      const double loss = (step.at("losses")[0].get<double>() + step.at("losses")[1].get<double>()) / 2;
      EXPECT_NEAR(result.loss, loss, 1e-5 * loss) << "step " << step.at("step");
      EXPECT_NEAR(result.grad_norm, step.at("grad_norm").get<double>(), 2e-5) << "step " << step.at("step");
      EXPECT_FALSE(result.skipped);
    }
    for (const auto& parameter : engine.parameters.all()) {
      const auto& spec = parameter->spec;
      const auto part = [&](const at::Tensor& t) { return without_key_rows(t, spec, 8); };
      const auto want = part(testing::slice_of(trained.at(spec.name), spec)), got = part(parameter->value.detach());
      EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * (1e-3 + want.abs().max().item<double>())) << spec.name;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Layouts, GoldenTraining,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}),
                         [](const auto& test) {
                           return "tp" + std::to_string(test.param.first) + "dp" + std::to_string(test.param.second);
                         });

}  // namespace
}  // namespace megatron::train
