#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_few_queries.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "megatron/kernels/cpu/attention/attention-inl.h"
#include "megatron/kernels/cpu/parallel.h"

// Few queries against a long cache: the time goes into reading the cache. Each block of keys and values is read once
// for all query heads that share it, and blocks are pieces of work for different threads.
HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Rows that are read at once: converted, they stay in the first-level cache with what they were.
constexpr std::size_t kFewStride = kFewKeys + 16, kRowsAtOnce = 32;
static_assert(kLeastBlock % kRowsAtOnce == 0);

/// Rows of float32: where they lie, or converted and padded in scratch.
struct Rows {
  const float* data;
  std::ptrdiff_t stride;
};

Rows rows_of(const AttentionProblem& p, const Heads& x, const Head& group, std::size_t k0, std::size_t count,
             float* scratch) {
  const std::byte* first = x.at(k0, group);
  constexpr auto kBytes = static_cast<std::ptrdiff_t>(sizeof(float));
  if (p.type == ElementType::Float32 && p.size % 16 == 0)
    return {reinterpret_cast<const float*>(first), x.position / kBytes};
  const std::size_t stride = round_up(p.size, 16);
  read_rows(p.type, first, x.position, count, p.size, scratch, stride);
  return {scratch, static_cast<std::ptrdiff_t>(stride)};
}

/// Asks memory for keys [k0, k0 + count): rows of one group lie apart, which the processor does not foresee by itself.
void prefetch_rows(const AttentionProblem& p, const Heads& x, const Head& group, std::size_t k0, std::size_t count) {
  constexpr std::size_t kCacheLine = 64;
  const std::size_t bytes = p.size * element_size(p.type);
  for (std::size_t k = k0; k < std::min(k0 + count, p.keys); ++k)
    for (std::size_t i = 0; i < bytes; i += kCacheLine) hwy::Prefetch(x.at(k, group) + i);
}

/// The sums of the lanes of four vectors.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sums_of_lanes(F a, F b, F c, F e) {
  const Floats d;
  const hn::Repartition<std::uint64_t, Floats> pairs;
  const F ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const F ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab2 = hn::BitCast(pairs, ab), ce2 = hn::BitCast(pairs, ce);
  const F blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab2, ce2)),
                           hn::BitCast(d, hn::InterleaveUpper(pairs, ab2, ce2)));
  const hn::Half<Floats> half;
  const auto halves = hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
#if HWY_MAX_BYTES >= 64
  const hn::Half<hn::Half<Floats>> quarter;
  return hn::Add(hn::LowerHalf(quarter, halves), hn::UpperHalf(quarter, halves));
#else
  return halves;
#endif
}

/// scores [rows, kFewStride] = queries [rows, size] times keys [count, size]; size is a multiple of 16.
void dots(const float* queries, std::size_t rows, const Rows& keys, std::size_t count, std::size_t size,
          float* scores) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t j = 0; j < count; j += 4) {
    const auto key = [&](std::size_t i) {  // the last once more instead of those past it
      return keys.data + static_cast<std::ptrdiff_t>(std::min(j + i, count - 1)) * keys.stride;
    };
    const float *k0 = key(0), *k1 = key(1), *k2 = key(2), *k3 = key(3);
    for (std::size_t row = 0; row < rows; ++row) {
      const float* q = queries + row * size;
      F s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
      for (std::size_t c = 0; c < size; c += lanes) {
        const F x = hn::LoadU(d, q + c);
        s0 = hn::MulAdd(x, hn::LoadU(d, k0 + c), s0);
        s1 = hn::MulAdd(x, hn::LoadU(d, k1 + c), s1);
        s2 = hn::MulAdd(x, hn::LoadU(d, k2 + c), s2);
        s3 = hn::MulAdd(x, hn::LoadU(d, k3 + c), s3);
      }
      hn::StoreU(sums_of_lanes(s0, s1, s2, s3), hn::FixedTag<float, 4>(), scores + row * kFewStride + j);
    }
  }
}

/// A partial result: rows of sums, then the rows' maxima, then their sums of exp. Row member * queries + query.
struct Partial {
  const std::size_t rows, stride;
  float *sums, *max, *sum;
  Partial(const AttentionProblem& p, float* at)
      : rows(p.sharing * p.queries), stride(round_up(p.size, 16)), sums(at), max(at + rows * stride), sum(max + rows) {}
};

/// All queries of all heads of a group against keys [block * kFewKeys, …).
void few_queries(const AttentionProblem& p, const Head& group, std::size_t block, float* partial, float* scratch) {
  const std::size_t k0 = block * kFewKeys, count = std::min(kFewKeys, p.keys - k0);
  const Partial result(p, partial);
  KeyRange all{count, 0}, seen[kFewQueries];
  for (std::size_t i = 0; i < p.queries; ++i) {
    seen[i] = within(visible(p, group.b, i), k0, count);
    if (seen[i].begin < seen[i].end) all = {std::min(all.begin, seen[i].begin), std::max(all.end, seen[i].end)};
  }
  if (all.begin >= all.end) {
    std::fill(result.max, result.max + result.rows, Running().max);
    std::fill(result.sum, result.sum + result.rows, 0.0f);
    return;
  }
  float *scores = scratch, *queries = scores + result.rows * kFewStride, *rest = queries + result.rows * result.stride;
  for (std::size_t member = 0; member < p.sharing; ++member) {
    read_rows(p.type, p.q.at(0, {group.b, group.group, member}), p.q.position, p.queries, p.size,
              queries + member * p.queries * result.stride, result.stride);
  }
  for (std::size_t j = 0; j < all.end; j += kRowsAtOnce) {
    const std::size_t keys = std::min(kRowsAtOnce, all.end - j);
    prefetch_rows(p, p.k, group, k0 + j + kRowsAtOnce, kRowsAtOnce);
    prefetch_rows(p, p.v, group, k0 + j, kRowsAtOnce);
    dots(queries, result.rows, rows_of(p, p.k, group, k0 + j, keys, rest), keys, result.stride, scores + j);
  }
  for (std::size_t row = 0; row < result.rows; ++row) {
    Running running;
    float* const s = scores + row * kFewStride;
    const KeyRange& keys = seen[row % p.queries];
    if (p.soft_cap > 0) cap_scores(p, keys.begin, keys.end, s);
    softmax_row(s, all.end, keys, p.soft_cap > 0 ? 1.0f : p.scale, running);
    result.max[row] = running.max;
    result.sum[row] = running.sum;
  }
  for (std::size_t j = 0; j < all.end; j += kRowsAtOnce) {
    const std::size_t keys = std::min(kRowsAtOnce, all.end - j);
    const Rows values = rows_of(p, p.v, group, k0 + j, keys, rest);
    product({scores + j, kFewStride, 1}, values.data, static_cast<std::size_t>(values.stride), result.sums,
            result.stride, result.rows, keys, result.stride, j > 0);
  }
}

/// Joins the partial results of all blocks of keys, one after another at `partials`, which are overwritten.
void join(const AttentionProblem& p, const Head& group, float* partials, std::size_t floats, const MutableHeads& out,
          float* logsumexp_bns) {
  const std::size_t blocks = (p.keys + kFewKeys - 1) / kFewKeys;
  const auto partial = [&](std::size_t block) { return Partial(p, partials + block * floats); };
  for (std::size_t row = 0; row < p.sharing * p.queries; ++row) {
    const Head head{group.b, group.group, row / p.queries};
    const std::size_t query = row % p.queries;
    Running all;
    for (std::size_t i = 0; i < blocks; ++i) all.max = std::max(all.max, partial(i).max[row]);
    const Partial first = partial(0);
    float* sum = first.sums + row * first.stride;
    for (std::size_t i = 0; i < blocks; ++i) {
      const Partial one = partial(i);
      const bool seen = one.max[row] != Running().max;
      const float weight = seen ? std::exp(one.max[row] - all.max) : 0.0f;
      all.sum += weight * one.sum[row];
      if (i == 0 && !seen) std::fill(sum, sum + one.stride, 0.0f);
      if (i == 0 && seen) scale_row(sum, one.stride, weight);
      if (i > 0 && seen) add_scaled(sum, one.sums + row * one.stride, one.stride, weight);
    }
    const EndOfRow end = end_of_row(p, head, all);
    scale_row(sum, first.stride, end.factor);
    write_rows(p.type, sum, first.stride, 1, p.size, out.at(query, head), out.position);
    logsumexp_bns[p.row_of(head) + query] = end.logsumexp;
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
namespace {

std::size_t padded(std::size_t n) { return (n + 15) / 16 * 16; }

/// Keys and values of a group are read in blocks, each a piece of work whose result is a partial one.
std::size_t blocks_of(const AttentionProblem& p) { return (p.keys + kFewKeys - 1) / kFewKeys; }
std::size_t partial_floats(const AttentionProblem& p) { return padded(p.sharing * p.queries * (padded(p.size) + 2)); }
std::size_t scratch_floats(const AttentionProblem& p) {
  return padded(p.sharing * p.queries * (kFewKeys + 16 + padded(p.size)) + 32 * padded(p.size));
}

/// Calls fn(i, thread) for i in [0, count): on this thread alone where all of it is less work than waking the others.
template <class Fn>
void for_each(std::size_t count, std::size_t multiplications, const Fn& fn) {
  constexpr std::size_t kWorthThreads = std::size_t{1} << 18;
  const auto n = static_cast<std::int64_t>(count);
  if (multiplications >= kWorthThreads) return for_each_block(n, fn);
  for (std::int64_t i = 0; i < n; ++i) fn(i, 0);
}

}  // namespace

HWY_EXPORT(few_queries);
HWY_EXPORT(join);

std::size_t few_queries_floats(const AttentionProblem& p) {
  return p.batch * p.groups * blocks_of(p) * partial_floats(p) +
         static_cast<std::size_t>(num_threads()) * scratch_floats(p);
}

void attention_of_few(const AttentionProblem& p, const MutableHeads& out, float* logsumexp_bns, float* memory) {
  const std::size_t groups = p.batch * p.groups, blocks = blocks_of(p), rows = groups * p.sharing * p.queries;
  const std::size_t partial = partial_floats(p), scratch = scratch_floats(p);
  float* const scratch_of_all = memory + groups * blocks * partial;
  for_each(groups * blocks, 2 * rows * p.keys * p.size, [&](std::int64_t i, int thread) {
    const auto part = static_cast<std::size_t>(i);
    HWY_DYNAMIC_DISPATCH(few_queries)
    (p, p.head(part / blocks * p.sharing), part % blocks, memory + part * partial,
     scratch_of_all + static_cast<std::size_t>(thread) * scratch);
  });
  for_each(groups, rows * blocks * p.size, [&](std::int64_t i, int) {
    const auto group = static_cast<std::size_t>(i);
    HWY_DYNAMIC_DISPATCH(join)
    (p, p.head(group * p.sharing), memory + group * blocks * partial, partial, out, logsumexp_bns);
  });
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
