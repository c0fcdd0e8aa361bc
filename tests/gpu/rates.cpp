#include "tests/gpu/rates.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "megatron/kernels/emulated/operators.h"
#include "megatron/kernels/operators.h"
#include "megatron/pipeline/marks.h"

namespace megatron::testing {
namespace {

using namespace kernels;

struct Sizes {
  std::int64_t s, b, h, vocab, parameters;
};

class Rates {
 public:
  explicit Rates(at::Device device)
      : device_(device),
        sizes_(device.is_cpu() ? Sizes{8, 2, 64, 100, 1000} : Sizes{2048, 4, 2048, 50304, std::int64_t{1} << 28}),
        o_(device.is_cpu() ? emulated_operators() : cuda_operators()) {}

  void print_all() const {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      activations_and_norms(dtype);
      losses_and_embeddings(dtype);
    }
    attention();
    updates();
  }

 private:
  at::Tensor normal(at::IntArrayRef shape, at::ScalarType dtype) const {
    return at::rand(shape, at::TensorOptions().dtype(dtype).device(device_)).sub_(0.5);
  }
  static double bytes_of(const at::Tensor& x) { return static_cast<double>(x.nbytes()); }

  /// The best of a few times `run`, after one that is not counted.
  double seconds_of(const std::function<void()>& run) const {
    run();
    double best_s = 1e9;
    const int calls = device_.is_cpu() ? 1 : 20;  // the host is ahead of the device
    for (int i = 0; i < 5; ++i) {
      pipeline::Marks marks(device_);
      marks.add();
      for (int n = 0; n < calls; ++n) run();
      marks.add();
      const auto times = marks.take();
      best_s = std::min(best_s, std::chrono::duration<double>(times[1] - times[0]).count() / calls);
    }
    return std::max(best_s, 1e-9);
  }
  static void print_line(const std::string& kernel, at::ScalarType dtype, const char* unit, double rate) {
    std::printf("{\"kernel\": \"%s\", \"dtype\": \"%s\", \"%s\": %.4g}\n", kernel.c_str(), c10::toString(dtype), unit,
                rate);
  }
  void print(const char* kernel, at::ScalarType dtype, double bytes, const std::function<void()>& run) const {
    print_line(kernel, dtype, "gb_s", 1e-9 * bytes / seconds_of(run));
  }

  /// Causal attention: half of the products count, five in the backward pass.
  void attention() const {
    AttentionOptions dropped, packed;
    dropped.dropout = {.p = 0.1, .key = 3, .sample_ids = at::arange(sizes_.b, at::kLong)};
    packed.first_key = at::zeros({sizes_.b, sizes_.s}, at::TensorOptions().dtype(at::kInt).device(device_));
    packed.first_key.slice(1, sizes_.s / 2).fill_(sizes_.s / 2);
    const std::int64_t size = device_.is_cpu() ? 16 : 128;
    attention_of("attention", size, {}, 1);
    attention_of("attention, dropout 0.1", size, dropped, 1);
    attention_of("attention, dropout 0.1, small heads", size / 2, dropped, 1);
    attention_of("attention, two documents", size, packed, 0.5);
  }
  /// `seen`: of what a causal mask leaves.
  void attention_of(const std::string& name, std::int64_t head_size, const AttentionOptions& options,
                    double seen) const {
    const auto [s, b, h, vocab, parameters] = sizes_;
    const at::ScalarType dtype = at::kBFloat16;
    const at::Tensor fused = normal({s, b, h / head_size, 3, head_size}, dtype), gradients = at::empty_like(fused),
                     dout = normal({s, b, h / head_size, head_size}, dtype);
    const auto part = [](const at::Tensor& of, int i) { return of.select(3, i); };
    const at::Tensor q = part(fused, 0), k = part(fused, 1), v = part(fused, 2);
    const double product = seen * static_cast<double>(s * s * b * h) * 1e-12;
    const AttentionOutput out = o_.attention(q, k, v, options);
    print_line(name, dtype, "tflop_s", 2 * product / seconds_of([&] { o_.attention(q, k, v, options); }));
    print_line(name + ", backward", dtype, "tflop_s", 5 * product / seconds_of([&] {
                                                        o_.attention_backward(dout, q, k, v, out, options,
                                                                              part(gradients, 0), part(gradients, 1),
                                                                              part(gradients, 2), {});
                                                      }));
  }

  void activations_and_norms(at::ScalarType dtype) const {
    const auto& [s, b, h, vocab, parameters] = sizes_;
    const at::Tensor x = normal({s, b, h}, dtype), y = normal({s, b, h}, dtype), row = normal({h}, dtype);
    const at::Tensor wide = normal({s, b, 4 * h}, dtype), wide_row = normal({4 * h}, dtype),
                     dwide = at::empty_like(wide), wide_gain = normal({4 * h}, at::kFloat);
    const at::Tensor gain = normal({h}, at::kFloat), shift = normal({h}, at::kFloat);
    const double one = bytes_of(x), four = bytes_of(wide);
    if (dtype == at::kBFloat16) print("copy", dtype, 2 * four, [&] { dwide.copy_(wide); });
    const Dropout dropout{.p = 0.1, .key = 3, .sample_ids = at::arange(b, at::kLong)};
    const NormOutput norm = o_.layer_norm(x, row, row, 1e-5);
    print("bias + dropout + residual + norm", dtype, 4 * one,
          [&] { o_.bias_dropout_add_norm(x, row, y, dropout, row, row, 1e-5); });
    print("norm, backward", dtype, 4 * one,
          [&] { o_.layer_norm_backward(y, x, norm.mean, norm.rstd, row, gain, shift, 1, y); });
    print("dropout, backward", dtype, 2 * one, [&] { o_.dropout_backward(x, dropout); });
    print("bias + GELU", dtype, 3 * four, [&] { o_.bias_activation(wide, wide_row, Activation::GeluTanh); });
    print("GELU, backward", dtype, 3 * four, [&] { o_.activation_backward(dwide, wide, Activation::GeluTanh); });
    print("SwiGLU", dtype, 1.5 * four, [&] { o_.gated_activation(wide, Activation::Silu); });
    const at::Tensor heads = x.view({s, b, h / 32, 32});
    const RopeTable table = rope_table({.rotary_dim = 32}, s, dtype, device_);
    print("rotation", dtype, 2 * one, [&] { o_.rotate_(heads, table, {}, 0, false); });
    print("bias gradient", dtype, four, [&] { o_.accumulate_bias_gradient(wide_gain, wide, 0); });
  }

  void losses_and_embeddings(at::ScalarType dtype) const {
    const auto& [s, b, h, vocab, parameters] = sizes_;
    const std::int64_t tokens = std::min<std::int64_t>(s * b, 2048);
    const auto longs = at::TensorOptions().dtype(at::kLong).device(device_);
    const at::Tensor logits = normal({tokens, vocab}, dtype), labels = at::randint(vocab, {tokens}, longs);
    const at::Tensor ones = at::ones({tokens}, at::TensorOptions().dtype(at::kFloat).device(device_));
    const VocabRange range{.begin = 0, .end = vocab, .vocab = vocab};
    print("softmax", dtype, bytes_of(logits), [&] { o_.softmax_pieces(logits, labels, range, false); });
    print("cross entropy, backward", dtype, 2 * bytes_of(logits),
          [&] { o_.cross_entropy_gradient_(logits, labels, range, ones, ones, 0); });
    const at::Tensor ids = at::randint(vocab, {s, b}, longs), weight = normal({vocab, h}, dtype),
                     dy = normal({s, b, h}, dtype), gradient = normal({vocab, h}, at::kFloat);
    print("embedding", dtype, 2 * bytes_of(dy), [&] { o_.embedding(ids, weight, 0); });
    print("embedding, backward", dtype, bytes_of(dy) + 2.0 * 4 * static_cast<double>(dy.numel()),
          [&] { o_.embedding_backward(gradient, ids, dy, 0); });
  }

  void updates() const {
    const std::int64_t n = sizes_.parameters;
    const at::Tensor param = normal({n}, at::kFloat), grad = normal({n}, at::kFloat), first = normal({n}, at::kFloat),
                     second = normal({n}, at::kFloat).abs(), model = normal({n}, at::kBFloat16);
    const Update update{.learning_rate = 1e-4, .step = 10};
    print("Adam, float32 masters and bf16 copy", at::kFloat, 30.0 * static_cast<double>(n),
          [&] { o_.adam_(param, model, grad, first, second, {}, update); });
    print("gradient norm", at::kFloat, 4.0 * static_cast<double>(n), [&] { o_.sum_of_squares(grad); });
  }

  at::Device device_;
  Sizes sizes_;
  const Operators& o_;
};

}  // namespace

void print_rates(at::Device device) {
  const c10::NoGradGuard no_grad;
  Rates(device).print_all();
}

}  // namespace megatron::testing
