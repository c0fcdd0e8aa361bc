#include "megatron/kernels/attention.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <stdexcept>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/attention.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

void check_groups(const at::Tensor& q, const at::Tensor& k) {
  const std::int64_t groups = k.size(2);
  if (q.dim() == 5 ? q.size(2) != groups : q.size(2) % groups != 0)
    throw std::logic_error("query heads that the groups of keys do not divide");
}

/// float32 on the CPU with each head's elements side by side.
bool rows_fast(const at::Tensor& x_sbnd) {
  constexpr std::int64_t kLargestStride = std::int64_t{1} << 27;  // 16 of them fit a 32-bit index
  return x_sbnd.dim() == 4 && x_sbnd.is_cpu() && x_sbnd.scalar_type() == at::kFloat &&
         (x_sbnd.stride(3) == 1 || x_sbnd.size(3) == 1) && x_sbnd.stride(0) < kLargestStride && x_sbnd.numel() > 0;
}

template <class... Tensors>
bool fast(const AttentionOptions& options, const Tensors&... x_sbnd) {
  return cpu::enabled() && options.scale >= 0 && (rows_fast(x_sbnd) && ...);
}

cpu::Heads heads_of(const at::Tensor& x_sbnd) {
  return {x_sbnd.const_data_ptr<float>(), x_sbnd.stride(0), x_sbnd.stride(1), x_sbnd.stride(2)};
}
cpu::MutableHeads mutable_heads_of(const at::Tensor& x_sbnd) {
  return {x_sbnd.mutable_data_ptr<float>(), x_sbnd.stride(0), x_sbnd.stride(1), x_sbnd.stride(2)};
}

/// The problem as pointers, and the tensors that keep them valid.
struct Prepared {
  cpu::AttentionProblem problem;
  at::Tensor first_key, sample_ids;
};

Prepared prepare(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
  Prepared prepared{};
  cpu::AttentionProblem& p = prepared.problem;
  const auto extent = [](const at::Tensor& x, int dim) { return static_cast<std::size_t>(x.size(dim)); };
  p.queries = extent(q, 0);
  p.keys = extent(k, 0);
  p.batch = extent(q, 1);
  p.heads = extent(q, 2);
  p.size = extent(q, 3);
  p.scale = static_cast<float>(options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(p.size)));
  p.causal = options.causal;
  p.q = heads_of(q);
  p.k = heads_of(k);
  p.v = heads_of(v);
  if (options.first_key.defined()) {
    prepared.first_key = options.first_key.to(at::kInt).contiguous();
    p.first_key = prepared.first_key.const_data_ptr<std::int32_t>();
  }
  if (options.dropout.p > 0) {
    prepared.sample_ids = options.dropout.sample_ids.contiguous();
    p.sample_ids = prepared.sample_ids.const_data_ptr<std::int64_t>();
    p.dropout_key = options.dropout.key;
    p.dropout_threshold = dropout_threshold(options.dropout.p);
    p.keep_scale = options.dropout.p < 1 ? static_cast<float>(1.0 / (1.0 - options.dropout.p)) : 0.0f;
    p.head_offset = static_cast<std::size_t>(options.head_offset);
  }
  return prepared;
}

/// One part of `floats` for each thread.
struct Scratch {
  explicit Scratch(std::size_t floats, int parts = cpu::num_threads())
      : stride(floats), memory(at::empty({parts, static_cast<std::int64_t>(floats)}, at::kFloat)) {}
  float* part(std::size_t index) const { return memory.mutable_data_ptr<float>() + index * stride; }

  std::size_t stride;
  at::Tensor memory;
};

AttentionOutput forward_fast(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionOptions& options) {
  const Prepared prepared = prepare(q, k, v, options);
  const cpu::AttentionProblem& p = prepared.problem;
  AttentionOutput result{at::empty(q.sizes(), q.options()), at::empty({q.size(1), q.size(2), q.size(0)}, q.options())};
  const cpu::MutableHeads out = mutable_heads_of(result.out);
  float* logsumexp = result.logsumexp.mutable_data_ptr<float>();
  const Scratch scratch(cpu::forward_scratch_floats(p));
  const auto thread_part = [&](int thread) { return scratch.part(static_cast<std::size_t>(thread)); };
  const std::size_t pairs = p.batch * p.heads;
  if (p.queries <= cpu::kFewQueries && p.sample_ids == nullptr) {
    cpu::for_each_block(static_cast<std::int64_t>(pairs), [&](std::int64_t i, int thread) {
      const auto pair = static_cast<std::size_t>(i);
      cpu::attention_few_queries(p, pair / p.heads, pair % p.heads, out, logsumexp, thread_part(thread));
    });
    return result;
  }
  const Scratch packed(cpu::packed_floats(p), static_cast<int>(pairs));
  cpu::for_each_block(static_cast<std::int64_t>(pairs), [&](std::int64_t i, int) {
    const auto pair = static_cast<std::size_t>(i);
    cpu::pack_keys_and_values(p, pair / p.heads, pair % p.heads, packed.part(pair));
  });
  const std::size_t blocks = (p.queries + cpu::kQueryBlock - 1) / cpu::kQueryBlock;
  cpu::for_each_block(static_cast<std::int64_t>(pairs * blocks), [&](std::int64_t i, int thread) {
    const auto pair = static_cast<std::size_t>(i) / blocks, block = blocks - 1 - static_cast<std::size_t>(i) % blocks;
    cpu::attention_forward(p, pair / p.heads, pair % p.heads, block, packed.part(pair), out, logsumexp,
                           thread_part(thread));
  });
  return result;
}

}  // namespace

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  const c10::NoGradGuard no_grad;
  check_groups(q, k);
  return q.size(2) == k.size(2) && fast(options, q, k, v) ? forward_fast(q, k, v, options)
                                                          : reference::attention(q, k, v, options);
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv) {
  const c10::NoGradGuard no_grad;
  check_groups(q, k);
  if (q.size(2) != k.size(2) || !fast(options, dout, q, k, v, forward.out, dq, dk, dv)) {
    return reference::attention_backward(dout, q, k, v, forward, options, dq, dk, dv);
  }
  const Prepared prepared = prepare(q, k, v, options);
  const cpu::AttentionProblem& p = prepared.problem;
  const float* logsumexp = forward.logsumexp.const_data_ptr<float>();
  const Scratch scratch(cpu::backward_scratch_floats(p));
  cpu::for_each_block(static_cast<std::int64_t>(p.batch * p.heads), [&](std::int64_t i, int thread) {
    const auto pair = static_cast<std::size_t>(i);
    cpu::attention_backward(p, pair / p.heads, pair % p.heads, heads_of(dout), heads_of(forward.out), logsumexp,
                            mutable_heads_of(dq), mutable_heads_of(dk), mutable_heads_of(dv),
                            scratch.part(static_cast<std::size_t>(thread)));
  });
}

}  // namespace megatron::kernels
