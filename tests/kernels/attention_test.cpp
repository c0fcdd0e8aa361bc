#include "megatron/kernels/attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "megatron/kernels/cpu/products/tiles.h"
#include "megatron/kernels/decode.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: the reference in float64 (attention_reference_test.cpp).
namespace megatron::kernels {
namespace {

struct Shape {
  std::int64_t queries, keys, batch, heads, size, groups = 0;  ///< groups 0: as many as heads
};

/// Views of one fused projection [s, b, groups, (queries, key, value), d], as the model gives them.
struct Heads {
  at::Tensor fused_q, fused_kv, q, k, v;
  Heads(const at::Tensor& of_queries, const at::Tensor& of_keys) : fused_q(of_queries), fused_kv(of_keys) {
    const std::int64_t sharing = fused_q.size(3) - 2;
    q = sharing == 1 ? fused_q.select(3, 0) : fused_q.narrow(3, 0, sharing);
    k = fused_kv.select(3, sharing);
    v = fused_kv.select(3, sharing + 1);
  }
};

Heads heads_of(const Shape& s, at::ScalarType dtype, bool random) {
  const std::int64_t groups = s.groups > 0 ? s.groups : s.heads, parts = s.heads / groups + 2;
  const auto make = [&](std::int64_t positions) {
    const std::vector<std::int64_t> shape{positions, s.batch, groups, parts, s.size};
    return random ? at::randn(shape).to(dtype) : at::full(shape, 7, dtype);
  };
  const at::Tensor of_queries = make(s.queries);
  return {of_queries, s.queries == s.keys ? of_queries : make(s.keys)};
}

void expect_matches_reference(const Shape& shape, const AttentionOptions& options, at::ScalarType dtype,
                              double tolerance) {
  SCOPED_TRACE(testing::Message() << "queries " << shape.queries << " keys " << shape.keys << " batch " << shape.batch
                                  << " heads " << shape.heads << " size " << shape.size << " groups " << shape.groups
                                  << " " << c10::toString(dtype));
  const Heads c = heads_of(shape, dtype, true);
  const at::Tensor dout = at::randn({shape.queries, shape.batch, shape.heads, shape.size}).to(dtype);
  const AttentionOutput truth = reference::attention(wide(c.q), wide(c.k), wide(c.v), options);
  const AttentionOutput got = attention(c.q, c.k, c.v, options);
  EXPECT_TRUE(got.out.is_contiguous());
  EXPECT_EQ(got.out.scalar_type(), dtype);
  EXPECT_LT(relative_error(got.out, truth.out), tolerance);
  const at::Tensor seen = truth.logsumexp.isfinite();
  EXPECT_TRUE(got.logsumexp.isfinite().equal(seen));
  EXPECT_LT(relative_error(got.logsumexp.masked_select(seen), truth.logsumexp.masked_select(seen)), 1e-6);

  at::Tensor dq64 = at::empty(c.q.sizes(), at::kDouble), dk64 = at::empty(c.k.sizes(), at::kDouble);
  at::Tensor dv64 = at::empty(c.v.sizes(), at::kDouble);
  const auto empty_bias = [&](at::ScalarType type) {
    return options.bias.defined() ? at::full(options.bias.sizes(), 7, type) : at::Tensor();
  };
  const at::Tensor dbias64 = empty_bias(at::kDouble), dbias = empty_bias(at::kFloat);
  reference::attention_backward(wide(dout), wide(c.q), wide(c.k), wide(c.v), truth, options, dq64, dk64, dv64, dbias64);
  const Heads grads = heads_of(shape, dtype, false);
  attention_backward(dout, c.q, c.k, c.v, got, options, grads.q, grads.k, grads.v, dbias);
  if (dbias.defined()) {
    EXPECT_LT(relative_error(dbias, dbias64), tolerance);
  }
  const double least = 0.05 * dout.norm().item<double>();  // a query that sees one key has no gradient
  EXPECT_LT(relative_error(grads.q, dq64, least), tolerance);
  EXPECT_LT(relative_error(grads.k, dk64, least), tolerance);
  EXPECT_LT(relative_error(grads.v, dv64), tolerance);
  if (options.sinks.defined()) {
    const at::Tensor delta = (wide(dout) * truth.out).sum(-1).permute({1, 2, 0});
    const at::Tensor terms = (options.sinks.view({1, -1, 1}) - truth.logsumexp).exp() * delta;
    EXPECT_LT(relative_error(sink_gradient(dout, got, options.sinks), sink_gradient(wide(dout), truth, options.sinks),
                             terms.norm().item<double>()),
              tolerance);
  }
  if (shape.queries != shape.keys) {
    EXPECT_TRUE(grads.fused_q.narrow(3, grads.fused_q.size(3) - 2, 2).eq(7).all().item<bool>());
  }
}

/// With the errors of storing in the dtype, and a few units of float32's sums.
void expect_matches_reference(const Shape& shape, const AttentionOptions& options, at::ScalarType dtype = at::kFloat) {
  const double tolerance = dtype == at::kBFloat16 ? 4e-3 : dtype == at::kHalf ? 6e-4 : 2e-6;
  expect_matches_reference(shape, options, dtype, tolerance);
}

/// In memory that begins as NaNs, so that nothing passes that reads what it has not written.
class AttentionTest : public OnEveryInstructionSet {
 protected:
  void SetUp() override {
    OnEveryInstructionSet::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);  // at::empty fills what it gives
    ASSERT_TRUE(at::empty({64}, at::kFloat).isnan().all().item<bool>());
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnEveryInstructionSet::TearDown();
  }
};

TEST_F(AttentionTest, MatchesTheReferenceForwardAndBackwardForAnyShape) {
  on_each([] {
    for (const Shape& shape : {Shape{1, 1, 1, 1, 1}, Shape{5, 5, 2, 3, 7}, Shape{16, 16, 1, 2, 16},
                               Shape{97, 97, 2, 2, 24}, Shape{130, 130, 1, 3, 64}, Shape{300, 300, 1, 1, 128}}) {
      expect_matches_reference(shape, {});
      expect_matches_reference(shape, {.scale = 0.3, .causal = false});
    }
  });
}

TEST_F(AttentionTest, AddsABiasByDistanceAndGivesItsGradient) {
  on_each([] {
    for (const Shape& shape : {Shape{5, 5, 2, 3, 7}, Shape{130, 130, 2, 2, 64}, Shape{300, 300, 1, 1, 16},
                               Shape{3, 40, 1, 2, 20}, Shape{100, 613, 1, 4, 32, 2}}) {
      AttentionOptions options{.scale = 1};
      options.bias = at::randn({shape.heads, shape.queries + shape.keys - 1}, at::kDouble);
      expect_matches_reference(shape, options);
      expect_matches_reference(shape, options, at::kBFloat16, 2e-2);
      options.causal = false;
      options.scale = 0.3;
      options.key_lengths = at::randint(0, shape.keys + 1, {shape.batch}, at::kInt);
      options.dropout = {.p = 0.2, .key = 5, .sample_ids = at::arange(shape.batch) + 3};
      expect_matches_reference(shape, options);
    }
  });
}

TEST_F(AttentionTest, CapsItsScores) {
  on_each([] {
    for (const Shape& shape : {Shape{5, 5, 2, 3, 7}, Shape{130, 130, 2, 2, 64}, Shape{300, 300, 1, 1, 16},
                               Shape{3, 40, 1, 2, 20}, Shape{100, 613, 1, 4, 32, 2}, Shape{1, 300, 2, 4, 64, 2}}) {
      AttentionOptions options{.scale = 0.7, .soft_cap = 1.5};
      expect_matches_reference(shape, options, at::kFloat, 5e-6);  // tanh has 3e-7
      expect_matches_reference(shape, options, at::kBFloat16, 2e-2);
      options.soft_cap = 50;
      options.first_key = at::randint(0, shape.keys, {shape.batch, shape.queries}, at::kInt);
      options.dropout = {.p = 0.2, .key = 5, .sample_ids = at::arange(shape.batch) + 3};
      expect_matches_reference(shape, options, at::kFloat, 5e-6);  // tanh has 3e-7
    }
  });
}

TEST_F(AttentionTest, GivesSinksTheirShare) {
  on_each([] {
    for (const Shape& shape : {Shape{5, 5, 2, 3, 7}, Shape{130, 130, 2, 2, 64}, Shape{300, 300, 1, 1, 16},
                               Shape{3, 40, 1, 2, 20}, Shape{100, 613, 1, 4, 32, 2}, Shape{1, 300, 2, 4, 64, 2}}) {
      AttentionOptions options{.scale = 0.3};
      options.sinks = at::randn({shape.heads}, at::kDouble) * 4;
      expect_matches_reference(shape, options, at::kFloat, 4e-6);
      expect_matches_reference(shape, options, at::kBFloat16, 2e-2);
      options.soft_cap = 50;
      options.first_key = at::randint(0, shape.keys + 1, {shape.batch, shape.queries}, at::kInt);  // some see no key
      options.dropout = {.p = 0.2, .key = 5, .sample_ids = at::arange(shape.batch) + 3};
      expect_matches_reference(shape, options, at::kFloat, 5e-6);  // tanh has 3e-7
    }
  });
}

TEST_F(AttentionTest, SeesTheWholeCacheBeforeTheQueries) {
  on_each([] {
    for (const Shape& shape :
         {Shape{1, 300, 2, 3, 64}, Shape{3, 40, 1, 2, 20}, Shape{8, 9, 1, 1, 16}, Shape{100, 613, 1, 1, 32}}) {
      expect_matches_reference(shape, {});
    }
  });
}

TEST_F(AttentionTest, SeesNothingWhereThereAreFewerKeysThanQueries) {
  on_each([] {
    expect_matches_reference({12, 7, 1, 2, 16}, {});
    expect_matches_reference({400, 100, 1, 1, 16}, {});
  });
}

TEST_F(AttentionTest, KeepsPackedDocumentsApart) {
  on_each([] {
    const Shape shape{700, 700, 2, 1, 16};
    AttentionOptions options;
    options.first_key = at::zeros({2, 700}, at::kInt);
    options.first_key.select(0, 0).narrow(0, 100, 600).fill_(100);
    options.first_key.select(0, 0).narrow(0, 530, 170).fill_(530);
    options.first_key.select(0, 1).narrow(0, 3, 697).fill_(3);
    expect_matches_reference(shape, options);
  });
}

TEST_F(AttentionTest, SeesNoKeyOfThePadding) {
  on_each([] {
    for (const bool causal : {false, true}) {
      AttentionOptions options;
      options.causal = causal;
      options.key_lengths = at::tensor({1, 300, 0, 270}, at::kInt);
      expect_matches_reference({300, 300, 4, 1, 16}, options);
      options.key_lengths = at::tensor({39, 7}, at::kInt);
      expect_matches_reference({5, 40, 2, 2, 16}, options);
    }
  });
}

TEST_F(AttentionTest, SeesKeysAheadInWindowsOnBothSides) {
  on_each([] {
    for (const Shape& shape : {Shape{5, 5, 2, 3, 7}, Shape{130, 130, 2, 2, 64}, Shape{300, 300, 2, 4, 16, 2}}) {
      for (const std::int64_t window : {2, 33, 129, 1000}) {
        AttentionOptions options{.ahead = window - 1};
        options.first_key = first_keys_of_windows(shape.batch, shape.queries, window);
        expect_matches_reference(shape, options);
        expect_matches_reference(shape, options, at::kBFloat16, 2e-2);  // of few keys, and by dots of pairs too
        options.key_lengths = at::randint(0, shape.keys + 1, {shape.batch}, at::kInt);
        options.dropout = {.p = 0.2, .key = 5, .sample_ids = at::arange(shape.batch) + 3};
        expect_matches_reference(shape, options);
      }
    }
  });
}

TEST_F(AttentionTest, DropsTheProbabilitiesThatTheMaskNames) {
  on_each([] {
    AttentionOptions options;
    options.dropout = {.p = 0.3,
                       .key = 0x123456789ABCDEF,
                       .sample_ids = at::tensor(std::vector<std::int64_t>{5, std::int64_t{1} << 40})};
    options.head_offset = 2;
    expect_matches_reference({5, 5, 2, 3, 8}, options);
    expect_matches_reference({101, 101, 2, 1, 16}, options);
    options.causal = false;
    expect_matches_reference({17, 259, 2, 1, 16}, options);
  });
}

TEST_F(AttentionTest, DropsAsInTheWholeSequenceThatItsQueriesAndKeysAreOf) {
  on_each([] {
    AttentionOptions options;
    options.dropout = {.p = 0.3,
                       .key = 0x123456789ABCDEF,
                       .sample_ids = at::tensor(std::vector<std::int64_t>{5, std::int64_t{1} << 40}),
                       .position_offset = 200,
                       .features = 400,
                       .feature_offset = 13,
                       .positions = 300};
    options.head_offset = 2;
    for (const bool causal : {false, true}) {
      options.causal = causal;
      expect_matches_reference({17, 259, 2, 1, 16}, options);
      expect_matches_reference({98, 101, 2, 4, 24, 2}, options);
    }
  });
}

// Few heads with many keys, and several that share them: pieces of keys and of heads (backward_pieces.h).
TEST_F(AttentionTest, SumsGradientsOverPiecesOfKeysAndHeads) {
  on_each([] {
    for (const Shape& shape : {Shape{1100, 1100, 1, 1, 16}, Shape{70, 1500, 1, 1, 24}, Shape{600, 900, 1, 5, 32, 1},
                               Shape{300, 700, 2, 20, 16, 1}}) {
      AttentionOptions options;
      expect_matches_reference(shape, options);
      expect_matches_reference(shape, options, at::kBFloat16, 2e-2);
      options.causal = false;
      options.first_key = at::randint(0, shape.keys + 1, {shape.batch, shape.queries}, at::kInt);  // some see no key
      options.key_lengths = at::randint(1, shape.keys - 300, {shape.batch}, at::kInt);  // nobody sees the last parts
      options.dropout = {.p = 0.2, .key = 5, .sample_ids = at::arange(shape.batch) + 3};
      expect_matches_reference(shape, options);
    }
  });
}

/// A causal window over `seen` keys.
AttentionOptions window_of(const Shape& shape, std::int64_t seen) {
  AttentionOptions options;
  options.first_key = first_keys_of_windows(shape.batch, shape.queries, seen);
  return options;
}

// Parts of neighbouring keys: queries whose window lies in one, is shared by two, and, with heads enough that all keys
// of one are a piece, by parts of one thread.
TEST_F(AttentionTest, SumsGradientsOverPiecesOfKeysInWindows) {
  on_each([] {
    for (const Shape& shape : {Shape{1100, 1100, 1, 1, 16}, Shape{1100, 1100, 1, 16, 8}, Shape{600, 600, 2, 4, 32, 1}})
      for (const std::int64_t seen : {100, 257}) {
        AttentionOptions options = window_of(shape, seen);
        expect_matches_reference(shape, options);
        expect_matches_reference(shape, options, at::kBFloat16, 2e-2);
        options.first_key.narrow(1, 300, 40).fill_(shape.keys);  // these see nothing
        options.dropout = {.p = 0.2, .key = 5, .sample_ids = at::arange(shape.batch) + 3};
        expect_matches_reference(shape, options);
        expect_matches_reference(shape, options, at::kBFloat16, 2e-2);
      }
  });
}

TEST_F(AttentionTest, SharesKeysAndValuesWithinGroups) {
  on_each([] {
    AttentionOptions dropout;
    dropout.dropout = {.p = 0.3, .key = 11, .sample_ids = at::tensor(std::vector<std::int64_t>{5, 6})};
    dropout.head_offset = 6;
    for (const Shape& shape : {Shape{16, 16, 2, 6, 16, 3}, Shape{5, 5, 2, 4, 7, 1}, Shape{98, 101, 2, 4, 24, 2}})
      expect_matches_reference(shape, dropout);
    for (const Shape& shape : {Shape{130, 130, 1, 9, 64, 3}, Shape{40, 300, 2, 8, 24, 2}})
      expect_matches_reference(shape, {});
  });
}

TEST_F(AttentionTest, ReadsAndWritesHalves) {
  on_each([] {
    AttentionOptions options;
    options.dropout = {.p = 0.2, .key = 11, .sample_ids = at::tensor(std::vector<std::int64_t>{5, 6})};
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      expect_matches_reference({17, 90, 2, 3, 7}, options, dtype);
      for (const Shape& shape : {Shape{130, 130, 1, 9, 64, 3}, Shape{300, 300, 1, 1, 40}, Shape{12, 7, 2, 2, 16}})
        expect_matches_reference(shape, {}, dtype);
    }
  });
}

TEST_F(AttentionTest, DecodesAgainstALongCache) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const Shape& shape : {Shape{1, 400, 2, 9, 64, 3}, Shape{8, 385, 1, 4, 20, 2}, Shape{4, 4, 2, 2, 16},
                                 Shape{3, 129, 1, 8, 80, 1}}) {
        expect_matches_reference(shape, {}, dtype);
      }
      AttentionOptions padded;  // the prompt of the second sample began later, that of the first long ago
      padded.first_key = at::tensor({3, 3, 250, 250}, at::kInt).view({2, 2});
      expect_matches_reference({2, 300, 2, 6, 32, 2}, padded, dtype);
      padded.causal = false;
      expect_matches_reference({2, 300, 2, 6, 32, 2}, padded, dtype);
    }
  });
}

using AttentionOnTiles = OnEmulatedTiles;
constexpr double kOnTiles = 6e-3;  // of few numbers: probabilities and their gradients are rounded as well

TEST_F(AttentionOnTiles, MatchesTheReferenceForAnyShape) {
  on_each([] {
    for (const Shape& shape :
         {Shape{9, 9, 3, 8, 5}, Shape{33, 33, 2, 2, 20}, Shape{64, 64, 1, 1, 32}, Shape{97, 613, 1, 1, 80},
          Shape{520, 520, 1, 1, 16}, Shape{12, 7, 2, 2, 16}, Shape{400, 100, 1, 1, 16}}) {
      expect_matches_reference(shape, {}, at::kBFloat16, kOnTiles);
      expect_matches_reference(shape, {.scale = 0.3, .causal = false}, at::kBFloat16, kOnTiles);
    }
    expect_matches_reference({512, 512, 1, 2, 64}, {}, at::kBFloat16, 3e-3);
  });
}

TEST_F(AttentionOnTiles, SharesKeysAndValuesDropsAndKeepsDocumentsApart) {
  on_each([] {
    AttentionOptions options;
    options.dropout = {.p = 0.3, .key = 11, .sample_ids = at::tensor(std::vector<std::int64_t>{5, 6})};
    expect_matches_reference({70, 70, 2, 6, 24, 3}, options, at::kBFloat16, kOnTiles);
    AttentionOptions padded;
    padded.causal = false;
    padded.key_lengths = at::tensor({300, 33}, at::kInt);
    expect_matches_reference({300, 300, 2, 2, 16}, padded, at::kBFloat16, kOnTiles);
    AttentionOptions documents;
    documents.first_key = at::zeros({1, 520}, at::kInt);
    documents.first_key.narrow(1, 100, 420).fill_(100);
    documents.first_key.narrow(1, 401, 119).fill_(401);
    documents.first_key.narrow(1, 160, 64).fill_(150);  // and a stretch that does not see what those after it see
    expect_matches_reference({520, 520, 1, 2, 16, 1}, documents, at::kBFloat16, kOnTiles);
  });
}

TEST_F(AttentionOnTiles, SeesWindowsOverPiecesOfKeys) {
  on_each([] {
    for (const Shape& shape : {Shape{700, 700, 1, 1, 16}, Shape{530, 530, 2, 4, 20, 1}})
      for (const std::int64_t seen : {33, 200}) {
        AttentionOptions options = window_of(shape, seen);
        expect_matches_reference(shape, options, at::kBFloat16, kOnTiles);
        options.first_key.narrow(1, 300, 40).fill_(shape.keys);  // these see nothing
        expect_matches_reference(shape, options, at::kBFloat16, kOnTiles);
      }
  });
}

TEST_F(AttentionTest, StaysExactForLargeScores) {
  on_each([] {
    const at::Tensor q = at::randn({300, 1, 1, 16}) * 100, k = at::randn({300, 1, 1, 16}) * 100,
                     v = at::randn({300, 1, 1, 16});
    const auto truth = reference::attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), {});
    EXPECT_LT(relative_error(attention(q, k, v, {}).out, truth.out),
              2e-3);  // scores of 1e5 keep 2 digits behind the point
  });
}

TEST_F(AttentionTest, LetsNanThrough) {
  on_each([] {
    at::Tensor q = at::randn({20, 1, 1, 16}), k = at::randn({20, 1, 1, 16});
    q.select(0, 11).fill_(std::nan(""));
    const at::Tensor out = attention(q, k, k, {}).out;
    EXPECT_TRUE(out.select(0, 11).isnan().all().item<bool>());
    EXPECT_FALSE(out.select(0, 10).isnan().any().item<bool>());
  });
}

TEST_F(AttentionTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  on_each([] {
    struct Case {
      Shape shape;
      std::int64_t seen = 0;  ///< of a window
      at::ScalarType dtype = at::kFloat;
    };
    for (const auto& [shape, seen, dtype] : std::vector<Case>{{{300, 300, 1, 5, 64}},
                                                              {{200, 200, 1, 9, 64, 3}},
                                                              {{2, 2000, 1, 9, 64, 3}},
                                                              {{900, 900, 1, 1, 16}},
                                                              {{400, 800, 1, 4, 16, 1}},
                                                              {{900, 900, 1, 2, 16}, 150},
                                                              {{900, 900, 1, 2, 16}, 150, at::kBFloat16}}) {
      const AttentionOptions options = seen > 0 ? window_of(shape, seen) : AttentionOptions();
      const Heads c = heads_of(shape, dtype, true);
      const at::Tensor dout = at::randn({shape.queries, shape.batch, shape.heads, shape.size}).to(dtype);
      AttentionOutput out[2];
      std::vector<Heads> grads;
      for (const int threads : {1, 2}) {
        configure_thread(threads);
        out[threads - 1] = attention(c.q, c.k, c.v, options);
        grads.push_back(heads_of(shape, dtype, false));
        attention_backward(dout, c.q, c.k, c.v, out[threads - 1], options, grads.back().q, grads.back().k,
                           grads.back().v);
      }
      configure_thread(1);
      EXPECT_TRUE(out[0].out.equal(out[1].out) && out[0].logsumexp.equal(out[1].logsumexp));
      EXPECT_TRUE(grads[0].fused_q.equal(grads[1].fused_q) && grads[0].fused_kv.equal(grads[1].fused_kv));
    }
  });
}

/// Keys or values [k, 1, g, d] in blocks of a pool [blocks, rows, g, d] whose other rows are NaN.
at::Tensor in_blocks(const at::Tensor& x, const std::vector<std::int64_t>& blocks, std::int64_t rows) {
  const at::Tensor pool = at::full({9, x.size(2), rows, x.size(3)}, std::nan(""), x.options()).transpose(1, 2);
  for (std::int64_t k = 0; k < x.size(0); ++k)
    pool[blocks[static_cast<std::size_t>(k / rows)]][k % rows].copy_(x[k][0]);
  return pool;
}

TEST_F(AttentionTest, OverBlocksGivesTheBitsOfKeysSideBySide) {
  on_each([] {
    struct Case {
      Shape shape;
      std::int64_t rows, window;
      double soft_cap;
      bool sinks, bias;
    };
    for (const Case& one : std::vector<Case>{{{1, 300, 1, 6, 64, 2}, 64, 0, 0, false, false},
                                             {{1, 257, 1, 4, 20}, 64, 100, 30, true, false},
                                             {{8, 320, 1, 6, 64, 2}, 64, 70, 0, true, false},
                                             {{3, 130, 1, 4, 36, 4}, 128, 0, 20, false, false},
                                             {{40, 300, 1, 6, 64, 2}, 64, 0, 0, true, false},
                                             {{200, 500, 1, 4, 48, 1}, 64, 129, 15, false, false},
                                             {{100, 100, 1, 2, 72}, 128, 0, 0, false, false},
                                             {{50, 90, 1, 4, 16}, 64, 0, 0, false, true},
                                             {{5, 50, 1, 4, 16, 2}, 16, 0, 0, false, false}})
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
        const Shape& s = one.shape;
        const Heads c = heads_of(s, dtype, true);
        const std::vector<std::int64_t> blocks = {7, 2, 5, 0, 8, 3, 1, 6};
        AttentionOptions options;
        options.soft_cap = one.soft_cap;
        if (one.window > 0)
          options.first_key =
              at::arange(s.keys - s.queries, s.keys, at::kInt).sub(one.window - 1).clamp_min(0).unsqueeze(0);
        const auto wider = dtype == at::kDouble ? at::kDouble : at::kFloat;
        if (one.sinks) options.sinks = at::randn({s.heads}, wider);
        if (one.bias) options.bias = at::randn({s.heads, s.queries + s.keys - 1}, wider);
        const at::Tensor k = in_blocks(c.k, blocks, one.rows), v = in_blocks(c.v, blocks, one.rows);
        const std::int64_t used = (s.keys + one.rows - 1) / one.rows;
        const at::Tensor table = at::tensor(blocks, at::kLong).narrow(0, 0, used);
        const AttentionOutput got = attention_over_blocks(c.q, k, v, table, s.keys, options),
                              want = attention(c.q, c.k, c.v, options);
        const AttentionOutput plain = reference::attention_over_blocks(c.q, k, v, table, s.keys, options);
        const double rounded = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-6 : 1e-2;
        EXPECT_LT(relative_error(plain.out, reference::attention(c.q, c.k, c.v, options).out), rounded);
        if (dtype == at::kDouble || one.rows < 64) {  // by the reference, whose products mind how matrices lie
          EXPECT_LT(relative_error(got.out, want.out), rounded);
          continue;
        }
        EXPECT_TRUE(got.out.equal(want.out)) << s.queries << " over " << s.keys << ", " << dtype;
        EXPECT_TRUE(got.logsumexp.equal(want.logsumexp)) << s.queries << " over " << s.keys << ", " << dtype;
      }
  });
}

// Of sequences of all lengths, some of which see their last keys alone: in one piece of work, or several.
TEST_F(AttentionTest, AStepOverBlocksGivesEachSequenceWhatItGetsAlone) {
  on_each([] {
    constexpr std::int64_t kRows = 64, kBlocks = 9, kGroups = 2, kSharing = 3;
    const std::vector<std::int64_t> lengths = {0, 63, 64, 130, 300, 517};
    const std::int64_t texts = std::ssize(lengths);
    for (const std::int64_t size : {64, 20})
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor order = at::randperm(texts * kBlocks, at::kLong);
        const auto pool = [&] {
          const std::vector<std::int64_t> shape{texts * kBlocks, kGroups, kRows, size};
          return at::full(shape, std::nan(""), at::TensorOptions(dtype)).transpose(1, 2);
        };
        const at::Tensor k_pool = pool(), v_pool = pool();
        const at::Tensor qkv = at::randn({texts, kGroups * (kSharing + 2) * size}).to(dtype);
        std::vector<SequenceBlocks> sequences;
        std::vector<at::Tensor> alone;
        CacheStep step{.batch = 1,
                       .heads = kGroups * kSharing,
                       .groups = kGroups,
                       .head_size = size,
                       .rope = {},
                       .position_b = {},
                       .sinks = {},
                       .first_key_b = {}};
        for (std::int64_t i = 0; i < texts; ++i) {
          const std::int64_t length = lengths[static_cast<std::size_t>(i)], first = length > 200 ? 190 : 0;
          const auto* blocks = order.const_data_ptr<std::int64_t>() + i * kBlocks;
          sequences.push_back({{blocks, kBlocks}, length, first});
          const at::Tensor k = at::randn({length + 1, 1, kGroups, size}).to(dtype), v = at::randn_like(k);
          for (std::int64_t row = 0; row < length; row += kRows)
            for (const auto& [to, from] : {std::pair(k_pool, k), std::pair(v_pool, v)}) {
              const std::int64_t count = std::min(kRows, length - row);
              to.select(0, blocks[row / kRows]).narrow(0, 0, count).copy_(from.narrow(0, row, count).squeeze(1));
            }
          const at::Tensor first_key = at::full({1, 1}, first, at::kInt), own = qkv.narrow(0, i, 1);
          alone.push_back(at::empty({1, step.heads * size}, qkv.options()));
          step.length = length;
          step.first_key_b = first_key.select(1, 0);
          attend_to_cache(alone.back(), own, k, v, step, attention_scratch(step));
          const at::Tensor q = own.view({1, 1, kGroups, kSharing + 2, size}).narrow(3, 0, kSharing);
          AttentionOptions options;
          options.first_key = first_key;
          const at::Tensor truth = reference::attention(wide(q), wide(k), wide(v), options).out;
          const double rounded = dtype == at::kFloat ? 1e-6 : unit_roundoff(dtype);
          EXPECT_LT(relative_error(alone.back(), truth.view({1, -1})), rounded) << length << ", " << dtype;
        }
        step.batch = texts;
        step.first_key_b = at::Tensor();
        for (const int threads : {1, 2}) {
          configure_thread(threads);
          const at::Tensor out = at::full({texts, step.heads * size}, 7, qkv.options());
          attend_to_blocks(out, qkv, k_pool, v_pool, sequences, step, attention_scratch(step));
          for (std::int64_t i = 0; i < texts; ++i)
            EXPECT_TRUE(out[i].equal(alone[static_cast<std::size_t>(i)][0])) << i << ", " << size << ", " << dtype;
        }
        configure_thread(1);
      }
  });
}

}  // namespace
}  // namespace megatron::kernels
