#include "megatron/kernels/optimizer.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/random/random.h"
#include "megatron/kernels/cpu/update.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 16;  // what a thread takes at a time, and what sums follow
constexpr std::int64_t kChunk = 1024;                   // what conversions keep in the first cache

std::int64_t num_blocks(const at::Tensor& x) { return (x.numel() + kBlock - 1) / kBlock; }

/// Calls run(at, count) for the chunks of block `i` of x.
template <class Run>
void by_chunk(const at::Tensor& x, std::int64_t i, const Run& run) {
  const std::int64_t end = std::min(x.numel(), (i + 1) * kBlock);
  for (std::int64_t at = i * kBlock; at < end; at += kChunk)
    run(at, static_cast<std::size_t>(std::min(kChunk, end - at)));
}

struct alignas(64) Chunk {
  float values[kChunk];
};

/// A flat tensor whose chunks are computed with in float32: where they are, or converted.
class Column {
 public:
  explicit Column(const at::Tensor& x) : type_(x.defined() ? x.scalar_type() : at::kFloat) {
    data_ = x.defined() ? x.data_ptr() : nullptr;
  }
  /// Null where the tensor is undefined.
  float* load(std::int64_t at, std::size_t count, Chunk& scratch) const {
    if (data_ == nullptr) return nullptr;
    if (type_ == at::kFloat) return static_cast<float*>(data_) + at;
    type_ == at::kHalf ? cpu::widen_run(static_cast<const c10::Half*>(data_) + at, scratch.values, count)
                       : cpu::widen_run(static_cast<const c10::BFloat16*>(data_) + at, scratch.values, count);
    return scratch.values;
  }
  /// Writes back what load gave, or a copy of it (`is_copy`, which need not be in the caches); `o` says how it is
  /// rounded.
  void store(const float* from, std::int64_t at, std::size_t count, const Update& o, Stored stored,
             bool is_copy = false) const;

 private:
  void* data_;
  at::ScalarType type_;
};

/// The words that round elements [at, at + count) of the range.
void rounding_words(const Update& o, Stored stored, std::int64_t at, std::int64_t count, std::uint32_t* words) {
  const ElementNumbers& n = o.numbers;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t i = at + done, within = i % n.run;
    const std::int64_t taken = n.stride == n.run ? count : std::min(n.run - within, count - done);
    const std::int64_t number = n.first + i / n.run * n.stride + within;
    cpu::random_words(n.key, rounding_sample(o.step, stored), static_cast<std::uint64_t>(number),
                      static_cast<std::size_t>(taken), words + done);
    done += taken;
  }
}

void Column::store(const float* from, std::int64_t at, std::size_t count, const Update& o, Stored stored,
                   bool is_copy) const {
  if (data_ == nullptr || type_ == at::kFloat) return;
  if (type_ == at::kHalf) return cpu::narrow_run(from, static_cast<c10::Half*>(data_) + at, count);
  auto* to = static_cast<c10::BFloat16*>(data_) + at;
  if (!o.stochastic_rounding) return is_copy ? cpu::stream_run(from, to, count) : cpu::narrow_run(from, to, count);
  std::uint32_t words[kChunk];
  rounding_words(o, stored, at, static_cast<std::int64_t>(count), words);
  cpu::narrow_stochastically_run(from, words, to, count);
}

/// Whether the vector kernels may update these tensors: contiguous float32, bf16 or fp16, and fp16 rounded to nearest.
template <class... Tensors>
bool fast_update(const Update& o, const Tensors&... x) {
  const auto known = [&](const at::Tensor& t) {
    if (!t.defined()) return true;
    return cpu::fast_as(t.scalar_type(), t) && !(o.stochastic_rounding && t.scalar_type() == at::kHalf);
  };
  return (known(x) && ...);
}

/// What an update reads and writes; what is undefined is left out.
struct Columns {
  const at::Tensor &param, &model, &grad, &first_moment, &second_moment;
};

/// step(param, grad, first moment, second moment, count) for every chunk, and what it changed is stored.
template <class Step>
void update_by_chunk(const Columns& x, const Update& o, const Step& step) {
  const Column param(x.param), model(x.model), grad(x.grad), first(x.first_moment), second(x.second_moment);
  cpu::for_each_block(num_blocks(x.param), [&](std::int64_t block, int) {
    Chunk param_scratch, grad_scratch, first_scratch, second_scratch;
    by_chunk(x.param, block, [&](std::int64_t at, std::size_t count) {
      float* p = param.load(at, count, param_scratch);
      const float* g = grad.load(at, count, grad_scratch);
      float *m = first.load(at, count, first_scratch), *v = second.load(at, count, second_scratch);
      step(p, g, m, v, count);
      first.store(m, at, count, o, Stored::FirstMoment);
      second.store(v, at, count, o, Stored::SecondMoment);
      param.store(p, at, count, o, Stored::Parameter);
      model.store(p, at, count, o, Stored::Parameter, /*is_copy=*/true);
    });
  });
  written_to(x.param);
  if (x.model.defined()) written_to(x.model);
}

/// What multiplies the gradient; nothing where the update is left out.
std::optional<double> factor_of(const Update& o) {
  if (!o.factor.defined()) return o.grad_scale;
  const double factor = *o.factor.const_data_ptr<double>();
  return std::isnan(factor) ? std::nullopt : std::optional(factor);
}

cpu::UpdateCoefficients coefficients_of(const Update& o, double scale) {
  return {.grad_scale = static_cast<float>(scale),
          .l2 = o.decoupled ? 0.0f : static_cast<float>(o.weight_decay),
          .decay = o.decoupled ? static_cast<float>(1 - o.learning_rate * o.weight_decay) : 1.0f};
}

/// fold(result, run(values, count)) over the blocks of x, in their order.
template <class T>
std::vector<T> by_block(const at::Tensor& x, T (*run)(const float*, std::size_t), T (*fold)(T, T)) {
  std::vector<T> results(static_cast<std::size_t>(num_blocks(x)), T{0});
  const Column values(x);
  cpu::for_each_block(num_blocks(x), [&](std::int64_t i, int) {
    Chunk scratch;
    T& result = results[static_cast<std::size_t>(i)];
    by_chunk(x, i, [&](std::int64_t at, std::size_t count) {
      result = fold(result, run(values.load(at, count, scratch), count));
    });
  });
  return results;
}

template <class T>
T larger_or_nan(T a, T b) {
  return std::isnan(a) || a > b ? a : b;
}

double squares_in(const at::Tensor& x) {
  if (!cpu::fast_as(x.scalar_type(), x)) return *reference::sum_of_squares(x).const_data_ptr<double>();
  const auto add = [](double a, double b) { return a + b; };
  double sum = 0;
  for (const double part : by_block<double>(x, cpu::sum_of_squares_run, add)) sum += part;
  return sum;
}

double largest_in(const at::Tensor& x) {
  if (!cpu::fast_as(x.scalar_type(), x)) return *reference::max_abs(x).const_data_ptr<double>();
  float largest = 0;
  for (const float part : by_block<float>(x, cpu::max_abs_run, larger_or_nan<float>))
    largest = larger_or_nan(largest, part);
  return static_cast<double>(largest);
}

}  // namespace

namespace cpu {

void adam_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const Adam& adam, const Update& o) {
  if (!fast_update(o, param, model, grad, exp_avg, exp_avg_sq)) {
    return reference::adam_(param, model, grad, exp_avg, exp_avg_sq, adam, o);
  }
  const std::optional<double> scale = factor_of(o);
  if (!scale) return;
  const double correction1 = 1 - std::pow(adam.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(adam.beta2, static_cast<double>(o.step));
  const cpu::AdamCoefficients coefficients{.update = coefficients_of(o, *scale),
                                           .beta1 = static_cast<float>(adam.beta1),
                                           .one_minus_beta1 = static_cast<float>(1 - adam.beta1),
                                           .beta2 = static_cast<float>(adam.beta2),
                                           .one_minus_beta2 = static_cast<float>(1 - adam.beta2),
                                           .step_size = static_cast<float>(o.learning_rate / correction1),
                                           .inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2)),
                                           .eps = static_cast<float>(adam.eps)};
  update_by_chunk({param, model, grad, exp_avg, exp_avg_sq}, o,
                  [&](float* p, const float* g, float* m, float* v, std::size_t count) {
                    cpu::adam_run(p, g, m, v, count, coefficients);
                  });
}

void sgd_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& momentum_buffer,
          double momentum, const Update& o) {
  if (!fast_update(o, param, model, grad, momentum_buffer)) {
    return reference::sgd_(param, model, grad, momentum_buffer, momentum, o);
  }
  const std::optional<double> scale = factor_of(o);
  if (!scale) return;
  const cpu::SgdCoefficients coefficients{.update = coefficients_of(o, *scale),
                                          .momentum = static_cast<float>(momentum),
                                          .learning_rate = static_cast<float>(o.learning_rate)};
  update_by_chunk({param, model, grad, momentum_buffer, {}}, o,
                  [&](float* p, const float* g, float* buffer, float*, std::size_t count) {
                    cpu::sgd_run(p, g, buffer, count, coefficients);
                  });
}

void lion_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const Lion& lion, const Update& o) {
  if (!fast_update(o, param, model, grad, exp_avg)) {
    return reference::lion_(param, model, grad, exp_avg, lion, o);
  }
  const std::optional<double> scale = factor_of(o);
  if (!scale) return;
  const cpu::LionCoefficients coefficients{.update = coefficients_of(o, *scale),
                                           .beta1 = static_cast<float>(lion.beta1),
                                           .one_minus_beta1 = static_cast<float>(1 - lion.beta1),
                                           .beta2 = static_cast<float>(lion.beta2),
                                           .one_minus_beta2 = static_cast<float>(1 - lion.beta2),
                                           .learning_rate = static_cast<float>(o.learning_rate)};
  update_by_chunk({param, model, grad, exp_avg, {}}, o,
                  [&](float* p, const float* g, float* m, float*, std::size_t count) {
                    cpu::lion_run(p, g, m, count, coefficients);
                  });
}

void round_(const at::Tensor& model, const at::Tensor& param, const Update& o) {
  if (!fast_update(o, model, param)) return reference::round_(model, param, o);
  const Column from(param), to(model);
  cpu::for_each_block(num_blocks(param), [&](std::int64_t block, int) {
    Chunk scratch;
    by_chunk(param, block, [&](std::int64_t at, std::size_t count) {
      to.store(from.load(at, count, scratch), at, count, o, Stored::Parameter);
    });
  });
  written_to(model);
}

at::Tensor sum_of_squares(at::TensorList parts) {
  double sum = 0;
  for (const at::Tensor& x : parts) sum += squares_in(x);
  return at::scalar_tensor(sum, at::kDouble);
}

at::Tensor max_abs(at::TensorList parts) {
  double largest = 0;
  for (const at::Tensor& x : parts) largest = larger_or_nan(largest, largest_in(x));
  return at::scalar_tensor(largest, at::kDouble);
}

}  // namespace cpu
}  // namespace megatron::kernels
