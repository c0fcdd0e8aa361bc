#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/hugging_face/hugging_face.h"
#include "megatron/model/options.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/plan/rules.h"
#include "tests/model/small_model.h"
#include "tests/testing/folders.h"

// The T5 of transformers in float32, whole and cut into stages anywhere: its logits, loss and every gradient.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using megatron::testing::read_safetensors;
using megatron::testing::Tensors;

constexpr double kTolerance = 1e-5;

struct Layout {
  std::string name;
  int tp = 1;
  std::vector<std::int64_t> stages = {4};  ///< layers of each; the encoder has two
  bool sp = false, recompute = false;
};

fs::path golden_folder() { return fs::path(unpacked_folder()) / "golden/models/tiny_t5"; }

/// What transformers computed, with the decoder's tokens made of the labels as it makes them.
model::Batch batch_of(const Tensors& expected) {
  const auto labels = expected.at("input.labels");
  model::Batch batch;
  batch.tokens_bs = expected.at("input.input_ids");
  batch.key_lengths_b = expected.at("input.attention_mask").sum(1).to(at::kInt);
  batch.labels_bs = labels;
  batch.loss_mask_bs = labels.ge(0).to(at::kFloat);
  batch.decoder_tokens_bs = at::zeros_like(labels);
  batch.decoder_tokens_bs.narrow(1, 1, labels.size(1) - 1).copy_(labels.narrow(1, 0, labels.size(1) - 1).clamp_min(0));
  return batch;
}

model::TransformerOptions options_of(const fs::path& folder) {
  config::RunConfig config;
  config.model = interchange::read_config(folder).model;
  const plan::ResolvedRun run = plan::resolve(config);
  auto options = model::transformer_options(run.config, run.shape);
  options.hidden_dropout = options.attention_dropout = 0;
  return options;
}

Tensors weights_of(const fs::path& folder) {
  const auto source = interchange::open_hugging_face(folder);
  Tensors weights;
  for (const std::string& name : source->tensors()) {
    const auto& shape = *source->shape(name);
    weights[name] = at::empty(shape, at::kFloat);
    source->read(name, {std::vector<std::int64_t>(shape.size(), 0), shape}, weights[name]);
  }
  return weights;
}

/// The gradient of a whole parameter; collective over tp.
at::Tensor whole_gradient(const parallel::Parameter& parameter, bool sp, const comm::Group& tp) {
  auto gradient = parameter.grad.clone();
  if (sp && parameter.spec.sequence_partial) tp.all_reduce(gradient);
  return parameter.spec.replicated() ? gradient : tp.all_gather(gradient, parameter.spec.split_dim);
}

/// Box `at` … of a tensor.
at::Tensor box(at::Tensor x, const std::vector<std::int64_t>& begin, const std::vector<std::int64_t>& shape) {
  for (std::size_t d = 0; d < shape.size(); ++d) x = x.narrow(static_cast<std::int64_t>(d), begin[d], shape[d]);
  return x;
}

void expect_close(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  EXPECT_LE((got - wanted).abs().max().item<double>(), kTolerance) << what;
}

/// Each gradient's norm, and those that are there in full.
void expect_gradients(const Tensors& ours, const plan::ModelShape& shape, const Tensors& expected) {
  std::ifstream file(golden_folder() / "expected.json");
  const auto norms = nlohmann::json::parse(file)["grad_norm_by_parameter"];
  std::map<std::string, double> squares;
  std::size_t in_full = 0;
  for (const auto& [name, tensor] : families::hf_family("t5").written_table(shape, {})) {
    for (const families::MappedSlice& piece : tensor.pieces) {
      const auto part = box(ours.at(name), piece.to, piece.shape);
      squares[piece.source] += std::pow(part.norm().item<double>(), 2);
      const auto whole = expected.find("grad." + piece.source);
      if (whole == expected.end()) continue;
      expect_close(part, box(whole->second, piece.from, piece.shape), piece.source);
      ++in_full;
    }
  }
  EXPECT_EQ(in_full, 6u + 3u);  // one in four pieces
  ASSERT_EQ(squares.size(), norms.size());
  for (const auto& [source, square] : squares) {
    const double norm = norms.at(source).get<double>();
    EXPECT_NEAR(std::sqrt(square), norm, kTolerance * (1 + norm)) << source;
  }
}

class T5Golden : public ::testing::TestWithParam<Layout> {};

TEST_P(T5Golden, IsTheT5OfTransformers) {
  const fs::path folder = golden_folder();
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const Tensors expected = read_safetensors(folder / "expected.safetensors"), weights = weights_of(folder);
  const model::Batch batch = batch_of(expected);
  auto options = options_of(folder);
  options.sequence_parallel = GetParam().sp;
  if (GetParam().recompute) options.recompute = {.layers = model::Recompute::Layers::Uniform, .num_layers = 3};
  comm::run_ranks(GetParam().tp, [&](const comm::Group& tp) {
    const testing::StagedModel staged(options, plan::parts_of_layers(GetParam().stages), tp, weights, at::kFloat);
    if (staged.stages.size() == 1)
      expect_close(staged.stages.front().logits(batch), expected.at("output.logits"), "logits");
    const auto loss = staged.step(batch);
    EXPECT_EQ(loss.count, batch.loss_mask_bs.sum().item<double>());
    EXPECT_NEAR(loss.sum.item<double>() / loss.count, expected.at("output.loss").item<double>(), kTolerance);
    Tensors gradients;
    for (const auto& store : staged.stores) {
      for (const auto& parameter : store.all()) {
        EXPECT_EQ(parameter->contributions(), parameter->spec.gradient_uses) << parameter->spec.name;
        const auto gradient = whole_gradient(*parameter, options.sequence_parallel, tp) / loss.count;
        auto& sum = gradients[parameter->spec.name];
        EXPECT_EQ(sum.defined(), parameter->spec.shared_copy) << parameter->spec.name;
        sum = sum.defined() ? sum + gradient : gradient;
      }
    }
    if (tp.rank() == 0) expect_gradients(gradients, options.shape, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, T5Golden,
                         ::testing::Values(Layout{.name = "whole"}, Layout{.name = "tp2", .tp = 2},
                                           Layout{.name = "tp2_sp", .tp = 2, .sp = true},
                                           Layout{.name = "tp4_recomputed", .tp = 4, .recompute = true},
                                           Layout{.name = "at_the_split", .stages = {2, 2}},
                                           Layout{.name = "each_layer", .tp = 2, .stages = {1, 1, 1, 1}, .sp = true},
                                           Layout{.name = "anywhere", .stages = {0, 1, 3, 0}, .recompute = true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace megatron::train
