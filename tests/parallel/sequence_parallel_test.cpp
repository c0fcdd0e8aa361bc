#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "megatron/base/error.h"
#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/embedding.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/output_layer.h"
#include "tests/testing/tensors.h"

// Sequence parallelism: each layer against the dense one in doubles, and what it communicates. s = 8 positions.
namespace megatron::parallel {
namespace {

using megatron::testing::make_parameter;
using megatron::testing::slice_of;

constexpr double kTolerance = 1e-13;
constexpr std::int64_t kPositions = 8;

at::Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }
at::Tensor leaf(const at::Tensor& x) { return x.detach().clone(at::MemoryFormat::Contiguous).requires_grad_(true); }

/// The positions of this rank.
at::Tensor own_positions(const at::Tensor& x, const comm::Group& tp) {
  const std::int64_t n = x.size(0) / tp.size();
  return x.narrow(0, n * tp.rank(), n);
}
/// The features of this rank.
at::Tensor own_features(const at::Tensor& x, const comm::Group& tp) {
  const std::int64_t n = x.size(-1) / tp.size();
  return x.narrow(-1, n * tp.rank(), n).contiguous();
}

using Calls = std::map<std::string, std::int64_t>;

/// A group over the ranks of another, and what was called on it.
class Counted {
 public:
  explicit Counted(const comm::Group& inner)
      : group(inner.size() > 1 ? comm::CountingBackend::wrap(inner) : comm::Group()) {}
  const comm::Group group;

  /// Expects `calls` since the last time, and nothing at all of a group of one.
  void expect(const Calls& calls, const std::string& when) const {
    if (group.size() == 1) return;
    Calls got;
    for (const auto& [name, count] : comm::CountingBackend::of(group).counts()) got[name] = count.calls;
    EXPECT_EQ(got, calls) << when << ", " << group.size() << " ranks";
    comm::CountingBackend::of(group).reset();
  }
};

/// x, W, b, dy of a layer 8 -> 12 and the gradients that autograd gives the dense layer.
struct DenseLinear {
  at::Tensor x = random({kPositions, 2, 8}).requires_grad_(true), w = random({12, 8}).requires_grad_(true);
  at::Tensor b = random({12}).requires_grad_(true), dy = random({kPositions, 2, 12}), y;

  DenseLinear() {
    y = at::linear(x, w, b);
    y.backward(dy);
  }
};

class SequenceParallel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, SequenceParallel, ::testing::Values(1, 2, 4));

TEST_P(SequenceParallel, ColumnParallelLinearGathersPositionsAndMatchesTheDenseLayer) {
  const DenseLinear dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("w", dense.w, 0, world.size(), world.rank());
    const auto b = make_parameter("b", dense.b, 0, world.size(), world.rank());
    const ColumnParallelLinear layer(w, b, tp.group, {.sequence_parallel = true});
    const auto x = leaf(own_positions(dense.x, world));
    const auto y = layer.forward(x);
    tp.expect({{"all_gather", 1}}, "forward");
    EXPECT_NEAR_TENSOR(y, own_features(dense.y, world), kTolerance);
    y.backward(own_features(dense.dy, world));
    tp.expect({{"all_gather", 1}, {"reduce_scatter", 1}}, "backward");
    EXPECT_NEAR_TENSOR(x.grad(), own_positions(dense.x.grad(), world), kTolerance);
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), kTolerance);
    EXPECT_NEAR_TENSOR(b->grad, slice_of(dense.b.grad(), b->spec), kTolerance);
  });
}

TEST_P(SequenceParallel, ColumnParallelLinearGathersItsOutputWhereAskedTo) {
  const DenseLinear dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
    const auto w = make_parameter("w", dense.w, 0, tp.size(), tp.rank());
    const auto b = make_parameter("b", dense.b, 0, tp.size(), tp.rank());
    const ColumnParallelLinear layer(w, b, tp, {.gather_output = true, .sequence_parallel = true});
    const auto x = leaf(own_positions(dense.x, tp));
    const auto y = layer.forward(x);
    EXPECT_NEAR_TENSOR(y, dense.y, kTolerance);
    y.backward(dense.dy);
    EXPECT_NEAR_TENSOR(x.grad(), own_positions(dense.x.grad(), tp), kTolerance);
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), kTolerance);
  });
}

TEST_P(SequenceParallel, ColumnParallelLinearRemakesItsOwnPositionsAndGathersThem) {
  const DenseLinear dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("w", dense.w, 0, world.size(), world.rank());
    const ColumnParallelLinear layer(w, nullptr, tp.group, {.sequence_parallel = true});
    const auto x = leaf(own_positions(dense.x, world));
    int calls = 0;
    const auto y = layer.forward(x, [&] {
      ++calls;
      return own_positions(dense.x.detach(), world);
    });
    x.detach().zero_();  // a kept input would now give a zero gradient
    EXPECT_EQ(calls, 0);
    y.backward(own_features(dense.dy, world));
    EXPECT_EQ(calls, 1);
    tp.expect({{"all_gather", 2}, {"reduce_scatter", 1}}, "both passes");
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), kTolerance);
  });
}

TEST_P(SequenceParallel, AnInputThatNeedsNoGradientIsNotReduced) {
  const DenseLinear dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("w", dense.w, 0, world.size(), world.rank());
    const ColumnParallelLinear layer(w, nullptr, tp.group, {.sequence_parallel = true});
    const auto y = layer.forward(own_positions(dense.x.detach(), world));
    y.backward(own_features(dense.dy, world));
    tp.expect({{"all_gather", 2}}, "both passes");
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), kTolerance);
  });
}

TEST_P(SequenceParallel, RowParallelLinearScattersPositionsAndLeavesThePartialBiasGradient) {
  const DenseLinear dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("w", dense.w, 1, world.size(), world.rank());
    const auto b = make_parameter("b", dense.b, -1, world.size(), world.rank());
    const RowParallelLinear layer(w, b, tp.group, {.sequence_parallel = true});
    const auto x = leaf(own_features(dense.x, world));
    const auto y = layer.forward(x);
    tp.expect({{"reduce_scatter", 1}}, "forward");
    EXPECT_NEAR_TENSOR(y, own_positions(dense.y, world), kTolerance);
    y.backward(own_positions(dense.dy, world));
    tp.expect({{"all_gather", 1}}, "backward");
    EXPECT_NEAR_TENSOR(x.grad(), own_features(dense.x.grad(), world), kTolerance);
    EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), kTolerance);
    EXPECT_NEAR_TENSOR(b->grad, own_positions(dense.dy, world).sum(at::IntArrayRef{0, 1}), kTolerance);
    world.all_reduce(b->grad);
    EXPECT_NEAR_TENSOR(b->grad, dense.b.grad(), kTolerance);
  });
}

TEST(SequenceParallelLinear, RowParallelLinearRefusesAWholeInput) {
  const DenseLinear dense;
  EXPECT_THROW(RowParallelLinear(make_parameter("w", dense.w, 1, 1, 0), nullptr, {},
                                 {.input_is_parallel = false, .sequence_parallel = true}),
               std::invalid_argument);
}

/// The four linear layers of a transformer layer, one after the other: 8 -> 12 -> 8 -> 16 -> 8.
struct FourLayers {
  ParameterPtr qkv, proj, fc1, fc2;
  std::shared_ptr<GradientQueue> queue = std::make_shared<GradientQueue>();

  FourLayers(const std::vector<at::Tensor>& w, const comm::Group& tp)
      : qkv(make_parameter("qkv", w[0], 0, tp.size(), tp.rank())),
        proj(make_parameter("proj", w[1], 1, tp.size(), tp.rank())),
        fc1(make_parameter("fc1", w[2], 0, tp.size(), tp.rank())),
        fc2(make_parameter("fc2", w[3], 1, tp.size(), tp.rank())) {
    for (const auto& parameter : all()) parameter->queue = queue;
  }
  std::vector<ParameterPtr> all() const { return {qkv, proj, fc1, fc2}; }

  at::Tensor forward(const at::Tensor& x, const comm::Group& tp, bool sequence) const {
    const auto column = [&](const ParameterPtr& w, const at::Tensor& in) {
      return ColumnParallelLinear(w, nullptr, tp, {.sequence_parallel = sequence}).forward(in);
    };
    const auto row = [&](const ParameterPtr& w, const at::Tensor& in) {
      return RowParallelLinear(w, nullptr, tp, {.sequence_parallel = sequence}).forward(in);
    };
    return row(fc2, column(fc1, row(proj, column(qkv, x))));
  }
};

struct DenseFour {
  std::vector<at::Tensor> w;
  at::Tensor x = random({kPositions, 2, 8}).requires_grad_(true), dy = random({kPositions, 2, 8}), y;

  DenseFour() {
    for (const auto& [out, in] : {std::pair{12, 8}, {8, 12}, {16, 8}, {8, 16}})
      w.push_back(random({out, in}).requires_grad_(true));
    y = x;
    for (const auto& matrix : w) y = at::linear(y, matrix);
    y.backward(dy);
  }
};

TEST_P(SequenceParallel, ALayerSendsFourGathersAndFourScattersAndGathersTwoInputsAgain) {
  const DenseFour dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const FourLayers layers(dense.w, tp.group);
    const auto x = leaf(own_positions(dense.x, world));
    const auto y = layers.forward(x, tp.group, true);
    tp.expect({{"all_gather", 2}, {"reduce_scatter", 2}}, "forward");
    EXPECT_NEAR_TENSOR(y, own_positions(dense.y, world), kTolerance);
    y.backward(own_positions(dense.dy, world));
    tp.expect({{"all_gather", 2 + 2}, {"reduce_scatter", 2}}, "backward");
    EXPECT_NEAR_TENSOR(x.grad(), own_positions(dense.x.grad(), world), kTolerance);
    for (std::size_t k = 0; k < 4; ++k)
      EXPECT_NEAR_TENSOR(layers.all()[k]->grad, slice_of(dense.w[k].grad(), layers.all()[k]->spec), kTolerance);
  });
}

TEST_P(SequenceParallel, PutOffWeightGradientsGatherWhatTheyNeedWhenTheyAreComputed) {
  const DenseFour dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const FourLayers layers(dense.w, tp.group);
    layers.queue->defer(true);
    const auto x = leaf(own_positions(dense.x, world));
    layers.forward(x, tp.group, true).backward(own_positions(dense.dy, world));
    tp.expect({{"all_gather", 2 + 2}, {"reduce_scatter", 2 + 2}}, "forward and input gradients");
    EXPECT_NEAR_TENSOR(x.grad(), own_positions(dense.x.grad(), world), kTolerance);
    for (const auto& parameter : layers.all()) EXPECT_EQ(parameter->contributions(), 0);
    auto pieces = layers.queue->take();
    EXPECT_EQ(pieces.size(), 4U);
    run_pieces(std::move(pieces));
    tp.expect({{"all_gather", 4}}, "weight gradients");
    for (std::size_t k = 0; k < 4; ++k)
      EXPECT_NEAR_TENSOR(layers.all()[k]->grad, slice_of(dense.w[k].grad(), layers.all()[k]->spec), kTolerance);
  });
}

TEST_P(SequenceParallel, GivesTheBitsOfTensorParallelismAlone) {
  const DenseFour dense;
  std::vector<at::Tensor> weights;
  for (const auto& w : dense.w) weights.push_back(w.detach().to(at::kFloat));
  comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
    const FourLayers split(weights, tp), whole(weights, tp);
    const auto x = leaf(dense.x.to(at::kFloat)), x_own = leaf(own_positions(x, tp)), dy = dense.dy.to(at::kFloat);
    const auto y = whole.forward(x, tp, false), y_own = split.forward(x_own, tp, true);
    EXPECT_TRUE(at::equal(y_own, own_positions(y, tp)));
    y.backward(dy);
    y_own.backward(own_positions(dy, tp));
    EXPECT_TRUE(at::equal(x_own.grad(), own_positions(x.grad(), tp)));
    for (std::size_t k = 0; k < 4; ++k) EXPECT_TRUE(at::equal(split.all()[k]->grad, whole.all()[k]->grad)) << k;
  });
}

TEST_P(SequenceParallel, EmbeddingGivesEachRankItsPositions) {
  const auto table = random({12, 5}).requires_grad_(true);
  const auto ids = at::randint(0, 10, {kPositions, 2}, at::kLong);
  const auto dy = random({kPositions, 2, 5}), expected = at::embedding(table, ids);
  expected.backward(dy);
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("table", table, 0, world.size(), world.rank());
    const VocabParallelEmbedding embedding(w, 10, "token id", tp.group, {.sequence_parallel = true});
    for (const int times : {1, 2}) {
      const auto y = embedding.forward(ids);
      tp.expect({{"reduce_scatter", 1}}, "forward");
      EXPECT_NEAR_TENSOR(y, own_positions(expected, world), 0);
      y.backward(own_positions(dy, world));
      tp.expect({{"all_gather", 1}}, "backward");
      EXPECT_NEAR_TENSOR(w->grad, slice_of(table.grad() * times, w->spec), kTolerance);
    }
  });
}

TEST_P(SequenceParallel, ATableThatIsNotSplitLooksUpTheRanksOwnPositions) {
  const auto table = random({9, 5}).requires_grad_(true);
  const auto ids = at::randint(0, 9, {kPositions, 2}, at::kLong);
  const auto dy = random({kPositions, 2, 5}), expected = at::embedding(table, ids);
  expected.backward(dy);
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("positions", table, -1, world.size(), world.rank());
    for (const bool sequence : {false, true}) {
      const VocabParallelEmbedding embedding(w, 9, "position id", tp.group, {.sequence_parallel = sequence});
      const auto part = [&](const at::Tensor& x) { return sequence ? own_positions(x, world) : x; };
      w->clear_gradient();
      const auto y = embedding.forward(ids);
      EXPECT_NEAR_TENSOR(y, part(expected), 0);
      y.backward(part(dy));
      tp.expect({}, "both passes");
      if (sequence) world.all_reduce(w->grad);
      EXPECT_NEAR_TENSOR(w->grad, table.grad(), kTolerance);
    }
  });
}

TEST(SequenceParallelEmbedding, EveryRankNamesAnIdOutsideThatAnotherRankWouldLookUp) {
  comm::run_ranks(2, [](const comm::Group& tp) {
    const auto ids = at::tensor({0, 1, 2, 9}, at::kLong).view({4, 1});  // the last of rank 1's positions
    const VocabParallelEmbedding embedding(make_parameter("positions", random({9, 5}), -1, 2, tp.rank()), 9,
                                           "position id", tp, {.sequence_parallel = true});
    try {
      embedding.forward(ids);
      ADD_FAILURE() << "accepted on rank " << tp.rank();
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("position id 9 at position 3 of sample 0"));
    }
  });
}

/// Output layer of 9 tokens in 12 rows.
struct DenseOutput {
  static constexpr std::int64_t kVocab = 9, kHidden = 6;
  at::Tensor hidden = random({kPositions, 2, kHidden}).requires_grad_(true);
  at::Tensor w = random({12, kHidden}).requires_grad_(true);
  at::Tensor labels = at::randint(0, kVocab, {kPositions, 2}, at::kLong);
  /// Every third token does not count and has no logits.
  at::Tensor mask = at::arange(2 * kPositions, at::kDouble).remainder(3).view({kPositions, 2}), logits, loss;

  DenseOutput() {
    logits = at::linear(hidden, w.narrow(0, 0, kVocab));
    const auto losses =
        at::cross_entropy_loss(logits.view({-1, kVocab}), labels.view({-1}), {}, at::Reduction::None, -100, 0.2);
    loss = (losses * mask.view({-1})).sum();
    loss.backward();
  }
};

TEST_P(SequenceParallel, OutputLayerGathersHiddenOnceAndScattersItsGradient) {
  const DenseOutput dense;
  for (const int chunk : {0, 5})
    comm::run_ranks(GetParam(), [&](const comm::Group& world) {
      const Counted tp(world);
      const auto w = make_parameter("w", dense.w, 0, world.size(), world.rank());
      const VocabParallelOutput output(
          w, tp.group,
          {.vocab = DenseOutput::kVocab, .label_smoothing = 0.2, .chunk_tokens = chunk, .sequence_parallel = true});
      const auto hidden = leaf(own_positions(dense.hidden, world));
      const auto loss = output.loss_sum(hidden, dense.labels, dense.mask);
      const auto counted = dense.mask.gt(0).sum().item<std::int64_t>();
      const std::int64_t chunks = chunk == 0 ? 1 : (counted + chunk - 1) / chunk;
      tp.expect({{"all_gather", 1}, {"all_reduce", 2 * chunks}, {"reduce_scatter", 1}}, "forward");
      EXPECT_NEAR_TENSOR(loss, dense.loss, kTolerance);
      loss.backward();
      tp.expect({}, "backward");
      EXPECT_NEAR_TENSOR(hidden.grad(), own_positions(dense.hidden.grad(), world), kTolerance);
      EXPECT_NEAR_TENSOR(w->grad, slice_of(dense.w.grad(), w->spec), kTolerance);
    });
}

TEST_P(SequenceParallel, LogitsAreThoseOfAllPositionsOnEveryRank) {
  const DenseOutput dense;
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const Counted tp(world);
    const auto w = make_parameter("w", dense.w, 0, world.size(), world.rank());
    const VocabParallelOutput output(w, tp.group, {.vocab = DenseOutput::kVocab, .sequence_parallel = true});
    EXPECT_NEAR_TENSOR(output.logits(own_positions(dense.hidden, world)), dense.logits, kTolerance);
    tp.expect({{"all_gather", 2}}, "logits");
  });
}

}  // namespace
}  // namespace megatron::parallel
