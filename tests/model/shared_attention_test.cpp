#include "megatron/model/sequence/shared_attention.h"
#include "megatron/parallel/sequence_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/model/attention.h"
#include "tests/testing/tensors.h"

// Attention of ranks that share sequences against attention of one that has all of them.
namespace megatron::model {
namespace {

using plan::SequenceExchange;

constexpr std::int64_t kTokens = 24, kBatch = 2, kHeadSize = 8;

struct Model {
  const char* name;
  std::int64_t groups = 4, ratio = 1, window = 0;
  bool documents = false, dropout = false;
  double soft_cap = 0;
  bool sinks = false;
  bool encoder = false, padding = false, bias = false;
  std::int64_t keys = kTokens;  ///< other than the queries: those of another sequence
};
const Model kModels[] = {{.name = "plain"},
                         {.name = "dropped", .dropout = true},
                         {.name = "grouped queries", .ratio = 3, .dropout = true},
                         {.name = "window", .window = 5, .dropout = true},
                         {.name = "documents", .documents = true},
                         {.name = "all", .ratio = 2, .window = 4, .documents = true, .dropout = true, .soft_cap = 2},
                         {.name = "sinks", .ratio = 2, .window = 4, .documents = true, .dropout = true, .sinks = true},
                         {.name = "both sides", .dropout = true, .encoder = true},
                         {.name = "padding", .ratio = 2, .dropout = true, .encoder = true, .padding = true},
                         {.name = "window on both sides", .window = 4, .dropout = true, .encoder = true},
                         {.name = "wide window and padding", .window = 9, .encoder = true, .padding = true},
                         {.name = "bias", .dropout = true, .bias = true},
                         {.name = "bias on both sides", .encoder = true, .padding = true, .bias = true},
                         {.name = "across", .dropout = true, .encoder = true, .padding = true, .keys = 48}};

/// Rows of x that a rank has.
at::Tensor part(const at::Tensor& x, int ranks, int rank) {
  std::vector<at::Tensor> parts;
  for (const auto& piece : plan::SequenceShare{ranks, rank}.pieces(x.size(0)))
    parts.push_back(x.narrow(0, piece.begin, piece.size()));
  return at::cat(parts);
}

kernels::AttentionOptions options_of(const Model& model, at::ScalarType dtype) {
  at::Tensor first_key;
  if (model.documents) {  // begin at 0, 7 and 18; at 0 and 13
    first_key = at::empty({kBatch, kTokens}, at::kInt).zero_();
    first_key[0].narrow(0, 7, 11).fill_(7);
    first_key[0].narrow(0, 18, 6).fill_(18);
    first_key[1].narrow(0, 13, 11).fill_(13);
  }
  plan::SelfAttention attention;
  attention.causal = !model.encoder;
  attention.variant.sliding_window = model.window;
  attention.variant.attn_logit_softcapping = model.soft_cap;
  auto options = attention_options(attention, {.s = kTokens, .b = kBatch, .first_key_bs = first_key});
  if (model.dropout) options.dropout = {.p = 0.3, .key = 77, .sample_ids = at::tensor(std::vector<std::int64_t>{5, 9})};
  options.head_offset = 3;
  // Of the shorter one whole pieces are padding.
  if (model.padding) options.key_lengths = at::tensor(std::vector<std::int32_t>{5, 17}, at::kInt);
  if (model.bias)
    options.bias = at::randn({model.groups * model.ratio, kTokens + model.keys - 1},
                             dtype == at::kDouble ? at::kDouble : at::kFloat);
  if (model.sinks) options.sinks = at::randn({model.groups * model.ratio}, at::kDouble);
  return options;
}

void expect_that_of_one_rank(const Model& model, int ranks, SequenceExchange exchange, at::ScalarType dtype,
                             double tolerance) {
  SCOPED_TRACE(::testing::Message() << model.name << " on " << ranks << " ranks, " << name_of(exchange));
  const auto heads = [&](std::int64_t tokens, std::int64_t count) {
    return at::randn({tokens, kBatch, model.groups, count, kHeadSize}, dtype);
  };
  // Queries, keys and values of the same tokens; across, keys and values are in a tensor of their own.
  using Tensors = std::array<at::Tensor, 2>;
  const bool own_keys = model.ratio == 1, across = model.keys != kTokens;
  const auto each_of = [](const Tensors& x, const auto& change) { return Tensors{change(x[0]), change(x[1])}; };
  const auto zeros = [](const at::Tensor& x) { return at::zeros_like(x); };
  const Tensors qkv{heads(kTokens, model.ratio + 2), heads(model.keys, 2)}, dqkv = each_of(qkv, zeros);
  const at::Tensor dout = heads(kTokens, model.ratio).flatten(2, 3).contiguous();
  const auto queries = [&](const Tensors& x) { return own_keys ? x[0].select(3, 0) : x[0].narrow(3, 0, model.ratio); };
  const auto keys = [&](const Tensors& x) { return across ? x[1].select(3, 0) : x[0].select(3, model.ratio); };
  const auto values = [&](const Tensors& x) { return across ? x[1].select(3, 1) : x[0].select(3, model.ratio + 1); };
  const auto options = options_of(model, dtype);
  const auto want = kernels::attention(queries(qkv), keys(qkv), values(qkv), options);
  const at::Tensor want_bias = model.bias ? at::empty_like(options.bias) : at::Tensor();
  kernels::attention_backward(dout, queries(qkv), keys(qkv), values(qkv), want, options, queries(dqkv), keys(dqkv),
                              values(dqkv), want_bias);
  const at::Tensor want_sinks = model.sinks ? kernels::sink_gradient(dout, want, options.sinks) : at::Tensor();
  comm::run_ranks(ranks, [&](comm::Group world) {
    const SharedSequence sequence{world, exchange};
    const auto own = [&](const at::Tensor& x) { return part(x, ranks, world.rank()); };
    const at::Tensor dsinks = model.sinks ? at::empty_like(options.sinks) : at::Tensor(),
                     dbias = model.bias ? at::empty_like(options.bias) : at::Tensor();
    const Tensors mine = each_of(qkv, own), dmine = each_of(mine, zeros);
    const auto got = shared_attention(sequence, queries(mine), keys(mine), values(mine), options);
    EXPECT_NEAR_TENSOR(got.out, own(want.out), tolerance);
    EXPECT_EQ(got.logsumexp.numel(), want.logsumexp.numel() / ranks) << "what is kept for backward";
    shared_attention_backward(sequence, own(dout), queries(mine), keys(mine), values(mine), got, options,
                              queries(dmine), keys(dmine), values(dmine), dbias, dsinks);
    if (dsinks.defined()) {
      world.all_reduce(dsinks);
      EXPECT_NEAR_TENSOR(dsinks, want_sinks, 10 * tolerance) << "rank " << world.rank();
    }
    if (dbias.defined()) {
      world.all_reduce(dbias);
      EXPECT_NEAR_TENSOR(dbias, want_bias, 20 * tolerance) << "rank " << world.rank();
    }
    for (const std::size_t i : {0, 1}) {
      EXPECT_NEAR_TENSOR(dmine[i], own(dqkv[i]), tolerance) << "rank " << world.rank();
    }
  });
}

TEST(SharedAttention, IsThatOfOneRankThatHasTheWholeSequence) {
  for (const Model& model : kModels)
    for (const int ranks : {2, 3, 4})
      for (const auto exchange : {SequenceExchange::AllGather, SequenceExchange::AllToAll, SequenceExchange::Ring}) {
        if (exchange == SequenceExchange::AllToAll && model.groups % ranks != 0) continue;
        expect_that_of_one_rank(model, ranks, exchange, at::kDouble, 1e-13);
        expect_that_of_one_rank(model, ranks, exchange, at::kFloat, 2e-6);
      }
}

TEST(SharedAttention, RoundsHalvesAsOneRankDoes) {
  for (const Model& model : {kModels[5], kModels[8]})
    for (const auto exchange : {SequenceExchange::AllGather, SequenceExchange::AllToAll, SequenceExchange::Ring})
      expect_that_of_one_rank(model, 2, exchange, at::kBFloat16, 2e-2);
}

TEST(SharedSequence, SaysWhereRowsLie) {
  for (const int ranks : {1, 2, 3})
    for (const int tp : {1, 2, 3, 4}) {  // of which each has a part of the rank's rows
      const std::int64_t rows = 12;
      comm::run_ranks(ranks, [&](comm::Group world) {
        const auto positions = part(at::arange(ranks * rows), ranks, world.rank());
        for (int t = 0; t < tp; ++t) {
          kernels::Dropout dropout;
          dropout.position_offset = rows / tp * t;
          parallel::place_rows(dropout, {.ranks = world.size(), .rank = world.rank()}, rows);
          for (std::int64_t row = 0; row < rows / tp; ++row)
            EXPECT_EQ(dropout.position_of(row), positions[rows / tp * t + row].item<std::int64_t>());
        }
      });
    }
}

}  // namespace
}  // namespace megatron::model
