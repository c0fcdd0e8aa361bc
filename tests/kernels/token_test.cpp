#include "megatron/kernels/token/token.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/phases/likelihood.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/launch_orders.h"
#include "tests/testing/cuda.h"

// The kernels of a decoded token against plain ATen in float64. On the host (EmulatedTokenKernels), whatever order
// blocks and threads take; on a GPU (CudaTokenKernels) also against the bits of the host driver.
namespace megatron::kernels {
namespace {

using Outputs = std::vector<at::Tensor>;
using Run = std::function<Outputs(const TokenKernels&, at::Device)>;

enum class Libm : std::uint8_t { Unused, Used };  ///< of exp and tanh a GPU's bits are its own

class TokenCheck {
 public:
  TokenCheck(at::ScalarType dtype, at::Device device) : dtype_(dtype), device_(device) {}

  at::ScalarType dtype() const { return dtype_; }
  at::Tensor normal(at::IntArrayRef shape) const { return at::randn(shape, at::kFloat).to(dtype_); }

  /// What `run` gives is `truth`, but for some roundings of what is stored or of sums.
  void expect(const Run& run, const Outputs& truth, Libm libm) const {
    const Outputs got = by_kernels(run);
    ASSERT_EQ(got.size(), truth.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), truth[i].sizes()) << i;
      EXPECT_LE(relative_error(got[i], wide(truth[i])), allowed()) << "result " << i;
    }
    if (!device_.is_cpu() && libm == Libm::Unused) expect_equal(got, host(run), "the device");
  }

 private:
  double allowed() const {
    return dtype_ == at::kDouble ? 1e-13 : dtype_ == at::kFloat ? 1e-5 : 16 * unit_roundoff(dtype_);
  }
  static void expect_equal(const Outputs& got, const Outputs& other, const char* what) {
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(other[i])) << i << " depends on " << what;
  }
  static Outputs host(const Run& run) { return run(emulated_token_kernels(), at::kCPU); }
  Outputs by_kernels(const Run& run) const {
    if (!device_.is_cpu()) {
      Outputs outputs;
      for (const at::Tensor& x : run(*token_kernels(device_), device_)) outputs.push_back(x.cpu());
      return outputs;
    }
    const Outputs got = host(run);
    in_other_orders([&] { expect_equal(got, host(run), "the order of threads"); });
    return got;
  }

  at::ScalarType dtype_;
  at::Device device_;
};

at::Tensor moved(const at::Tensor& x, at::Device device) {
  return x.defined() ? x.to(device, x.scalar_type(), false, /*copy=*/true) : x;
}

/// The product written out; tensors in float64.
at::Tensor product_of(TokenProduct p) {
  for (at::Tensor* x : {&p.x, &p.weight, &p.bias, &p.add, &p.gain, &p.shift})
    if (x->defined()) *x = wide(*x);
  if (p.shift.defined())
    p.x = at::layer_norm(p.x, {p.x.size(1)}, p.gain, p.shift, p.epsilon);
  else if (p.gain.defined())
    p.x = p.x * (p.x.square().mean(1, true) + p.epsilon).rsqrt() * p.gain;
  at::Tensor y = at::linear(p.x * p.factor, p.weight, p.bias);
  if (p.form) y = p.gated ? reference::gated_activation(y, *p.form) : reference::activation(y, *p.form);
  if (p.soft_cap > 0) y = at::tanh(y / p.soft_cap) * p.soft_cap;
  return p.add.defined() ? y + p.add : y;
}

void products(const TokenCheck& check) {
  struct Size {
    std::int64_t b, n, k;
  };
  for (const auto& [b, n, k] : {Size{1, 1, 1}, {1, 9, 40}, {3, 13, 70}, {5, 8, 1033}, {9, 17, 600}, {2, 5, 6000}}) {
    const auto row = [&](std::int64_t size) { return check.normal({size}); };
    const TokenProduct plain{.x = check.normal({b, k}), .weight = check.normal({n, k}), .y = {}};
    TokenProduct ended = plain, rms = plain, layer = plain, gated = plain, clamped = plain, capped = plain;
    ended.bias = row(n);
    ended.add = check.normal({b, n});
    rms.gain = row(k);
    layer.gain = row(k);
    layer.shift = row(k);
    layer.bias = row(n);
    layer.form = Activation::GeluTanh;
    gated.weight = clamped.weight = check.normal({2 * n, k});
    gated.gated = clamped.gated = true;
    gated.gain = row(k);
    gated.form = Activation::Silu;
    clamped.bias = row(2 * n);
    clamped.form = Activation(Activation::QuickGelu, 0.75, 1);
    capped.gain = row(k);
    capped.factor = 0.25;
    capped.soft_cap = 3;
    for (const TokenProduct& asked : {plain, ended, rms, layer, gated, clamped, capped}) {
      SCOPED_TRACE(testing::Message() << b << " x " << n << " x " << k);
      const bool libm = asked.form || asked.soft_cap > 0;
      check.expect(
          [&](const TokenKernels& kernels, at::Device device) {
            TokenProduct p = asked;
            for (at::Tensor* x : {&p.x, &p.weight, &p.bias, &p.add, &p.gain, &p.shift}) *x = moved(*x, device);
            p.y = at::full({b, n}, std::nan(""), p.x.options());
            kernels.multiply(p);
            return Outputs{p.y};
          },
          {product_of(asked)}, libm ? Libm::Used : Libm::Unused);
    }
  }
}

void norms(const TokenCheck& check) {
  const auto normed = [](const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift) {
    const std::int64_t size = gain.numel();
    if (shift.defined()) return at::layer_norm(wide(x), {size}, wide(gain), wide(shift), 1e-5);
    return wide(x) * (wide(x).square().mean(-1, true) + 1e-5).rsqrt() * wide(gain);
  };
  for (const bool shifted : {false, true}) {
    const auto row = [&](std::int64_t size, bool there = true) { return there ? check.normal({size}) : at::Tensor(); };
    const at::Tensor x = check.normal({3, 1100}), add = check.normal({3, 1100});
    const at::Tensor gain = row(1100), shift = row(1100, shifted);
    check.expect(
        [&](const TokenKernels& kernels, at::Device device) {
          const TokenNorm norm{.x = moved(x, device),
                               .y = at::full({3, 1100}, std::nan(""), moved(x, device).options()),
                               .gain = moved(gain, device),
                               .shift = moved(shift, device),
                               .add = moved(add, device)};
          kernels.normalize(norm);
          return Outputs{norm.y};
        },
        {normed(x, gain, shift) + wide(add)}, Libm::Unused);

    const at::Tensor qkv = check.normal({2, 3 * (2 + 2) * 20});  // three groups of two queries
    const at::Tensor gain_q = row(20), gain_k = row(20), shift_q = row(20, shifted), shift_k = row(20, shifted);
    at::Tensor heads = wide(qkv).view({2, 3, 4, 20}).clone();
    heads.narrow(2, 0, 2).copy_(normed(heads.narrow(2, 0, 2), gain_q, shift_q));
    heads.select(2, 2).copy_(normed(heads.select(2, 2), gain_k, shift_k));
    check.expect(
        [&](const TokenKernels& kernels, at::Device device) {
          const at::Tensor in_place = moved(qkv, device);
          kernels.normalize({.x = in_place,
                             .y = in_place,
                             .gain = moved(gain_q, device),
                             .shift = moved(shift_q, device),
                             .key_gain = moved(gain_k, device),
                             .key_shift = moved(shift_k, device),
                             .sharing = 2});
          return Outputs{in_place};
        },
        {heads.view(qkv.sizes())}, Libm::Unused);
  }
}

struct Sizes {
  std::int64_t batch, groups, ratio, d, capacity, length;
};

/// x [b, m, d] turned by the angles of positions [b].
at::Tensor turned_heads(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions_b) {
  if (!table.cos.defined()) return x;
  const at::Tensor heads = x.clone().unsqueeze(0);
  const RopeTable in_wide{wide(table.cos), wide(table.sin), table.interleaved};
  reference::rotate_(heads, in_wide, positions_b.unsqueeze(1), 0, false);
  return heads[0];
}

/// Attention of one token written out: what it gives, and its key and value, in float64.
Outputs attention_of(const TokenAttention& t, const Sizes& size, const at::Tensor& padding_b) {
  const std::int64_t b = size.batch, g = size.groups, d = size.d;
  const at::Tensor heads = wide(t.qkv).view({b, g * (size.ratio + 2), d});
  const at::Tensor turned = turned_heads(heads, t.rope, size.length - padding_b).view({b, g, size.ratio + 2, d});
  const at::Tensor key = turned.select(2, size.ratio), value = heads.view({b, g, -1, d}).select(2, size.ratio + 1);
  const auto all = [&](const at::Tensor& cache, const at::Tensor& row) {  // [b, g, keys, d]
    return at::cat({wide(cache).narrow(0, 0, size.length), row.unsqueeze(0)}).permute({1, 2, 0, 3});
  };
  const double scale = t.scale != 0 ? t.scale : 1 / std::sqrt(static_cast<double>(d));
  at::Tensor scores = turned.narrow(2, 0, size.ratio).matmul(all(t.keys, key).transpose(2, 3)) * scale;
  if (t.soft_cap > 0) scores = at::tanh(scores / t.soft_cap) * t.soft_cap;
  for (std::int64_t i = 0; i < b; ++i) {
    const std::int64_t windowed = t.window > 0 ? size.length - t.window + 1 : 0;
    const std::int64_t first = std::max(windowed, padding_b[i].item<std::int64_t>());
    if (first > 0) scores[i].narrow(-1, 0, first).fill_(-std::numeric_limits<double>::infinity());
  }
  const std::int64_t keys = scores.size(-1);
  if (t.sinks.defined())
    scores = at::cat({scores, wide(t.sinks).view({1, g, size.ratio, 1}).expand({b, g, size.ratio, 1})}, -1);
  const at::Tensor out = at::softmax(scores, -1).narrow(-1, 0, keys).matmul(all(t.values, value));
  return {out.reshape({b, -1}), key, value};
}

void attentions(const TokenCheck& check) {
  const auto wide_type = check.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  for (const Sizes& size : {Sizes{2, 1, 1, 8, 5, 0},
                            {2, 2, 3, 64, 300, 130},
                            {1, 1, 11, 20, 300, 255},
                            {1, 3, 1, 96, 256, 128},
                            {3, 1, 2, 256, 140, 139}}) {
    SCOPED_TRACE(testing::Message() << "heads of " << size.d << ", " << size.length << " rows");
    const std::int64_t heads = size.groups * size.ratio;
    TokenAttention plain{.qkv = check.normal({size.batch, (heads + 2 * size.groups) * size.d}),
                         .keys = check.normal({size.batch, size.groups, size.capacity, size.d}).permute({2, 0, 1, 3}),
                         .values = check.normal({size.batch, size.groups, size.capacity, size.d}).permute({2, 0, 1, 3}),
                         .y = {},
                         .heads = heads,
                         .groups = size.groups,
                         .head_size = size.d};
    TokenAttention rotated = plain, interleaved = plain, windowed = plain, capped = plain, sunk = plain;
    rotated.rope = rope_table({.rotary_dim = size.d}, 300, check.dtype(), at::kCPU);
    interleaved.rope = rope_table({.rotary_dim = size.d / 2, .interleaved = true}, 300, check.dtype(), at::kCPU);
    interleaved.scale = 0.5;
    windowed.window = 3;
    capped.soft_cap = 0.5;
    capped.window = 150;
    sunk.sinks = at::randn({heads}, wide_type);
    const at::Tensor padding = at::randint(0, std::max<std::int64_t>(1, size.length / 2), {size.batch}, at::kLong);
    for (const TokenAttention& asked : {plain, rotated, interleaved, windowed, capped, sunk})
      check.expect(
          [&](const TokenKernels& kernels, at::Device device) {
            TokenAttention t = asked;
            for (at::Tensor* x : {&t.qkv, &t.keys, &t.values, &t.rope.cos, &t.rope.sin, &t.sinks})
              *x = moved(*x, device);
            t.y = at::full({size.batch, heads * size.d}, std::nan(""), t.qkv.options());
            t.scratch = at::full({token_scratch(size.batch, heads, size.d, size.capacity)}, std::nan(""),
                                 t.qkv.options().dtype(wide_type));
            const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
            const at::Tensor before = t.keys.clone();
            kernels.attend(t, {.token_b = {},
                               .length_b = at::full({size.batch}, size.length, longs),
                               .padding_b = padding.to(device),
                               .chosen_b = {}});
            if (size.d % 8 == 0) {  // the parts put together by a product, with one matrix that changes nothing
              TokenAttention left = t;
              left.y = at::Tensor();
              const TokenState state{{}, at::full({size.batch}, size.length, longs), padding.to(device), {}};
              const TokenProduct sum{.x = {},
                                     .weight = at::eye(heads * size.d, t.qkv.options()),
                                     .y = at::empty_like(t.y),
                                     .attention = &left,
                                     .state = &state};
              kernels.multiply(sum);
              EXPECT_TRUE(sum.y.equal(t.y));
            }
            before[size.length].copy_(t.keys[size.length]);
            EXPECT_TRUE(before.equal(t.keys));  // no other row is written to
            return Outputs{t.y, t.keys[size.length], t.values[size.length]};
          },
          attention_of(asked, size, padding), Libm::Used);
  }
}

void ends(const TokenCheck& check) {
  const at::Tensor words = check.normal({7, 37}), places = check.normal({6, 37});
  const at::Tensor tokens = at::tensor({4, 0, 6}, at::kLong), lengths = at::tensor({3, 3, 3}, at::kLong),
                   padding = at::tensor({0, 2, 3}, at::kLong);
  const at::Tensor rows = at::embedding(wide(words), tokens);
  const auto embedded = [&](const at::Tensor& learned, double scale) {
    return [&, learned, scale](const TokenKernels& kernels, at::Device device) {
      const TokenEmbedding e{.words = moved(words, device),
                             .places = moved(learned, device),
                             .offset = 1,
                             .scale = scale,
                             .y = at::full({3, 37}, std::nan(""), moved(words, device).options())};
      kernels.embed(e, {moved(tokens, device), moved(lengths, device), moved(padding, device), {}});
      return Outputs{e.y};
    };
  };
  check.expect(embedded({}, 2), {rows * 2}, Libm::Unused);
  check.expect(embedded(places, 1), {rows + at::embedding(wide(places), lengths - padding + 1)}, Libm::Unused);

  // Of equals the first; what is not finite is said.
  const std::int64_t vocab = 20011;
  const at::Tensor logits = at::randn({4, vocab}, at::kFloat).clamp_max(8).to(check.dtype());
  for (const std::int64_t at : {19000, 777, 778, 20010}) logits[0][at] = 9;
  logits[1][vocab - 1] = 9;
  logits[2][5] = std::numeric_limits<double>::infinity();
  logits[3][4000] = std::nan("");
  const at::Tensor fed = at::tensor({777, static_cast<int>(vocab) - 1, 0, 0}, at::kLong),
                   chosen = at::tensor({777, static_cast<int>(vocab) - 1, -1, -1}, at::kLong),
                   longer = at::tensor({4, 5, 6, 7}, at::kLong);
  check.expect(
      [&](const TokenKernels& kernels, at::Device device) {
        const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
        const TokenState state{at::zeros({4}, longs), moved(longer - 1, device), {}, at::zeros({4}, longs)};
        kernels.choose(moved(logits, device), state);
        return Outputs{state.token_b, state.chosen_b, state.length_b};
      },
      {fed, chosen, longer}, Libm::Unused);
}

/// What TokenKernels::shortlist shall write, bit for bit.
at::Tensor shortlist_of(const at::Tensor& logits, std::int64_t count, double temperature) {
  const at::Tensor wide_bv = wide(logits).contiguous();
  const std::int64_t b = logits.size(0), v = logits.size(1);
  const auto [values, ids] = at::sort(wide_bv, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  at::Tensor list = at::full({b, 2 + 2 * count}, std::nan(""), at::kDouble);
  const std::int64_t told = std::min(count, v);
  list.select(1, 0).fill_(told);
  list.narrow(1, 2, told).copy_(values.narrow(1, 0, told));
  list.narrow(1, 2 + count, told).copy_(ids.narrow(1, 0, told));
  for (std::int64_t row = 0; row < b; ++row) {
    const std::span<const double> all(wide_bv.const_data_ptr<double>() + row * v, static_cast<std::size_t>(v));
    list[row][1] = temperature > 0 ? phases::sum_of_likelihoods(all, values[row][0].item<double>(), temperature) : 0;
  }
  return list;
}

void shortlists(const TokenCheck& check) {
  const auto listed = [](const at::Tensor& logits, std::int64_t count, double temperature) {
    return [=](const TokenKernels& kernels, at::Device device) {
      const at::Tensor list =
          at::full({logits.size(0), 2 + 2 * count}, std::nan(""), at::device(device).dtype(at::kDouble));
      kernels.shortlist(moved(logits, device), list, temperature);
      return Outputs{at::nan_to_num(list, -7)};  // what is not written stays NaN
    };
  };
  struct Size {
    std::int64_t v, count;
    double temperature;
  };
  for (const auto& [v, count, temperature] :
       {Size{1, 1, 1}, {30, 9, 0}, {30, 40, 0.7}, {1025, 1, 0.01}, {1500, 256, 1}, {2600, 33, 0}, {20011, 256, 2}}) {
    const at::Tensor logits = check.normal({3, v});
    const at::Tensor truth = at::nan_to_num(shortlist_of(logits, count, temperature), -7);
    check.expect(listed(logits, count, temperature), {truth}, Libm::Unused);
    EXPECT_TRUE(listed(logits, count, temperature)(emulated_token_kernels(), at::kCPU)[0].equal(truth)) << v;
  }

  // Equal ones go by their ids. Where 32 threads have none of the large ones, too many others reach what bounds the
  // list.
  at::Tensor logits = check.normal({4, 3000}).clamp_max(5);
  logits[0].narrow(0, 700, 1000).fill_(6);
  logits[1].narrow(0, 2048, 32).sub_(20), logits[1].narrow(0, 1024, 32).sub_(20), logits[1].narrow(0, 0, 32).sub_(20);
  logits[2][5] = -std::numeric_limits<double>::infinity();
  logits[3][2999] = std::nan("");
  const auto lists = shortlists_of(listed(logits, 50, 0)(emulated_token_kernels(), at::kCPU)[0]);
  ASSERT_TRUE(lists[0].has_value());
  EXPECT_EQ(lists[0]->tokens.front(), 700);
  EXPECT_EQ(lists[0]->tokens.back(), 749);
  EXPECT_EQ(lists[0]->logits.back(), 6);
  for (std::size_t b = 1; b < 4; ++b) EXPECT_FALSE(lists[b].has_value()) << b;
}

/// Tokens drawn by sums in the order of ids, of which the likeliest few may be all.
at::Tensor drawn_of(const at::Tensor& logits, double temperature, double min_p, const at::Tensor& uniform_b) {
  const at::Tensor scaled = wide(logits) / temperature;
  at::Tensor weights = at::exp(scaled - at::amax(scaled, 1, /*keepdim=*/true));
  weights = weights.masked_fill(weights < min_p, 0);
  const at::Tensor sums = weights.cumsum(1), target = uniform_b.unsqueeze(1) * sums.select(1, -1).unsqueeze(1);
  EXPECT_GT((sums - target).abs().min().item<double>(), 1e-12) << "rounding decides";
  return at::searchsorted(sums, target, /*out_int32=*/false, /*right=*/true).squeeze(1);
}

void draws(const TokenCheck& check) {
  struct Size {
    std::int64_t v;
    double temperature, min_p;
  };
  const at::Tensor keys = at::tensor({5, -7, 5, 9}, at::kLong), copies = at::tensor({0, 3, 1, 0}, at::kLong),
                   lengths = at::tensor({11, 11, 11, 12}, at::kLong), padding = at::tensor({0, 4, 0, 11}, at::kLong);
  at::Tensor uniform = at::zeros({4}, at::kDouble);
  for (std::int64_t b = 0; b < 4; ++b) {
    const auto at = [b](const at::Tensor& x) { return static_cast<std::uint64_t>(x[b].item<std::int64_t>()); };
    uniform[b] = uniform_of(philox(at(keys), at(lengths - padding + 1), at(copies)));
  }
  const auto drawn = [&](const at::Tensor& logits, double temperature, double min_p) {
    return [=, &keys, &copies, &lengths, &padding](const TokenKernels& kernels, at::Device device) {
      const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
      const TokenState state{at::zeros({4}, longs), moved(lengths, device).clone(), moved(padding, device),
                             at::zeros({4}, longs)};
      kernels.draw(moved(logits, device), {moved(keys, device), moved(copies, device), temperature, min_p}, state);
      return Outputs{state.token_b, state.chosen_b, state.length_b};
    };
  };
  for (const auto& [v, temperature, min_p] : {Size{1, 1, 0},
                                              {30, 1, 0},
                                              {1024, 0.7, 0},
                                              {1025, 3, 0},
                                              {2600, 1, 0.1},
                                              {20011, 1.5, 0.01},
                                              {50257, 1, 0},
                                              {50257, 0.05, 0}}) {
    const at::Tensor logits = check.normal({4, v});
    const at::Tensor token = drawn_of(logits, temperature, min_p, uniform);
    check.expect(drawn(logits, temperature, min_p), {token, token, lengths + 1}, Libm::Unused);
    EXPECT_TRUE(drawn(logits, temperature, min_p)(emulated_token_kernels(), at::kCPU)[0].equal(token)) << v;
  }
  at::Tensor logits = check.normal({4, 3000});
  logits[0][2999] = std::nan("");
  logits[1][5] = std::numeric_limits<double>::infinity();
  logits[2].fill_(-std::numeric_limits<double>::infinity());
  logits[3].fill_(0), logits[3][2048] = 60;
  check.expect(drawn(logits, 1, 0),
               {at::tensor({0, 0, 0, 2048}, at::kLong), at::tensor({-1, -1, -1, 2048}, at::kLong), lengths + 1},
               Libm::Unused);
}

struct Named {
  const char* name;
  void (*body)(const TokenCheck&);
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

using Case = std::tuple<Named, at::ScalarType>;
std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + c10::toString(std::get<1>(info.param));
}
const auto kCases =
    testing::Combine(testing::Values(Named{"Products", products}, Named{"Norms", norms}, Named{"Attention", attentions},
                                     Named{"Ends", ends}, Named{"Draws", draws}, Named{"Shortlists", shortlists}),
                     testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf));

class EmulatedTokenKernels : public testing::TestWithParam<Case> {};
class CudaTokenKernels : public testing::TestWithParam<Case> {};

TEST_P(EmulatedTokenKernels, MatchesPlainAtenInAnyOrder) {
  const c10::NoGradGuard no_grad;
  std::get<0>(GetParam()).body({std::get<1>(GetParam()), at::kCPU});
}
TEST_P(CudaTokenKernels, MatchesPlainAtenAndTheHostDriver) {
  NEEDS_A_GPU();
  const c10::NoGradGuard no_grad;
  std::get<0>(GetParam()).body({std::get<1>(GetParam()), at::kCUDA});
}
INSTANTIATE_TEST_SUITE_P(Tokens, EmulatedTokenKernels, kCases, name_of);
INSTANTIATE_TEST_SUITE_P(Tokens, CudaTokenKernels, kCases, name_of);

}  // namespace
}  // namespace megatron::kernels
