#include "megatron/kernels/decode.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/elementwise/element_of.h"
#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/elementwise/rope.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"

namespace megatron::kernels {
namespace {

/// Calls fn(row, elements before it, features): over threads where the rows are worth waking them.
template <class Fn>
void for_rows(const at::Tensor& x, const Fn& fn) {
  constexpr std::int64_t kWorthThreads = 8192;
  const std::int64_t rows = x.size(0), features = x.size(1);
  const auto one = [&](std::int64_t row, int) { fn(row, row * features, static_cast<std::size_t>(features)); };
  if (rows * features > kWorthThreads) return cpu::for_each_block(rows, one);
  for (std::int64_t row = 0; row < rows; ++row) one(row, 0);
}

template <class T>
const T* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

/// x += bias, x += residual, whose rows are `step` elements apart.
void add_rows(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual, std::int64_t step) {
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto add = cpu::row_kernels<T>().bias_dropout_add;
    T* to = x.mutable_data_ptr<T>();
    const T *b = data_or_null<T>(bias), *r = residual.const_data_ptr<T>();
    for_rows(x, [&](std::int64_t row, std::int64_t at, std::size_t count) {
      add(to + at, b, r + row * step, count, {nullptr, 0, 1.0f});
    });
  });
}

std::byte* bytes(const at::Tensor& x) { return static_cast<std::byte*>(x.mutable_data_ptr()); }

cpu::AttentionProblem sizes_of(const CacheStep& step) {
  cpu::AttentionProblem p{};
  p.queries = 1;
  p.keys = static_cast<std::size_t>(step.length) + 1;
  p.batch = static_cast<std::size_t>(step.batch);
  p.groups = static_cast<std::size_t>(step.groups);
  p.sharing = static_cast<std::size_t>(step.heads / step.groups);
  p.size = static_cast<std::size_t>(step.head_size);
  return p;
}

/// Keys or values [capacity, b, g, d].
cpu::MutableHeads rows_of(const at::Tensor& cache) {
  const std::int64_t size = cache.element_size();
  return {bytes(cache), cache.stride(0) * size, cache.stride(1) * size, cache.stride(2) * size, 0};
}
/// Keys or values of a pool [blocks, r, g, d], those of one sequence in `blocks`.
cpu::MutableHeads rows_of(const at::Tensor& pool, std::span<const std::int64_t> blocks) {
  const std::int64_t size = pool.element_size();
  return {.data = bytes(pool),
          .position = pool.stride(1) * size,
          .batch = 0,
          .group = pool.stride(2) * size,
          .member = 0,
          .blocks = blocks.data(),
          .block = pool.stride(0) * size,
          .block_shift = static_cast<unsigned>(std::countr_zero(static_cast<std::size_t>(pool.size(1))))};
}
cpu::Heads read_only(const cpu::MutableHeads& x) {
  return {x.data, x.position, x.batch, x.group, x.member, x.blocks, x.block, x.block_shift};
}

/// Where a step of some sequences reads and writes.
struct StepMemory {
  std::byte *out, *qkv;
  cpu::MutableHeads keys, values;
  const std::int64_t* positions;  ///< of each sequence
};

const std::int64_t* positions_of(const CacheStep& step) {
  return step.position_b.defined() ? step.position_b.const_data_ptr<std::int64_t>() : nullptr;
}

cpu::AttentionProblem problem_of(const at::Tensor& qkv, const CacheStep& step) {
  cpu::AttentionProblem p = sizes_of(step);
  p.type = *cpu::element_of(qkv);
  p.scale = static_cast<float>(step.scale != 0 ? step.scale : 1.0 / std::sqrt(static_cast<double>(p.size)));
  p.soft_cap = static_cast<float>(step.soft_cap);
  p.causal = true;
  p.sinks = data_or_null<float>(step.sinks);
  return p;
}

/// Turns the queries and the key of each group by its sequence's position.
void rotate(const cpu::MutableHeads& projected, const cpu::AttentionProblem& p, const RopeTable& rope,
            const std::int64_t* positions) {
  const std::int64_t half = rope.cos.size(1);
  const float *cos = rope.cos.const_data_ptr<float>(), *sin = rope.sin.const_data_ptr<float>();
  for (std::size_t i = 0; i < p.batch * p.groups; ++i) {
    cpu::Head head = p.head(i * p.sharing);
    const std::int64_t row = positions[head.b] * half;
    for (; head.member <= p.sharing; ++head.member)
      cpu::rotate_head(projected.at(0, head), p.type, cos + row, sin + row, 1.0f, static_cast<std::size_t>(half),
                       rope.interleaved);
  }
}

void attend(cpu::AttentionProblem p, const StepMemory& at, const CacheStep& step, float* scratch) {
  const auto head = static_cast<std::int64_t>(p.size * cpu::element_size(p.type));
  const std::int64_t sharing = step.heads / step.groups;
  const auto heads = [&](std::byte* data, std::int64_t members) {
    return cpu::MutableHeads{data, 0, step.groups * members * head, members * head, head};
  };
  const cpu::MutableHeads projected = heads(at.qkv, sharing + 2);
  if (step.rope.cos.defined()) rotate(projected, p, step.rope, at.positions);
  for (std::size_t i = 0; i < p.batch * p.groups; ++i) {
    const cpu::Head group = p.head(i * p.sharing), key{group.b, group.group, p.sharing};
    std::memcpy(at.keys.at(p.keys - 1, group), projected.at(0, key), static_cast<std::size_t>(head));
    std::memcpy(at.values.at(p.keys - 1, group), projected.at(0, key) + head, static_cast<std::size_t>(head));
  }
  p.q = read_only(projected);
  p.k = read_only(at.keys);
  p.v = read_only(at.values);
  cpu::attention_of_few(p, heads(at.out, sharing), scratch + cpu::few_queries_floats(p), scratch);
}

}  // namespace

bool decodes(const at::Tensor& x) { return cpu::fast_as(x.scalar_type(), x) && x.numel() > 0; }

void add_to_rows(const at::Tensor& x, const at::Tensor& addend) {
  add_rows(x, {}, addend, addend.dim() == 1 ? 0 : x.size(1));
}

void add_residual_to_rows(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual) {
  add_rows(x, bias, residual, x.size(1));
}

void norm_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
               double epsilon) {
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto kernels = cpu::row_kernels<T>();
    T* to = y.mutable_data_ptr<T>();
    const T *from = x.const_data_ptr<T>(), *w = weight.const_data_ptr<T>(), *b = data_or_null<T>(bias);
    for_rows(x, [&](std::int64_t, std::int64_t at, std::size_t count) {
      if (b == nullptr)
        kernels.rms_norm(from + at, w, to + at, count, static_cast<float>(epsilon));
      else
        kernels.layer_norm(from + at, w, b, to + at, count, static_cast<float>(epsilon));
    });
  });
}

void activate_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& bias, Activation form, bool gated) {
  cpu::with_storage(x.scalar_type(), [&]<class T>(T) {
    const auto kernels = cpu::activation_kernels<T>(form);
    const auto forward = gated ? kernels.gated_forward : kernels.forward;
    T *to = y.mutable_data_ptr<T>(), *from = x.mutable_data_ptr<T>();
    const T* b = data_or_null<T>(bias);
    const std::int64_t parts = gated ? 2 : 1;
    for_rows(y, [&](std::int64_t, std::int64_t at, std::size_t count) {
      forward(from + parts * at, b, to + at, count, form);
    });
  });
}

at::Tensor attention_scratch(const CacheStep& step) {
  const std::size_t floats = cpu::few_queries_floats(sizes_of(step));
  return at::empty({static_cast<std::int64_t>(floats) + step.batch * step.heads}, at::kFloat);
}

void attend_to_cache(const at::Tensor& out, const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                     const CacheStep& step, const at::Tensor& scratch) {
  cpu::AttentionProblem p = problem_of(qkv, step);
  if (step.first_key_b.defined()) p.first_key = step.first_key_b.const_data_ptr<std::int32_t>();
  attend(p, {bytes(out), bytes(qkv), rows_of(keys), rows_of(values), positions_of(step)}, step,
         scratch.mutable_data_ptr<float>());
}

at::Tensor scratch_of_blocks(const CacheStep& step) {
  CacheStep one = step;
  one.batch = 1;
  return at::empty({cpu::num_threads(), attention_scratch(one).numel()}, at::kFloat);
}

void attend_to_blocks(const at::Tensor& out, const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                      std::span<const SequenceBlocks> sequences, const CacheStep& step, const at::Tensor& scratch) {
  const std::int64_t out_row = out.stride(0) * out.element_size(), qkv_row = qkv.stride(0) * qkv.element_size();
  const std::int64_t* positions = positions_of(step);
  const auto one = [&](std::int64_t i, int thread) {
    const SequenceBlocks& sequence = sequences[static_cast<std::size_t>(i)];
    CacheStep own = step;
    own.batch = 1;
    own.length = sequence.length;
    cpu::AttentionProblem p = problem_of(qkv, own);
    const auto first = static_cast<std::int32_t>(sequence.first_key);
    if (first > 0) p.first_key = &first;
    attend(p,
           {bytes(out) + i * out_row, bytes(qkv) + i * qkv_row, rows_of(keys, sequence.blocks),
            rows_of(values, sequence.blocks), positions != nullptr ? positions + i : nullptr},
           own, scratch.mutable_data_ptr<float>() + thread * scratch.stride(0));
  };
  const auto count = static_cast<std::int64_t>(sequences.size());
  if (count >= cpu::num_threads()) return cpu::for_each_block(count, one);
  for (std::int64_t i = 0; i < count; ++i) one(i, 0);  // each over all threads
}

}  // namespace megatron::kernels
