#include "megatron/kernels/normalization.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/random/random.h"
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
    features_ = dropout.features_or(x_sbh.size(-1));
    words_.resize(static_cast<std::size_t>(cpu::num_threads()) * count_);
  }

  /// The mask of row p * b + i, which lasts until the thread's next call.
  cpu::RowDropout row(std::int64_t row, int thread) {
    if (dropout_.p <= 0) return {nullptr, 0, 1.0f};
    std::uint32_t* words = words_.data() + static_cast<std::size_t>(thread) * count_;
    const std::int64_t first = dropout_.position_of(row / batch_) * features_ + dropout_.feature_offset;
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

/// Partial sums over rows, one row of float32 for each block of rows.
struct Partials {
  const float* data;
  std::int64_t blocks, stride;
};

/// target = beta * target + the sum of the blocks, in float64 and in their order.
void add_partial_sums(const at::Tensor& target, const Partials& partials, double beta) {
  constexpr std::int64_t kColumns = 64;
  cpu::with_storage(target.scalar_type(), [&]<class T>(T) {
    T* out = target.mutable_data_ptr<T>();
    for (std::int64_t begin = 0; begin < target.numel(); begin += kColumns) {
      const std::int64_t count = std::min(kColumns, target.numel() - begin);
      std::array<double, kColumns> sums{};
      for (std::int64_t block = 0; block < partials.blocks; ++block) {
        const float* from = partials.data + block * partials.stride + begin;
        for (std::int64_t j = 0; j < count; ++j) sums[static_cast<std::size_t>(j)] += static_cast<double>(from[j]);
      }
      for (std::int64_t j = 0; j < count; ++j) {
        const double sum = sums[static_cast<std::size_t>(j)];
        const double before = beta == 0 ? 0 : beta * static_cast<double>(static_cast<float>(out[begin + j]));
        out[begin + j] = static_cast<T>(static_cast<float>(before + sum));
      }
    }
  });
}

/// Gradients of weights and biases: float32, or of the dtype of the activations.
bool fast_gradient(const at::Tensor& gradient, at::ScalarType dtype) {
  return !gradient.defined() || cpu::fast(gradient) || cpu::fast_as(dtype, gradient);
}

template <class T>
const T* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

at::Tensor row_vector(const at::Tensor& x) {
  return at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::kFloat));
}

/// The layer norm (mean defined) or RMS norm of `x`, row by row: before(row, thread) comes first.
template <class T, class Before>
void norm_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, const NormOutput& out,
               const Before& before) {
  const auto kernels = cpu::row_kernels<T>();
  const std::int64_t features = x.size(-1);
  const auto count = static_cast<std::size_t>(features);
  const T *x_data = x.const_data_ptr<T>(), *w = weight.const_data_ptr<T>(), *b = data_or_null<T>(bias);
  T* y = out.y.mutable_data_ptr<T>();
  float* mean = out.mean.defined() ? out.mean.mutable_data_ptr<float>() : nullptr;
  float* rstd = out.rstd.mutable_data_ptr<float>();
  for_each_row(x.numel() / features, [&](std::int64_t row, int thread) {
    before(row, thread);
    const std::int64_t at = row * features;
    if (mean == nullptr) {
      rstd[row] = kernels.rms_norm(x_data + at, w, y + at, count, static_cast<float>(eps));
      return;
    }
    const auto statistics = kernels.layer_norm(x_data + at, w, b, y + at, count, static_cast<float>(eps));
    mean[row] = statistics.mean;
    rstd[row] = statistics.rstd;
  });
}

NormOutput norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, bool centred) {
  const NormOutput out{at::empty_like(x), centred ? row_vector(x) : at::Tensor(), row_vector(x)};
  cpu::with_storage(x.scalar_type(),
                    [&]<class T>(T) { norm_rows<T>(x, weight, bias, eps, out, [](std::int64_t, int) {}); });
  return out;
}

/// What both backward passes take; mean, grad_bias undefined: an RMS norm.
struct BackwardInputs {
  const at::Tensor &dy, &x, &mean, &rstd, &weight, &grad_weight, &grad_bias, &residual_gradient;
  bool fast() const {
    const auto dtype = x.scalar_type();
    return cpu::fast_as(dtype, dy, x, weight, residual_gradient) && cpu::fast(rstd) && cpu::fast_or_absent(mean) &&
           fast_gradient(grad_weight, dtype) && fast_gradient(grad_bias, dtype) && x.numel() > 0;
  }
};

at::Tensor norm_backward(const BackwardInputs& in, double beta) {
  const std::int64_t features = in.x.size(-1), rows = in.x.numel() / features, blocks = row_blocks(rows);
  at::Tensor dx = at::empty_like(in.x);
  const at::Tensor partial = at::zeros({blocks, 2, features}, at::kFloat);  // gradients of weight and bias, by block
  float* sums = partial.mutable_data_ptr<float>();
  const float *mean = data_or_null<float>(in.mean), *rstd = in.rstd.const_data_ptr<float>();
  cpu::with_storage(in.x.scalar_type(), [&]<class T>(T) {
    const auto kernels = cpu::row_kernels<T>();
    const T *dy = in.dy.const_data_ptr<T>(), *x = in.x.const_data_ptr<T>(), *w = in.weight.const_data_ptr<T>(),
            *past = data_or_null<T>(in.residual_gradient);
    T* to = dx.mutable_data_ptr<T>();
    for_each_row(rows, [&](std::int64_t row, int) {
      const std::int64_t at = row * features;
      const T* past_row = past != nullptr ? past + at : nullptr;
      float* block_sums = sums + row / kRowBlock * 2 * features;
      const auto count = static_cast<std::size_t>(features);
      if (mean != nullptr) {
        kernels.layer_norm_backward(dy + at, x + at, {mean[row], rstd[row]}, w, past_row, to + at, block_sums,
                                    block_sums + features, count);
      } else {
        kernels.rms_norm_backward(dy + at, x + at, rstd[row], w, past_row, to + at, block_sums, count);
      }
    });
  });
  add_partial_sums(in.grad_weight, {sums, blocks, 2 * features}, beta);
  if (in.grad_bias.defined()) add_partial_sums(in.grad_bias, {sums + features, blocks, 2 * features}, beta);
  return dx;
}

/// x = residual + dropout(x + bias) and the norm of it.
AddNormOutput add_norm(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout,
                       const at::Tensor& weight, const at::Tensor& norm_bias, double eps, bool centred) {
  const NormOutput out{at::empty_like(x), centred ? row_vector(x) : at::Tensor(), row_vector(x)};
  RowMasks masks(dropout, x);
  const std::int64_t features = x.size(-1);
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto add = cpu::row_kernels<T>().bias_dropout_add;
    T* x_data = x.mutable_data_ptr<T>();
    const T *r = residual.const_data_ptr<T>(), *b = data_or_null<T>(bias);
    norm_rows<T>(x, weight, norm_bias, eps, out, [&](std::int64_t row, int thread) {
      add(x_data + row * features, b, r + row * features, static_cast<std::size_t>(features), masks.row(row, thread));
    });
  });
  return {x, out.y, out.mean, out.rstd};
}

}  // namespace

namespace cpu {

NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  if (!cpu::fast_as(x.scalar_type(), x, weight, bias) || x.numel() == 0) {
    return reference::layer_norm(x, weight, bias, eps);
  }
  return norm(x, weight, bias, eps, true);
}

NormOutput rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!cpu::fast_as(x.scalar_type(), x, weight) || x.numel() == 0) return reference::rms_norm(x, weight, eps);
  return norm(x, weight, {}, eps, false);
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
  const BackwardInputs in{dy, x, mean, rstd, weight, grad_weight, grad_bias, residual_gradient};
  if (in.fast()) return norm_backward(in, beta);
  return reference::layer_norm_backward(dy, x, mean, rstd, weight, grad_weight, grad_bias, beta, residual_gradient);
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                             const at::Tensor& residual_gradient) {
  const at::Tensor none;
  const BackwardInputs in{dy, x, none, rstd, weight, grad_weight, none, residual_gradient};
  if (in.fast()) return norm_backward(in, beta);
  return reference::rms_norm_backward(dy, x, rstd, weight, grad_weight, beta, residual_gradient);
}

at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout) {
  if (!cpu::fast_as(x.scalar_type(), x, residual, bias) || x.numel() == 0) {
    return reference::bias_dropout_add(std::move(x), bias, residual, dropout);
  }
  const std::int64_t features = x.size(-1);
  RowMasks masks(dropout, x);
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto add = cpu::row_kernels<T>().bias_dropout_add;
    T* x_data = x.mutable_data_ptr<T>();
    const T *r = residual.const_data_ptr<T>(), *b = data_or_null<T>(bias);
    for_each_row(x.numel() / features, [&](std::int64_t row, int thread) {
      add(x_data + row * features, b, r + row * features, static_cast<std::size_t>(features), masks.row(row, thread));
    });
  });
  return x;
}

at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
  if (dropout.p <= 0) return dy;
  if (!cpu::fast_as(dy.scalar_type(), dy) || dy.numel() == 0) return reference::dropout_backward(dy, dropout);
  const std::int64_t features = dy.size(-1);
  RowMasks masks(dropout, dy);
  at::Tensor dx = at::empty_like(dy);
  cpu::with_storage(dy.scalar_type(), [&]<class T>(T) {
    const auto drop = cpu::row_kernels<T>().dropout;
    const T* from = dy.const_data_ptr<T>();
    T* to = dx.mutable_data_ptr<T>();
    for_each_row(dy.numel() / features, [&](std::int64_t row, int thread) {
      drop(from + row * features, to + row * features, static_cast<std::size_t>(features), masks.row(row, thread));
    });
  });
  return dx;
}

AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps) {
  if (!cpu::fast_as(x.scalar_type(), x, bias, residual, weight, norm_bias) || x.numel() == 0) {
    return reference::bias_dropout_add_norm(std::move(x), bias, residual, dropout, weight, norm_bias, eps);
  }
  return add_norm(x, bias, residual, dropout, weight, norm_bias, eps, true);
}

AddNormOutput bias_dropout_add_rms_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                        const Dropout& dropout, const at::Tensor& weight, double eps) {
  if (!cpu::fast_as(x.scalar_type(), x, bias, residual, weight) || x.numel() == 0) {
    return reference::bias_dropout_add_rms_norm(std::move(x), bias, residual, dropout, weight, eps);
  }
  return add_norm(x, bias, residual, dropout, weight, {}, eps, false);
}

void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
  const auto dtype = dy.scalar_type();
  if (!cpu::fast_as(dtype, dy) || !fast_gradient(grad_bias, dtype) || dy.numel() == 0) {
    return reference::accumulate_bias_gradient(grad_bias, dy, beta);
  }
  const std::int64_t features = dy.size(-1), rows = dy.numel() / features, blocks = row_blocks(rows);
  const at::Tensor partial = at::zeros({blocks, features}, at::kFloat);
  float* sums = partial.mutable_data_ptr<float>();
  cpu::with_storage(dtype, [&]<class T>(T) {
    const auto add = cpu::row_kernels<T>().add_rows;
    const T* from = dy.const_data_ptr<T>();
    cpu::for_each_block(blocks, [&](std::int64_t block, int) {
      const std::int64_t first = block * kRowBlock, count = std::min(kRowBlock, rows - first);
      add(sums + block * features, from + first * features, static_cast<std::size_t>(count),
          static_cast<std::size_t>(features));
    });
  });
  add_partial_sums(grad_bias, {sums, blocks, features}, beta);
}

AddNormInputGradients bias_dropout_add_norm_backward(const at::Tensor& dy, const at::Tensor& sum,
                                                     const at::Tensor& mean, const at::Tensor& rstd,
                                                     const at::Tensor& weight, const at::Tensor& residual_gradient,
                                                     const Dropout& dropout, const AddNormGradients& into) {
  const at::Tensor residual =
      mean.defined() ? cpu::layer_norm_backward(dy, sum, mean, rstd, weight, into.weight, into.norm_bias,
                                                into.norm_beta, residual_gradient)
                     : cpu::rms_norm_backward(dy, sum, rstd, weight, into.weight, into.norm_beta, residual_gradient);
  const at::Tensor x = cpu::dropout_backward(residual, dropout);
  if (into.bias.defined()) cpu::accumulate_bias_gradient(into.bias, x, into.bias_beta);
  return {residual, x};
}

void linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                      const at::Tensor& grad_bias, double bias_beta) {
  cpu::linear_weight_gradient(grad_w, dy, x, beta);
  cpu::accumulate_bias_gradient(grad_bias, dy, bias_beta);
}

}  // namespace cpu
}  // namespace megatron::kernels
