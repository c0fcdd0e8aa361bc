#include "megatron/kernels/normalization.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/random.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kRowBlock = 32;  // rows that one thread takes at a time; sums over rows follow these blocks

std::int64_t row_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

/// Calls fn(row, thread) for every row, in blocks.
template <class Fn>
void for_each_row(std::int64_t rows, const Fn& fn) {
  cpu::for_each_block(row_blocks(rows), [&](std::int64_t block, int thread) {
    for (std::int64_t row = block * kRowBlock; row < std::min(rows, (block + 1) * kRowBlock); ++row) fn(row, thread);
  });
}

/// The masks of an activation [s, b, h], row by row.
class RowMasks {
 public:
  RowMasks(const Dropout& dropout, const at::Tensor& x_sbh)
      : dropout_(dropout),
        batch_(x_sbh.dim() == 3 ? x_sbh.size(1) : 1),
        count_(static_cast<std::size_t>(x_sbh.size(-1))) {
    if (dropout.p <= 0) return;
    ids_ = dropout.sample_ids.contiguous();
    features_ = dropout.features > 0 ? dropout.features : x_sbh.size(-1);
    words_.resize(static_cast<std::size_t>(cpu::num_threads()) * count_);
  }

  /// The mask of row p * b + i, which lasts until the thread's next call.
  cpu::RowDropout row(std::int64_t row, int thread) {
    if (dropout_.p <= 0) return {nullptr, 0, 1.0f};
    std::uint32_t* words = words_.data() + static_cast<std::size_t>(thread) * count_;
    const std::int64_t first = (dropout_.position_offset + row / batch_) * features_ + dropout_.feature_offset;
    cpu::random_words(dropout_.key, static_cast<std::uint64_t>(ids_.const_data_ptr<std::int64_t>()[row % batch_]),
                      static_cast<std::uint64_t>(first), count_, words);
    return {words, dropout_threshold(dropout_.p), dropout_.p < 1 ? static_cast<float>(1.0 / (1.0 - dropout_.p)) : 0.0f};
  }

 private:
  const Dropout& dropout_;
  at::Tensor ids_;
  std::int64_t batch_, features_ = 0;
  std::size_t count_;
  std::vector<std::uint32_t> words_;  ///< a row for each thread: nothing may throw inside a parallel region
};

/// target = beta * target + the sum of the rows of `partial` [blocks, count], summed in float64 and in order.
void add_partial_sums(const at::Tensor& target, const float* partial, std::int64_t blocks, std::int64_t stride,
                      double beta) {
  float* out = target.mutable_data_ptr<float>();
  for (std::int64_t j = 0; j < target.numel(); ++j) {
    double sum = 0;
    for (std::int64_t block = 0; block < blocks; ++block) sum += static_cast<double>(partial[block * stride + j]);
    out[j] = static_cast<float>(beta == 0 ? sum : beta * static_cast<double>(out[j]) + sum);
  }
}

}  // namespace

NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const c10::NoGradGuard no_grad;
  if (!cpu::all_fast(x, weight, bias) || x.numel() == 0) return reference::layer_norm(x, weight, bias, eps);
  const std::int64_t features = x.size(-1), rows = x.numel() / features;
  NormOutput out{at::empty_like(x), at::empty({rows}, x.options()), at::empty({rows}, x.options())};
  const float *x_data = x.const_data_ptr<float>(), *w = weight.const_data_ptr<float>(),
              *b = bias.const_data_ptr<float>();
  float *y = out.y.mutable_data_ptr<float>(), *mean = out.mean.mutable_data_ptr<float>();
  float* rstd = out.rstd.mutable_data_ptr<float>();
  for_each_row(rows, [&](std::int64_t row, int) {
    const auto statistics = cpu::layer_norm_row(x_data + row * features, w, b, y + row * features,
                                                static_cast<std::size_t>(features), static_cast<float>(eps));
    mean[row] = statistics.mean;
    rstd[row] = statistics.rstd;
  });
  return out;
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
  const c10::NoGradGuard no_grad;
  if (!cpu::all_fast(dy, x, mean, rstd, weight, grad_weight, grad_bias) || !cpu::fast_or_absent(residual_gradient) ||
      x.numel() == 0) {
    return reference::layer_norm_backward(dy, x, mean, rstd, weight, grad_weight, grad_bias, beta, residual_gradient);
  }
  const std::int64_t features = x.size(-1), rows = x.numel() / features, blocks = row_blocks(rows);
  at::Tensor dx = at::empty_like(x);
  const at::Tensor partial = at::zeros({blocks, 2, features}, x.options());  // gradients of weight and bias, by block
  const float *dy_data = dy.const_data_ptr<float>(), *x_data = x.const_data_ptr<float>();
  const float *mean_data = mean.const_data_ptr<float>(), *rstd_data = rstd.const_data_ptr<float>();
  const float *w = weight.const_data_ptr<float>(),
              *past = residual_gradient.defined() ? residual_gradient.const_data_ptr<float>() : nullptr;
  float *dx_data = dx.mutable_data_ptr<float>(), *sums = partial.mutable_data_ptr<float>();
  for_each_row(rows, [&](std::int64_t row, int) {
    const std::int64_t at = row * features;
    float* block_sums = sums + row / kRowBlock * 2 * features;
    cpu::layer_norm_backward_row(dy_data + at, x_data + at, {mean_data[row], rstd_data[row]}, w,
                                 past != nullptr ? past + at : nullptr, dx_data + at, block_sums, block_sums + features,
                                 static_cast<std::size_t>(features));
  });
  add_partial_sums(grad_weight, sums, blocks, 2 * features, beta);
  add_partial_sums(grad_bias, sums + features, blocks, 2 * features, beta);
  return dx;
}

at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout) {
  const c10::NoGradGuard no_grad;
  if (!cpu::all_fast(x, residual) || !cpu::fast_or_absent(bias) || x.numel() == 0) {
    return reference::bias_dropout_add(std::move(x), bias, residual, dropout);
  }
  const std::int64_t features = x.size(-1);
  RowMasks masks(dropout, x);
  float* x_data = x.mutable_data_ptr<float>();
  const float *r = residual.const_data_ptr<float>(), *b = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  for_each_row(x.numel() / features, [&](std::int64_t row, int thread) {
    cpu::bias_dropout_add_row(x_data + row * features, b, r + row * features, static_cast<std::size_t>(features),
                              masks.row(row, thread));
  });
  return x;
}

at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
  const c10::NoGradGuard no_grad;
  if (dropout.p <= 0) return dy;
  if (!cpu::fast(dy) || dy.numel() == 0) return reference::dropout_backward(dy, dropout);
  const std::int64_t features = dy.size(-1);
  RowMasks masks(dropout, dy);
  at::Tensor dx = at::empty_like(dy);
  const float* from = dy.const_data_ptr<float>();
  float* to = dx.mutable_data_ptr<float>();
  for_each_row(dy.numel() / features, [&](std::int64_t row, int thread) {
    cpu::dropout_row(from + row * features, to + row * features, static_cast<std::size_t>(features),
                     masks.row(row, thread));
  });
  return dx;
}

AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps) {
  const c10::NoGradGuard no_grad;
  if (!cpu::all_fast(x, residual, weight, norm_bias) || !cpu::fast_or_absent(bias) || x.numel() == 0) {
    return reference::bias_dropout_add_norm(std::move(x), bias, residual, dropout, weight, norm_bias, eps);
  }
  const std::int64_t features = x.size(-1), rows = x.numel() / features;
  const auto count = static_cast<std::size_t>(features);
  AddNormOutput out{x, at::empty_like(x), at::empty({rows}, x.options()), at::empty({rows}, x.options())};
  RowMasks masks(dropout, x);
  float *x_data = x.mutable_data_ptr<float>(), *y = out.y.mutable_data_ptr<float>();
  float *mean = out.mean.mutable_data_ptr<float>(), *rstd = out.rstd.mutable_data_ptr<float>();
  const float *r = residual.const_data_ptr<float>(), *b = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  const float *w = weight.const_data_ptr<float>(), *nb = norm_bias.const_data_ptr<float>();
  for_each_row(rows, [&](std::int64_t row, int thread) {
    const std::int64_t at = row * features;
    cpu::bias_dropout_add_row(x_data + at, b, r + at, count, masks.row(row, thread));
    const auto statistics = cpu::layer_norm_row(x_data + at, w, nb, y + at, count, static_cast<float>(eps));
    mean[row] = statistics.mean;
    rstd[row] = statistics.rstd;
  });
  return out;
}

NormOutput rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const c10::NoGradGuard no_grad;
  return reference::rms_norm(x, weight, eps);
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                             const at::Tensor& residual_gradient) {
  const c10::NoGradGuard no_grad;
  return reference::rms_norm_backward(dy, x, rstd, weight, grad_weight, beta, residual_gradient);
}

AddNormOutput bias_dropout_add_rms_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                        const Dropout& dropout, const at::Tensor& weight, double eps) {
  const c10::NoGradGuard no_grad;
  return reference::bias_dropout_add_rms_norm(std::move(x), bias, residual, dropout, weight, eps);
}

void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
  const c10::NoGradGuard no_grad;
  if (!cpu::all_fast(grad_bias, dy) || dy.numel() == 0) return reference::accumulate_bias_gradient(grad_bias, dy, beta);
  const std::int64_t features = dy.size(-1), rows = dy.numel() / features, blocks = row_blocks(rows);
  const at::Tensor partial = at::zeros({blocks, features}, dy.options());
  const float* from = dy.const_data_ptr<float>();
  float* sums = partial.mutable_data_ptr<float>();
  for_each_row(rows, [&](std::int64_t row, int) {
    cpu::add_run(sums + row / kRowBlock * features, from + row * features, static_cast<std::size_t>(features));
  });
  add_partial_sums(grad_bias, sums, blocks, features, beta);
}

}  // namespace megatron::kernels
