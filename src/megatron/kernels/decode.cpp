#include "megatron/kernels/decode.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/elementwise/element_of.h"
#include "megatron/kernels/cpu/elementwise/elementwise.h"
#include "megatron/kernels/cpu/elementwise/rope.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"

namespace megatron::kernels {
namespace {

/// Calls fn(i): over threads where so many elements in all are worth waking them.
template <class Fn>
void for_each(std::int64_t count, std::int64_t elements, const Fn& fn) {
  constexpr std::int64_t kWorthThreads = 8192;
  if (elements > kWorthThreads) return cpu::for_each_block(count, [&](std::int64_t i, int) { fn(i); });
  for (std::int64_t i = 0; i < count; ++i) fn(i);
}

/// Calls fn(row, elements before it, features).
template <class Fn>
void for_rows(const at::Tensor& x, const Fn& fn) {
  const std::int64_t rows = x.size(0), features = x.size(1);
  for_each(rows, rows * features,
           [&](std::int64_t row) { fn(row, row * features, static_cast<std::size_t>(features)); });
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

/// Rows [b, features] of `members` heads in each group.
cpu::MutableHeads heads_of_rows(const at::Tensor& x, const CacheStep& step, std::int64_t members) {
  const std::int64_t size = x.element_size(), head = step.head_size * size;
  return {bytes(x), 0, x.stride(0) * size, members * head, head};
}

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

/// What some sequences' new tokens attend to. Their own keys and values are added to it.
struct StepMemory {
  cpu::MutableHeads projected;  ///< of each group its queries, its key, its value
  cpu::MutableHeads keys, values;
  const std::int64_t* positions;  ///< of each sequence
};

cpu::FewQueries queries_of(const StepMemory& memory, const cpu::AttentionProblem& sizes, const cpu::MutableHeads& out,
                           float* logsumexp) {
  cpu::FewQueries p{sizes, out, logsumexp};
  p.q = read_only(memory.projected);
  p.k = read_only(memory.keys);
  p.v = read_only(memory.values);
  return p;
}

/// Turns a group's queries and its key by its sequence's position, and adds its key and value.
void add_token(const StepMemory& memory, const cpu::AttentionProblem& p, const cpu::Head& group,
               const RopeTable& rope) {
  cpu::Head head = group;
  if (rope.cos.defined()) {
    const std::int64_t half = rope.cos.size(1), row = memory.positions[group.b] * half;
    const float *cos = rope.cos.const_data_ptr<float>() + row, *sin = rope.sin.const_data_ptr<float>() + row;
    for (; head.member <= p.sharing; ++head.member)
      cpu::rotate_head(memory.projected.at(0, head), p.type, cos, sin, 1.0f, static_cast<std::size_t>(half),
                       rope.interleaved);
  }
  const std::size_t size = p.size * cpu::element_size(p.type);
  head.member = p.sharing;
  std::memcpy(memory.keys.at(p.keys - 1, group), memory.projected.at(0, head), size);
  ++head.member;
  std::memcpy(memory.values.at(p.keys - 1, group), memory.projected.at(0, head), size);
}

/// Problems of as many groups each, with their memory.
void attend(std::span<const cpu::FewQueries> problems, std::span<const StepMemory> memory, const RopeTable& rope,
            float* scratch) {
  const cpu::FewQueries& first = problems.front();
  const std::size_t groups = first.batch * first.groups, count = problems.size() * groups;
  for_each(static_cast<std::int64_t>(count), static_cast<std::int64_t>(count * (first.sharing + 2) * first.size),
           [&](std::int64_t i) {
             const std::size_t at = static_cast<std::size_t>(i) / groups, group = static_cast<std::size_t>(i) % groups;
             add_token(memory[at], problems[at], problems[at].head(group * first.sharing), rope);
           });
  cpu::attention_of_few(problems, scratch);
}

/// Floats of a step's log-sum-exps, which lie before the rest of its scratch.
std::int64_t logsumexp_floats(const CacheStep& step) { return (step.batch * step.heads + 15) / 16 * 16; }

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
  const auto floats = static_cast<std::int64_t>(cpu::few_queries_floats(sizes_of(step)));
  return at::empty({logsumexp_floats(step) + floats}, at::kFloat);
}

void attend_to_cache(const at::Tensor& out, const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                     const CacheStep& step, const at::Tensor& scratch) {
  cpu::AttentionProblem p = problem_of(qkv, step);
  if (step.first_key_b.defined()) p.first_key = step.first_key_b.const_data_ptr<std::int32_t>();
  const std::int64_t sharing = step.heads / step.groups;
  const StepMemory memory{heads_of_rows(qkv, step, sharing + 2), rows_of(keys), rows_of(values), positions_of(step)};
  float* const floats = scratch.mutable_data_ptr<float>();
  const cpu::FewQueries queries = queries_of(memory, p, heads_of_rows(out, step, sharing), floats);
  attend({&queries, 1}, {&memory, 1}, step.rope, floats + logsumexp_floats(step));
}

void attend_to_blocks(const at::Tensor& out, const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                      std::span<const SequenceBlocks> sequences, const CacheStep& step, const at::Tensor& scratch) {
  const std::int64_t sharing = step.heads / step.groups, *positions = positions_of(step);
  float* const floats = scratch.mutable_data_ptr<float>();
  cpu::MutableHeads projected = heads_of_rows(qkv, step, sharing + 2), to = heads_of_rows(out, step, sharing);
  cpu::AttentionProblem p = problem_of(qkv, step);
  p.batch = 1;
  std::vector<cpu::FewQueries> queries;
  std::vector<StepMemory> memory;
  std::vector<std::int32_t> first_keys(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const SequenceBlocks& sequence = sequences[i];
    first_keys[i] = static_cast<std::int32_t>(sequence.first_key);
    p.first_key = sequence.first_key > 0 ? &first_keys[i] : nullptr;
    p.keys = static_cast<std::size_t>(sequence.length) + 1;
    memory.push_back({projected, rows_of(keys, sequence.blocks), rows_of(values, sequence.blocks),
                      positions != nullptr ? positions + i : nullptr});
    queries.push_back(queries_of(memory.back(), p, to, floats + i * p.heads()));
    projected.data += projected.batch;
    to.data += to.batch;
  }
  attend(queries, memory, step.rope, floats + logsumexp_floats(step));
}

}  // namespace megatron::kernels
