#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/model/task_head.h"
#include "tests/model/small_model.h"

// The head of a task against plain ATen operators on top of the dense model, differentiated by autograd.
namespace megatron::model {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::slice_of;
using megatron::testing::small;
using megatron::testing::Tensors;
using megatron::testing::whole_gradient;

struct Case {
  const char* name;
  bool bert;
  plan::Head head;
};

TransformerOptions options_of(const Case& c) {
  TransformerOptions options = small();
  if (c.bert) {
    options.shape.causal = false;
    options.shape.masked_lm_head = options.shape.pooled_tasks = true;
    options.shape.token_types = 2;
  }
  options.shape.tied_output = false;
  options.shape.task_head = c.head;
  options.shape.num_classes = c.head == plan::Head::Classes ? 3 : 0;
  options.hidden_dropout = options.attention_dropout = 0.2;
  return options;
}

/// Four rows of eight tokens, two of them padded; one target does not count.
Batch batch_of(plan::Head head) {
  Batch batch = random_batch(10, 4, 8);
  batch.key_lengths_b = at::tensor({8, 5, 8, 6}, at::kInt);
  if (head == plan::Head::Classes) batch.targets = at::tensor({2, 0, -1, 1}, at::kLong);
  if (head == plan::Head::Options) batch.targets = at::tensor({1, 0}, at::kLong);
  if (head == plan::Head::Span) batch.targets = at::tensor({3, 5, 0, 0, -1, -1, 2, 2}, at::kLong).view({4, 2});
  return batch;
}

/// The mean of both ends of a span, the sum over samples.
at::Tensor dense_loss(const TransformerOptions& options, const Tensors& w, const Batch& batch) {
  const auto x = DenseModel(options, w).states(batch, true);  // [b, s, h]
  const auto dense = [&](const at::Tensor& in, const std::string& name) {
    const auto out = at::matmul(in, w.at(name + ".weight").t());
    return w.contains(name + ".bias") ? out + w.at(name + ".bias") : out;  // a GPT's head has none
  };
  const auto cross_entropy = [](const at::Tensor& logits, const at::Tensor& labels) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    const auto log_p = at::log_softmax(logits, -1);
    for (std::int64_t i = 0; i < labels.size(0); ++i)
      if (const auto label = labels[i].item<std::int64_t>(); label >= 0) sum = sum - log_p[i][label];
    return sum;
  };
  if (options.shape.task_head == plan::Head::Span) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::int64_t i = 0; i < x.size(0); ++i) {  // the padding cut off, instead of masked
      const auto logits = dense(x[i].slice(0, 0, batch.key_lengths_b[i].item<std::int64_t>()), "task_head").t();
      sum = sum + cross_entropy(logits, batch.targets[i]) / 2;
    }
    return sum;
  }
  std::vector<at::Tensor> rows;
  for (std::int64_t i = 0; i < x.size(0); ++i)
    rows.push_back(options.shape.pooled_tasks ? x[i][0] : x[i][batch.key_lengths_b[i].item<std::int64_t>() - 1]);
  auto state = at::stack(rows);
  if (options.shape.pooled_tasks) state = at::tanh(dense(state, "pooler.dense"));
  const kernels::Dropout dropout{.p = options.hidden_dropout,
                                 .key = stream_key(options.seed, "dropout/task head"),
                                 .sample_ids = batch.sample_ids};
  state = state * kernels::dropout_mask(dropout, 1, x.size(0), x.size(2), at::kDouble, at::kCPU)[0];
  return cross_entropy(dense(state, "task_head").view({batch.targets.size(0), -1}), batch.targets);
}

class TaskHeads : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Kinds, TaskHeads,
                         ::testing::Values(Case{"bert_classes", true, plan::Head::Classes},
                                           Case{"gpt_classes", false, plan::Head::Classes},
                                           Case{"bert_options", true, plan::Head::Options},
                                           Case{"bert_span", true, plan::Head::Span}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(TaskHeads, LossAndEveryGradientMatchTheDenseModel) {
  const TransformerOptions whole = options_of(GetParam());
  const Batch batch = batch_of(GetParam().head);
  const auto weights = random_weights(whole.shape, 9);
  const auto loss = dense_loss(whole, weights, batch);
  loss.backward();
  const double counted = GetParam().head == plan::Head::Options ? 2 : 3;
  for (const int t : {1, 2}) {
    for (const bool split : {false, true}) {
      comm::run_ranks(t, [&](comm::Group tp) {
        TransformerOptions options = whole;
        options.sequence_parallel = split;
        const auto store = make_store(options.shape, t, tp.rank(), weights);
        store.gradients().fill_(std::numeric_limits<double>::quiet_NaN());
        const TransformerStage gpt(options, store, tp);
        const auto got = gpt.loss(batch, true);
        EXPECT_NEAR_TENSOR(got.sum, loss, 1e-12);
        EXPECT_EQ(got.count, counted);
        got.sum.backward();
        for (const auto& p : store.all()) {
          auto gradient = whole_gradient(*p, tp);
          if (split && p->spec.sequence_partial) tp.all_reduce(gradient);
          EXPECT_NEAR_TENSOR(gradient, slice_of(weights.at(p->spec.name).grad(), p->spec), 1e-11)
              << p->spec.name << " on rank " << tp.rank() << (split ? " of a split sequence" : "");
          EXPECT_EQ(p->contributions(), p->spec.gradient_uses) << p->spec.name;
        }
      });
    }
  }
}

TEST_P(TaskHeads, GradientScaleScalesGradientsAlone) {
  const TransformerOptions options = options_of(GetParam());
  const Batch batch = batch_of(GetParam().head);
  const auto weights = random_weights(options.shape, 9);
  std::vector<at::Tensor> gradients;
  std::vector<double> sums;
  for (const double scale : {1.0, 4.0}) {
    const auto store = make_store(options.shape, 1, 0, weights);
    const auto loss = TransformerStage(options, store, comm::Group()).loss({}, batch, true, scale);
    loss.sum.backward();
    sums.push_back(loss.sum.item<double>());
    gradients.push_back(store.get(options.shape.stack() + "layers.0.mlp.linear_fc1.weight")->grad.clone());
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_NEAR_TENSOR(gradients[1], gradients[0] * 4, 1e-13);
}

TEST(TaskHead, EvaluationGivesLogitsOfEachSample) {
  const TransformerOptions options = options_of({"", true, plan::Head::Span});
  const auto store = make_store(options.shape, 1, 0, random_weights(options.shape, 9));
  const TransformerStage gpt(options, store, comm::Group());
  const auto logits = gpt.loss(batch_of(plan::Head::Span), false).task_logits;
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({4, 8, 2}));
  EXPECT_TRUE(logits[1].slice(0, 0, 5).isfinite().all().item<bool>());
  EXPECT_TRUE(logits[1].slice(0, 5).eq(-std::numeric_limits<double>::infinity()).all().item<bool>());
}

}  // namespace
}  // namespace megatron::model
