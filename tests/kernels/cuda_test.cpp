#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/embedding.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"
#include "megatron/kernels/optimizer.h"
#include "megatron/kernels/random.h"
#include "megatron/kernels/rope.h"
#include "tests/kernels/compare.h"
#include "tests/testing/cuda.h"

// Every public kernel on one device and in one dtype against the same in float64 on the CPU.
namespace megatron::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Draws the same inputs for every device and dtype: numbers of bf16, so that the sign of a sum is the same in each.
class Inputs {
 public:
  Inputs(at::Device device, at::ScalarType dtype)
      : device_(device), dtype_(dtype), generator_(at::detail::createCPUGenerator(5)) {}

  at::Tensor normal(at::IntArrayRef shape) {
    return at::randn(shape, generator_, at::kFloat).to(at::kBFloat16).to(device_, dtype_);
  }
  at::Tensor whole(std::int64_t below, at::IntArrayRef shape) {
    return at::randint(below, shape, generator_, at::kLong).to(device_);
  }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  at::Device device_;
  at::ScalarType dtype_;
  at::Generator generator_;
};

Dropout some_dropout() {
  return {.p = 0.3, .key = 77, .sample_ids = at::tensor({4, 9}, at::kLong), .position_offset = 3, .features = 40};
}

struct Kernel {
  const char* name;
  std::function<Tensors(Inputs&)> run;  ///< everything that the kernel gives or writes

  friend void PrintTo(const Kernel& kernel, std::ostream* out) { *out << kernel.name; }
};

Tensors activations(Inputs& in) {
  Tensors results;
  for (const Activation form : kForms) {
    const at::Tensor u = in.normal({6, 2, 20});
    results.push_back(bias_activation(u, in.normal({20}), form));
    results.push_back(u);
    results.push_back(kernels::activation_backward(in.normal({6, 2, 20}), u, form));
    results.push_back(kernels::activation(u, form));
    results.push_back(bias_gated_activation(in.normal({6, 2, 20}), in.normal({20}), form));
    results.push_back(gated_activation_backward(in.normal({6, 2, 10}), u, form));
  }
  return results;
}

Tensors attentions(Inputs& in) {
  const at::Tensor q = in.normal({9, 2, 3, 8}), k = in.normal({9, 2, 3, 8}), v = in.normal({9, 2, 3, 8});
  AttentionOptions options;
  options.dropout = some_dropout();
  options.head_offset = 1;
  options.first_key = at::zeros({2, 9}, at::TensorOptions().dtype(at::kInt).device(in.device()));
  options.first_key[1].slice(0, 4).fill_(4);
  const AttentionOutput out = attention(q, k, v, options);
  Tensors results{out.out, out.logsumexp, at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  attention_backward(in.normal({9, 2, 3, 8}), q, k, v, out, options, results[2], results[3], results[4]);
  const at::Tensor grouped_q = in.normal({9, 2, 3, 2, 8}), grouped_dout = in.normal({9, 2, 6, 8});
  const AttentionOutput grouped = attention(grouped_q, k, v, {});
  const Tensors grads{at::empty_like(grouped_q), at::empty_like(k), at::empty_like(v)};
  attention_backward(grouped_dout, grouped_q, k, v, grouped, {}, grads[0], grads[1], grads[2]);
  results.insert(results.end(), {grouped.out, grads[0], grads[1], grads[2]});
  return results;
}

Tensors rotations(Inputs& in) {
  Tensors results;
  for (const bool interleaved : {false, true}) {
    const RopeTable table = rope_table({.rotary_dim = 6, .interleaved = interleaved}, 20, in.dtype(), in.device());
    results.push_back(in.normal({5, 2, 3, 8}));
    rotate_(results.back(), table, {}, 11);
    results.push_back(in.normal({5, 2, 3, 2, 8}).narrow(3, 0, 1));
    rotate_(results.back(), table, in.whole(20, {2, 5}), 0, true);
  }
  return results;
}

Tensors cross_entropies(Inputs& in) {
  const at::Tensor logits = in.normal({7, 12}), labels = in.whole(20, {7});
  const VocabRange range{.begin = 10, .end = 20, .vocab = 20};  // the last two columns are padding
  const SoftmaxPieces pieces = softmax_pieces(logits, labels, range, true);
  const at::Tensor gradient = logits.clone();
  cross_entropy_gradient_(gradient, labels, range, pieces.max + pieces.sum_exp.log(), in.normal({7}), 0.1);
  return {pieces.max, pieces.sum_exp, pieces.target, pieces.sum, gradient.narrow(1, 0, 10)};
}

Tensors dropouts(Inputs& in) {
  return {dropout_mask(some_dropout(), 5, 2, 33, in.dtype(), in.device()),
          attention_dropout_mask(some_dropout(), 2, 3, 1, 7, 9, in.dtype(), in.device())};
}

Tensors embeddings(Inputs& in) {
  const at::Tensor tokens = in.whole(15, {6, 2}), grad = in.normal({10, 8});
  embedding_backward(grad, tokens, in.normal({6, 2, 8}), 3);
  return {kernels::embedding(tokens, in.normal({10, 8}), 3), grad};
}

Tensors products(Inputs& in) {
  const at::Tensor x = in.normal({5, 2, 16}), w = in.normal({12, 16}), dy = in.normal({5, 2, 12});
  const at::Tensor first = in.normal({12, 16}), second = in.normal({12, 16});
  linear_weight_gradient(first, dy, x, 0);
  linear_weight_gradient(second, dy, x, 1);
  return {kernels::linear(x, w), linear_input_gradient(dy, w), first, second};
}

Tensors norms(Inputs& in) {
  const at::Tensor x = in.normal({5, 2, 33}), weight = in.normal({33}), bias = in.normal({33});
  const NormOutput out = kernels::layer_norm(x, weight, bias, 1e-5);
  const at::Tensor dw = in.normal({33}), db = in.normal({33}), bias_gradient = in.normal({33});
  const at::Tensor dx =
      layer_norm_backward(in.normal({5, 2, 33}), x, out.mean, out.rstd, weight, dw, db, 1, in.normal({5, 2, 33}));
  accumulate_bias_gradient(bias_gradient, dx, 1);
  const NormOutput rms = kernels::rms_norm(x, weight, 1e-5);
  const at::Tensor rms_dw = in.normal({33});
  const at::Tensor rms_dx = rms_norm_backward(in.normal({5, 2, 33}), x, rms.rstd, weight, rms_dw, 1);
  return {rms.y, rms.rstd, rms_dx, rms_dw, out.y, out.mean, out.rstd, dx, dw, db, bias_gradient};
}

Tensors residual_branches(Inputs& in) {
  const at::Tensor residual = in.normal({5, 2, 33}), bias = in.normal({33});
  const AddNormOutput both = bias_dropout_add_norm(in.normal({5, 2, 33}), bias, residual, some_dropout(),
                                                   in.normal({33}), in.normal({33}), 1e-5);
  return {bias_dropout_add(in.normal({5, 2, 33}), bias, residual, some_dropout()),
          dropout_backward(in.normal({5, 2, 33}), some_dropout()),
          both.sum,
          both.y,
          both.mean,
          both.rstd};
}

Tensors updates(Inputs& in) {
  const at::Tensor parameter = in.normal({70}), gradient = in.normal({70}), average = in.normal({70});
  const at::Tensor squares = in.normal({70}).abs();
  adam_(parameter, {}, gradient, average, squares, {},
        {.learning_rate = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3});
  const at::Tensor second = in.normal({70}), third = in.normal({70}), momentum = in.normal({70});
  sgd_(second, {}, gradient, momentum, 0.9, {.learning_rate = 1e-2, .weight_decay = 0.1, .decoupled = false});
  const at::Tensor factor = at::full({}, 0.5, gradient.options().dtype(at::kDouble));  // the host does not know it
  lion_(third, {}, gradient, average, {}, {.learning_rate = 1e-2, .weight_decay = 0.1, .factor = factor});
  lion_(third, {}, gradient, average, {}, {.learning_rate = 1e-2, .factor = factor * std::nan("")});
  return {parameter,
          average,
          squares,
          second,
          third,
          momentum,
          sum_of_squares({gradient, second}),
          max_abs({gradient, second})};
}

Tensors random_weights(Inputs& in) {
  const at::Tensor out = in.normal({4, 6});
  fill_normal_(out, 7, 0.02, {4, 12}, 1, 6);
  return {out};
}

const std::vector<Kernel> kKernels = {{"Activation", activations},
                                      {"Attention", attentions},
                                      {"Rope", rotations},
                                      {"CrossEntropy", cross_entropies},
                                      {"Dropout", dropouts},
                                      {"Embedding", embeddings},
                                      {"Product", products},
                                      {"Norm", norms},
                                      {"ResidualBranch", residual_branches},
                                      {"Update", updates},
                                      {"Random", random_weights}};

class EveryKernel : public testing::TestWithParam<Kernel> {
 protected:
  static void expect_matches_cpu_in_float64(at::Device device, at::ScalarType dtype, double tolerance) {
    Inputs truth_inputs(at::kCPU, at::kDouble), inputs(device, dtype);
    const Tensors truth = GetParam().run(truth_inputs), got = GetParam().run(inputs);
    ASSERT_EQ(got.size(), truth.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].sizes(), truth[i].sizes()) << "result " << i;
      EXPECT_LT(relative_error(got[i].cpu(), truth[i]), tolerance) << "result " << i;
    }
  }
};

TEST_P(EveryKernel, InFloat32OnTheCpuMatchesFloat64) { expect_matches_cpu_in_float64(at::kCPU, at::kFloat, 1e-5); }

TEST_P(EveryKernel, OnCudaMatchesTheCpu) {
  NEEDS_A_GPU();
  expect_matches_cpu_in_float64(at::kCUDA, at::kFloat, 1e-5);
  expect_matches_cpu_in_float64(at::kCUDA, at::kDouble, 1e-12);
  expect_matches_cpu_in_float64(at::kCUDA, at::kBFloat16, 0.04);
  expect_matches_cpu_in_float64(at::kCUDA, at::kHalf, 0.005);
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryKernel, testing::ValuesIn(kKernels),
                         [](const auto& p) { return std::string(p.param.name); });

/// Which library computes attention depends on lengths and on what is asked for (cuda/attention_choice.h).
TEST(LibraryAttention, OnCudaMatchesTheReference) {
  NEEDS_A_GPU();
  const auto generator = at::detail::createCPUGenerator(3);
  for (const bool deterministic : {false, true})
    for (const auto& [queries, keys, d, ratio, causal] : {std::tuple{128, 128, 64, 1, true},
                                                          {128, 128, 128, 1, true},
                                                          {200, 200, 64, 2, true},
                                                          {72, 72, 80, 1, true},
                                                          {128, 200, 64, 1, false},
                                                          {64, 200, 64, 3, true},
                                                          {1, 90, 128, 2, true}}) {
      SCOPED_TRACE(testing::Message() << queries << " x " << keys << ", heads of " << d << ", " << ratio << " a group");
      at::globalContext().setDeterministicCuDNN(deterministic);
      const auto drawn = [&](at::IntArrayRef shape) {
        return at::randn(shape, generator, at::kFloat).to(at::kBFloat16);
      };
      const at::Tensor fused = drawn({keys, 2, 2, ratio + 2, d}), dout = drawn({queries, 2, 2 * ratio, d});
      AttentionOptions options;
      options.causal = causal;
      const auto run = [&](at::Device device, at::ScalarType dtype) {
        const at::Tensor qkv = fused.to(device, dtype), gradient = at::zeros_like(qkv);
        const auto heads = [&](const at::Tensor& x) {
          const at::Tensor q = x.narrow(0, 0, queries).narrow(3, 0, ratio);
          return Tensors{ratio == 1 ? q.squeeze(3) : q, x.select(3, ratio), x.select(3, ratio + 1)};
        };
        const Tensors in = heads(qkv), into = heads(gradient);
        const AttentionOutput out = attention(in[0], in[1], in[2], options);
        attention_backward(dout.to(device, dtype), in[0], in[1], in[2], out, options, into[0], into[1], into[2]);
        return Tensors{out.out, out.logsumexp, into[0], into[1], into[2]};
      };
      const Tensors truth = run(at::kCPU, at::kDouble), got = run(at::kCUDA, at::kBFloat16);
      for (std::size_t i = 0; i < truth.size(); ++i) {
        EXPECT_LT(relative_error(got[i].cpu(), truth[i]), 0.02) << "result " << i;
      }
      if (!deterministic) continue;
      const Tensors again = run(at::kCUDA, at::kBFloat16);
      for (std::size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(at::equal(again[i], got[i])) << "result " << i;
    }
  at::globalContext().setDeterministicCuDNN(false);
}

}  // namespace
}  // namespace megatron::kernels
