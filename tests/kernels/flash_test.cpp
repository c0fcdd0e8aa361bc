#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/kernels/emulated/driver.h"
#include "megatron/kernels/emulated/operators.h"
#include "megatron/kernels/phases/operators/flash.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/testing/cuda.h"

// Attention on tensor cores: what no library computes, against the reference in float64. On the host (EmulatedFlash),
// whatever order blocks and warps take; on a GPU (FlashCudaKernels).
namespace megatron::kernels {
namespace {

enum class Kind {
  Dropped,
  DroppedAtOddPlaces,
  Packed,
  Window,
  Lengths,
  Ahead,
  Capped,
  Sinks,
  Biased,
  BiasedAndDropped
};

struct FlashShape {
  std::int64_t queries, keys, batch, groups, ratio, d;
};
constexpr FlashShape kFlashShapes[] = {{1, 1, 1, 1, 1, 8},      {9, 9, 2, 2, 2, 40},   {65, 65, 1, 1, 2, 64},
                                       {130, 130, 1, 1, 1, 80}, {5, 70, 2, 1, 3, 128}, {33, 20, 1, 1, 1, 96}};
constexpr FlashShape kWideShapes[] = {{130, 130, 1, 1, 2, 256}, {5, 70, 2, 2, 1, 192}, {65, 20, 1, 1, 1, 136}};
constexpr FlashShape kBiasedShapes[] = {{150, 150, 2, 2, 2, 64}, {70, 200, 1, 2, 1, 128}, {129, 64, 1, 1, 1, 8}};

/// What `run` computes with, and where.
struct Backend {
  at::Device device;
  const Operators& operators() const { return device.is_cpu() ? emulated_operators() : cuda_operators(); }
  at::Tensor there(const at::Tensor& x) const { return x.defined() ? x.to(device) : x; }
};

AttentionOptions flash_options(Kind kind, const FlashShape& c) {
  AttentionOptions options;
  const bool odd = kind == Kind::DroppedAtOddPlaces;
  const bool biased = kind == Kind::Biased || kind == Kind::BiasedAndDropped;
  if (odd || kind == Kind::Dropped || kind == Kind::Sinks || kind == Kind::BiasedAndDropped)
    options.dropout = {.p = 0.3,
                       .key = 77,
                       .sample_ids = at::arange(c.batch, at::kLong) * 5 + 2,
                       .position_offset = odd ? 3 : 0,
                       .features = odd ? (c.keys + 9) | 1 : (c.keys + 3) / 4 * 4,
                       .feature_offset = odd ? 5 : 0,
                       .positions = c.queries + 7};
  options.head_offset = odd ? 1 : 0;
  if (kind == Kind::Packed) {  // in descending order of documents too
    options.first_key = at::randint(c.keys, {c.batch, c.queries}, at::kInt);
    options.first_key.slice(1, c.queries / 2).fill_(c.keys / 2);
  }
  if (kind == Kind::Window)
    options.first_key = (at::arange(c.queries, at::kInt) + (c.keys - c.queries - 20))
                            .clamp_min(0)
                            .expand({c.batch, c.queries})
                            .contiguous();
  if (kind == Kind::Lengths) {
    options.causal = false;
    options.key_lengths = at::full({c.batch}, std::max<std::int64_t>(c.keys - 3, 1), at::kInt);
    if (c.batch > 1) options.key_lengths[1] = 0;
  }
  if (kind == Kind::Ahead) options.ahead = 3;
  if (kind == Kind::Capped) options.soft_cap = 2;
  if (biased) options.bias = at::randn({c.groups * c.ratio, c.queries + c.keys - 1}, at::kFloat);
  if (kind == Kind::Biased) {  // an encoder of T5, whose scores are not scaled
    options.causal = false;
    options.scale = 1;
    options.key_lengths = at::arange(c.batch, at::kInt) + (c.keys - c.batch + 1);
  }
  if (kind == Kind::Sinks) options.sinks = at::randn({c.groups * c.ratio}, at::kFloat);
  return options;
}

struct FlashInputs {
  at::Tensor fused, dout;  ///< queries, keys and values as the projection makes them, where there are as many
  at::Tensor q, k, v;
};
FlashInputs flash_inputs(const FlashShape& c, at::ScalarType dtype) {
  const auto normal = [&](at::IntArrayRef shape) { return at::randn(shape, at::kFloat).to(dtype); };
  FlashInputs x;
  x.dout = normal({c.queries, c.batch, c.groups * c.ratio, c.d});
  const std::int64_t rows = std::max(c.queries, c.keys);
  x.fused = normal({rows, c.batch, c.groups, c.ratio + 2, c.d});
  x.q = x.fused.narrow(0, 0, c.queries).narrow(3, 0, c.ratio);
  x.k = x.fused.narrow(0, 0, c.keys).select(3, c.ratio);
  x.v = x.fused.narrow(0, 0, c.keys).select(3, c.ratio + 1);
  return x;
}

/// out, logsumexp, the gradients, that of the bias where there is one; `forward`: what the backward pass reads.
std::vector<at::Tensor> attend(const Backend& place, const FlashInputs& x, const FlashShape& c,
                               const AttentionOptions& options, const AttentionOutput& forward) {
  AttentionOptions there = options;
  there.first_key = place.there(options.first_key);
  there.key_lengths = place.there(options.key_lengths);
  there.sinks = place.there(options.sinks);
  there.bias = place.there(options.bias);
  const at::Tensor fused = place.there(x.fused), gradients = at::zeros_like(fused);
  const auto part = [&](const at::Tensor& of, int i) {
    const at::Tensor rows = of.narrow(0, 0, i == 0 ? c.queries : c.keys);
    return i == 0 ? rows.narrow(3, 0, c.ratio) : rows.select(3, c.ratio + i - 1);
  };
  const at::Tensor dbias = there.bias.defined() ? at::full_like(there.bias, std::nan("")) : at::Tensor();
  const Operators& o = place.operators();
  const AttentionOutput got = o.attention(part(fused, 0), part(fused, 1), part(fused, 2), there);
  o.attention_backward(place.there(x.dout), part(fused, 0), part(fused, 1), part(fused, 2),
                       {place.there(forward.out), place.there(forward.logsumexp)}, there, part(gradients, 0),
                       part(gradients, 1), part(gradients, 2), dbias);
  std::vector<at::Tensor> all = {got.out, got.logsumexp, part(gradients, 0), part(gradients, 1), part(gradients, 2)};
  if (dbias.defined()) all.push_back(dbias);
  for (at::Tensor& result : all) result = result.cpu();
  return all;
}

/// |got - truth| / |truth| by the 2-norm; numbers that are all next to nothing, as differences of two that are not,
/// count as a half each.
double error_of(const at::Tensor& got, const at::Tensor& truth) {
  const double size = truth.norm().item<double>() + 0.5 * std::sqrt(static_cast<double>(truth.numel()));
  return (wide(got) - truth).norm().item<double>() / size;
}

void expect_flash(const Backend& place, Kind kind, at::ScalarType dtype, const FlashShape& c) {
  using Flash = phases::FlashOperators<emulated::HostDriver>;
  const AttentionOptions options = flash_options(kind, c);
  const FlashInputs x = flash_inputs(c, dtype);
  ASSERT_TRUE(Flash::serves(x.q, x.k, x.v, options));
  const at::Tensor q = wide(x.q), k = wide(x.k), v = wide(x.v);
  AttentionOptions wide_bias = options;
  if (options.bias.defined()) wide_bias.bias = wide(options.bias);
  const AttentionOutput truth = reference::attention(q, k, v, wide_bias);
  const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  const at::Tensor dbias = options.bias.defined() ? at::empty_like(options.bias, at::kDouble) : at::Tensor();
  reference::attention_backward(wide(x.dout), q, k, v, truth, wide_bias, dq, dk, dv, dbias);
  std::vector<at::Tensor> expected = {truth.out, truth.logsumexp, dq, dk, dv};
  if (dbias.defined()) expected.push_back(dbias);
  const AttentionOutput forward{truth.out.to(dtype), truth.logsumexp.to(at::kFloat)};
  const std::vector<at::Tensor> got = attend(place, x, c, options, forward);
  constexpr const char* kNames[] = {"out", "logsumexp", "dq", "dk", "dv", "dbias"};
  for (std::size_t i = 0; i < got.size(); ++i) {
    const at::Tensor none = expected[i] == -std::numeric_limits<double>::infinity();
    EXPECT_TRUE(at::equal(none, got[i] == -std::numeric_limits<float>::infinity())) << kNames[i];
    const double allowed = i == 1 ? 1e-5 : 4 * unit_roundoff(dtype);
    EXPECT_LE(error_of(got[i].masked_fill(none, 0), expected[i].masked_fill(none, 0)), allowed) << kNames[i];
  }
  if (kind != Kind::Dropped && kind != Kind::BiasedAndDropped) return;
  if (place.device.is_cpu()) emulated::set_launch_order(6);
  const std::vector<at::Tensor> again = attend(place, x, c, options, forward);
  emulated::set_launch_order(0);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::equal(got[i], again[i])) << kNames[i] << " depends on the order of blocks or warps";
}

/// Every element of the mask is seen: where a vector of `values` is one for a key, or a query, and else zero, a product
/// of probabilities with all of them is the probabilities.
void expect_masks(const Backend& place, Kind kind, at::ScalarType dtype, std::int64_t d) {
  const FlashShape c{.queries = 100, .keys = 100, .batch = 2, .groups = 1, .ratio = 1, .d = d};
  AttentionOptions options = flash_options(kind, c);
  options.causal = false;
  const at::Tensor kept = reference::attention_dropout_mask(options.dropout, c.batch, 1, options.head_offset, c.queries,
                                                            c.keys, at::kFloat, at::kCPU)
                              .select(1, 0)
                              .ne(0);  // [b, q, k]
  const at::Tensor one_each = at::eye(c.keys, c.d, at::kFloat).to(dtype).view({c.keys, 1, 1, c.d});
  const auto of = [&](const at::Tensor& x) { return x.select(2, 0).narrow(2, 0, c.keys).transpose(0, 1).ne(0); };
  FlashInputs x = flash_inputs(c, dtype);
  x.v.copy_(one_each.squeeze(1).unsqueeze(1).expand_as(x.v));
  x.dout.copy_(one_each.expand_as(x.dout));
  const at::Tensor q = wide(x.q), k = wide(x.k), v = wide(x.v);
  const AttentionOutput truth = reference::attention(q, k, v, options);
  const std::vector<at::Tensor> values =
      attend(place, x, c, options, {truth.out.to(dtype), truth.logsumexp.to(at::kFloat)});
  EXPECT_TRUE(at::equal(of(values[0]), kept)) << "out";
  EXPECT_TRUE(at::equal(of(values[4]).transpose(1, 2), kept)) << "dv";

  x.fused.zero_();
  x.q.copy_(one_each.unsqueeze(1).expand_as(x.q));
  x.k.copy_(one_each.expand_as(x.k));
  x.v.fill_(1);
  x.dout.fill_(1);
  const AttentionOutput even = reference::attention(wide(x.q), wide(x.k), wide(x.v), options);
  const std::vector<at::Tensor> scores =
      attend(place, x, c, options, {at::zeros_like(even.out).to(dtype), even.logsumexp.to(at::kFloat)});
  EXPECT_TRUE(at::equal(of(scores[2].select(2, 0)), kept)) << "dq";
  EXPECT_TRUE(at::equal(of(scores[3]).transpose(1, 2), kept)) << "dk";
}

struct FlashTested {
  const char* name;
  Kind kind;
  friend void PrintTo(const FlashTested& tested, std::ostream* out) { *out << tested.name; }
};
constexpr FlashTested kFlashTested[] = {{"Dropped", Kind::Dropped}, {"DroppedAtOddPlaces", Kind::DroppedAtOddPlaces},
                                        {"Packed", Kind::Packed},   {"Window", Kind::Window},
                                        {"Lengths", Kind::Lengths}, {"Ahead", Kind::Ahead},
                                        {"Capped", Kind::Capped},   {"Sinks", Kind::Sinks},
                                        {"Biased", Kind::Biased},   {"BiasedAndDropped", Kind::BiasedAndDropped}};

using FlashParameter = std::tuple<FlashTested, at::ScalarType>;
std::string flash_name(const testing::TestParamInfo<FlashParameter>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + c10::toString(std::get<1>(info.param));
}

void run_flash(at::Device device, const FlashParameter& parameter) {
  const c10::NoGradGuard no_grad;
  const auto& [tested, dtype] = parameter;
  for (const FlashShape& c : kFlashShapes) {
    SCOPED_TRACE(testing::Message() << c.queries << " x " << c.keys << ", heads of " << c.d);
    expect_flash({device}, tested.kind, dtype, c);
  }
  const bool biased = tested.kind == Kind::Biased || tested.kind == Kind::BiasedAndDropped;
  for (const FlashShape& c : biased ? std::span<const FlashShape>(kBiasedShapes) : kWideShapes) {
    SCOPED_TRACE(testing::Message() << c.queries << " x " << c.keys << ", heads of " << c.d);
    expect_flash({device}, tested.kind, dtype, c);
  }
  if (tested.kind == Kind::Dropped || tested.kind == Kind::DroppedAtOddPlaces)
    for (const std::int64_t d : {128, 256}) expect_masks({device}, tested.kind, dtype, d);
}

class EmulatedFlash : public testing::TestWithParam<FlashParameter> {};
TEST_P(EmulatedFlash, IsTheReferenceInAnyOrderOfWarps) { run_flash(at::kCPU, GetParam()); }

class FlashCudaKernels : public testing::TestWithParam<FlashParameter> {};
TEST_P(FlashCudaKernels, AreTheReferenceTheSameEachTime) {
  NEEDS_A_GPU();
  run_flash(at::kCUDA, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EmulatedFlash,
                         testing::Combine(testing::ValuesIn(kFlashTested), testing::ValuesIn(kHalves)), flash_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, FlashCudaKernels,
                         testing::Combine(testing::ValuesIn(kFlashTested), testing::ValuesIn(kHalves)), flash_name);

TEST(Flash, ServesWhatIsInChunksOf16Bytes) {
  using Flash = phases::FlashOperators<emulated::HostDriver>;
  const auto serves = [](const at::Tensor& q, const AttentionOptions& options = {}) {
    return Flash::serves(q, q, q, options);
  };
  const at::Tensor heads = at::zeros({3, 2, 1, 40}, at::kBFloat16);
  EXPECT_TRUE(serves(heads));
  EXPECT_TRUE(serves(at::zeros({3, 2, 2, 128}, at::kHalf)));
  EXPECT_TRUE(serves(at::zeros({3, 2, 2, 256}, at::kHalf)));
  EXPECT_FALSE(serves(at::zeros({3, 2, 2, 264}, at::kHalf)));
  EXPECT_FALSE(serves(at::zeros({3, 2, 2, 136}, at::kHalf), {.bias = at::zeros({2, 5})}));
  EXPECT_FALSE(serves(at::zeros({3, 2, 2, 12}, at::kHalf)));
  EXPECT_FALSE(serves(at::zeros({3, 2, 2, 64}, at::kFloat)));
  EXPECT_FALSE(serves(at::zeros({0, 2, 2, 64}, at::kHalf)));
  EXPECT_FALSE(serves(heads.narrow(3, 4, 32))) << "begins in the middle of a chunk";
  EXPECT_FALSE(serves(at::zeros({3, 2, 1, 44}, at::kBFloat16).narrow(3, 0, 40))) << "rows do";
  EXPECT_TRUE(serves(heads, {.bias = at::zeros({1, 5})}));
  EXPECT_FALSE(serves(heads, {.soft_cap = 2, .bias = at::zeros({1, 5})}));
}

// What a block may have on every GPU from Ampere on.
template <template <class, int, bool> class Kernel, int... kD>
constexpr bool fits(std::integer_sequence<int, kD...>) {
  constexpr std::size_t kMost = 99 * 1024;
  return ((sizeof(typename Kernel<phases::Bf16, kD, false>::Shared) <= kMost) && ...);
}
using HeadSizes = std::integer_sequence<int, 64, 128, 256>;
static_assert(fits<phases::FlashForward>(HeadSizes()) && fits<phases::FlashQueryGradient>(HeadSizes()) &&
              fits<phases::FlashKeyGradient>(HeadSizes()));

TEST(Flash, KeepsNotANumber) {
  const at::Tensor q = at::ones({3, 1, 1, 8}, at::kBFloat16), k = at::ones({3, 1, 1, 8}, at::kBFloat16);
  q[1].fill_(std::numeric_limits<double>::quiet_NaN());
  const AttentionOutput got = emulated_operators().attention(q, k, k, {});
  EXPECT_TRUE(at::equal(got.out.isnan(), q.isnan()));
  EXPECT_TRUE(got.logsumexp.isnan()[0][0][1].item<bool>());
}

}  // namespace
}  // namespace megatron::kernels
