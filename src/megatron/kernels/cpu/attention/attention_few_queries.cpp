#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_few_queries.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <atomic>
#include <vector>

#include "megatron/kernels/cpu/attention/attention-inl.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/products/sums-inl.h"

// Few queries against a long cache: the time goes into reading the cache. Each block of keys and values is read once
// for all query heads that share it, and blocks are pieces of work for different threads.
HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Rows of a partial sum. Memory is asked for what is that many rows ahead, kAskedAtOnce rows at a time: so few that it
// brings them while others are computed with.
constexpr std::size_t kFewStride = kFewKeys + 16, kRowsAtOnce = 32, kAskedAtOnce = 8;
static_assert(kLeastBlock % kRowsAtOnce == 0);

/// Calls fn(rows, stride) on keys or values [k, k + count), all in one block, stride elements apart: where they lie, or
/// where they are no whole vectors in `scratch`, as float32 and padded.
template <class Fn>
HWY_INLINE void with_rows(const AttentionProblem& p, const Heads& x, const Head& group, std::size_t k,
                          std::size_t count, float* scratch, const Fn& fn) {
  const std::byte* first = x.at(k, group);
  const auto stride = x.position / static_cast<std::ptrdiff_t>(element_size(p.type));
  if (p.size % 16 != 0) {
    const std::size_t padded = round_up(p.size, 16);
    read_rows(p.type, first, x.position, count, p.size, scratch, padded);
    return fn(static_cast<const float*>(scratch), static_cast<std::ptrdiff_t>(padded));
  }
  switch (p.type) {
    case ElementType::Float32:
      return fn(reinterpret_cast<const float*>(first), stride);
    case ElementType::BFloat16:
      return fn(reinterpret_cast<const c10::BFloat16*>(first), stride);
    case ElementType::Float16:
      return fn(reinterpret_cast<const c10::Half*>(first), stride);
  }
}

/// What a thread reads next: the keys of a piece of work, its values, and the first keys of the piece after it.
class RowsAhead {
 public:
  /// `asked`: whether memory was asked for the first keys already. `next`: null, or the piece after this one.
  RowsAhead(const FewQueriesPiece& piece, bool asked, const FewQueriesPiece* next) {
    const AttentionProblem& p = *piece.problem;
    const std::size_t begin = piece.first_key(), end = piece.end_key();
    parts_[0] = {&p.k, piece.group, begin, end};
    parts_[1] = {&p.v, piece.group, begin, end};
    if (next != nullptr)
      parts_[2] = {&next->problem->k, next->group, next->first_key(),
                   std::min(next->first_key() + kRowsAtOnce, next->end_key())};
    bytes_ = p.size * element_size(p.type);
    if (asked)
      parts_[0].k = std::min(begin + kRowsAtOnce, end);
    else
      ask(kRowsAtOnce);
  }

  /// Asks memory for that many rows more.
  void ask(std::size_t rows) {
    constexpr std::size_t kCacheLine = 64;
    while (rows > 0 && part_ < 3) {
      Part& part = parts_[part_];
      if (part.k == part.end) {
        ++part_;
        continue;
      }
      const std::size_t count = part.rows->together(part.k, std::min(rows, part.end - part.k));
      const std::byte* row = part.rows->at(part.k, part.group);
      for (std::size_t i = 0; i < count; ++i, row += part.rows->position)
        for (std::size_t byte = 0; byte < bytes_; byte += kCacheLine) hwy::Prefetch(row + byte);
      part.k += count;
      rows -= count;
    }
  }

 private:
  struct Part {
    const Heads* rows;
    Head group;
    std::size_t k, end;
  };
  Part parts_[3] = {};
  std::size_t part_ = 0, bytes_;
};

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

/// Sums of the lanes of kRows vectors of each of four keys.
template <std::size_t kRows>
HWY_INLINE void store_scores(const RowVectors<kRows>& a, const RowVectors<kRows>& b, const RowVectors<kRows>& c,
                             const RowVectors<kRows>& e, float* to) {
  if constexpr (kRows > 0) {
    hn::StoreU(sums_of_lanes(a.first, b.first, c.first, e.first), hn::FixedTag<float, 4>(), to);
    store_scores(a.rest, b.rest, c.rest, e.rest, to + kFewStride);
  }
}

/// scores [kRows, kFewStride] = queries [kRows, size] times keys [count, size]; size is a multiple of 16. Up to three
/// scores past the last key are overwritten.
template <std::size_t kRows, class T>
HWY_INLINE void dots(const float* queries, const T* keys, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                     float* scores) {
  RowVectors<kRows> inputs;
  std::size_t j = 0;
  for (; j + 4 <= count; j += 4, keys += 4 * stride) {
    HeldSums<4, kRows> sums;
    sums.clear();
    for (std::size_t c = 0; c < size; c += kLanes) {
      inputs.load_rows(queries + c, size, kLanes);
      sums.multiply_add(keys + c, stride, kLanes, inputs);
    }
    store_scores(sums.row, sums.rest.row, sums.rest.rest.row, sums.rest.rest.rest.row, scores + j);
  }
  for (; j < count; ++j, keys += stride) {
    HeldSums<1, kRows> sums;
    sums.clear();
    for (std::size_t c = 0; c < size; c += kLanes) {
      inputs.load_rows(queries + c, size, kLanes);
      sums.multiply_add(keys + c, stride, kLanes, inputs);
    }
    store_scores(sums.row, sums.row, sums.row, sums.row, scores + j);
  }
}

/// dots() of any number of rows. Three at a time: their sums with four keys fill the registers. Four are taken as
/// two and two, since a row by itself reads each key for four sums alone.
template <class T>
void dots(const float* queries, std::size_t rows, const T* keys, std::ptrdiff_t stride, std::size_t count,
          std::size_t size, float* scores) {
  for (std::size_t row = 0; row < rows;) {
    const std::size_t left = rows - row;
    const float* q = queries + row * size;
    float* to = scores + row * kFewStride;
    if (left >= 3 && left != 4) {
      dots<3>(q, keys, stride, count, size, to);
      row += 3;
    } else if (left >= 2) {
      dots<2>(q, keys, stride, count, size, to);
      row += 2;
    } else {
      dots<1>(q, keys, stride, count, size, to);
      ++row;
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

/// All queries of all heads of a group against the keys of a piece. `asked`, `next`: as of RowsAhead. Returns whether
/// memory was asked for the keys of `next`.
bool few_queries(const FewQueriesPiece& piece, bool asked, const FewQueriesPiece* next, float* partial,
                 float* scratch) {
  const AttentionProblem& p = *piece.problem;
  const Head& group = piece.group;
  const std::size_t k0 = piece.first_key(), count = piece.end_key() - k0;
  const Partial result(p, partial);
  KeyRange all{count, 0}, seen[kFewQueries];
  for (std::size_t i = 0; i < p.queries; ++i) {
    seen[i] = within(visible(p, group.b, i), k0, count);
    if (seen[i].begin < seen[i].end) all = {std::min(all.begin, seen[i].begin), std::max(all.end, seen[i].end)};
  }
  if (all.begin >= all.end) {
    std::fill(result.max, result.max + result.rows, Running().max);
    std::fill(result.sum, result.sum + result.rows, 0.0f);
    return false;
  }
  float *scores = scratch, *queries = scores + result.rows * kFewStride, *rest = queries + result.rows * result.stride;
  for (std::size_t member = 0; member < p.sharing; ++member) {
    read_rows(p.type, p.q.at(0, {group.b, group.group, member}), p.q.position, p.queries, p.size,
              queries + member * p.queries * result.stride, result.stride);
  }
  RowsAhead ahead(piece, asked, next);
  for (std::size_t j = 0; j < all.end; j += kRowsAtOnce) {
    const std::size_t keys = std::min(kRowsAtOnce, all.end - j);
    with_rows(p, p.k, group, k0 + j, keys, rest, [&](const auto* rows, std::ptrdiff_t stride) HWY_ATTR {
      for (std::size_t i = 0; i < keys; i += kAskedAtOnce) {
        ahead.ask(kAskedAtOnce);
        dots(queries, result.rows, rows + static_cast<std::ptrdiff_t>(i) * stride, stride,
             std::min(kAskedAtOnce, keys - i), result.stride, scores + j + i);
      }
    });
  }
  for (std::size_t row = 0; row < result.rows; ++row) {
    Running running;
    float* const s = scores + row * kFewStride;
    const KeyRange& keys = seen[row % p.queries];
    if (p.soft_cap > 0) cap_scores(p, keys.begin, keys.end, s);
    softmax_row(s, all.end, keys, p.soft_cap > 0 ? 1.0f : p.scale, nullptr, running, FloatRow{s});
    result.max[row] = running.max;
    result.sum[row] = running.sum;
  }
  constexpr std::size_t kColumns = 2 * kTileVectors * kLanes;
  const std::size_t asks = (kRowsAtOnce * kColumns + result.stride - 1) / result.stride;
  for (std::size_t j = 0; j < all.end; j += kRowsAtOnce) {
    const std::size_t keys = std::min(kRowsAtOnce, all.end - j);
    with_rows(p, p.v, group, k0 + j, keys, rest, [&](const auto* rows, std::ptrdiff_t stride) HWY_ATTR {
      for (std::size_t c = 0; c < result.stride; c += kColumns) {
        ahead.ask(asks);
        product({scores + j, kFewStride, 1}, rows + c, static_cast<std::size_t>(stride), result.sums + c, result.stride,
                result.rows, keys, std::min(kColumns, result.stride - c), j > 0);
      }
    });
  }
  return next != nullptr;
}

/// Joins the partial results of all pieces of a group, one after another at `partials`, which are overwritten.
void join(const FewQueries& problem, const Head& group, float* partials, std::size_t floats) {
  const AttentionProblem& p = problem;
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
    write_rows(p.type, sum, first.stride, 1, p.size, problem.out.at(query, head), problem.out.position);
    problem.logsumexp_bns[p.row_of(head) + query] = end.logsumexp;
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

/// Less than this is not worth waking the other threads for.
constexpr std::size_t kWorthThreads = std::size_t{1} << 18;  // multiplications

/// Calls fn(i, next, thread) for i in [0, count): over the threads where that is `worth` it. `next` is what the thread
/// takes after i, or `count`: it is known before i is done, so that what it reads can be asked for.
template <class Fn>
void for_each_knowing_next(std::size_t count, bool worth, const Fn& fn) {
  if (!worth || count <= 1 || num_threads() == 1) {
    for (std::size_t i = 0; i < count; ++i) fn(i, i + 1, 0);
    return;
  }
  std::atomic<std::size_t> taken = 0;
#pragma omp parallel
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    for (std::size_t i = taken++; i < count;) {
      const std::size_t next = std::min(taken++, count);
      fn(i, next, thread);
      i = next;
    }
  }
}

}  // namespace

HWY_EXPORT(few_queries);
HWY_EXPORT(join);

std::size_t few_queries_floats(const AttentionProblem& p) {
  return p.batch * p.groups * blocks_of(p) * partial_floats(p) +
         static_cast<std::size_t>(num_threads()) * scratch_floats(p);
}

void attention_of_few(std::span<const FewQueries> problems, float* memory) {
  struct Group {
    const FewQueries* problem;
    Head head;
    std::size_t first_piece;
  };
  std::vector<Group> groups;
  std::vector<FewQueriesPiece> pieces;
  std::size_t multiplications = 0, partials = 0;
  for (const FewQueries& p : problems) {
    const std::size_t blocks = blocks_of(p);
    for (std::size_t g = 0; g < p.batch * p.groups; ++g) {
      groups.push_back({&p, p.head(g * p.sharing), pieces.size()});
      for (std::size_t block = 0; block < blocks; ++block) pieces.push_back({&p, groups.back().head, block});
    }
    multiplications += 2 * p.batch * p.heads() * p.queries * p.keys * p.size;
    partials += p.batch * p.heads() * p.queries * blocks * p.size;
  }
  const std::size_t partial = partial_floats(problems.front()), scratch = scratch_floats(problems.front());
  float* const scratch_of_all = memory + pieces.size() * partial;
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> asked(static_cast<std::size_t>(num_threads()), kNone);
  for_each_knowing_next(
      pieces.size(), multiplications >= kWorthThreads, [&](std::size_t i, std::size_t next, std::size_t thread) {
        const bool asks = HWY_DYNAMIC_DISPATCH(few_queries)(pieces[i], asked[thread] == i,
                                                            next < pieces.size() ? &pieces[next] : nullptr,
                                                            memory + i * partial, scratch_of_all + thread * scratch);
        asked[thread] = asks ? next : kNone;
      });
  const auto join_group = [&](std::int64_t i, int) {
    const Group& group = groups[static_cast<std::size_t>(i)];
    HWY_DYNAMIC_DISPATCH(join)(*group.problem, group.head, memory + group.first_piece * partial, partial);
  };
  const auto count = static_cast<std::int64_t>(groups.size());
  if (partials >= kWorthThreads) return for_each_block(count, join_group);
  for (std::int64_t i = 0; i < count; ++i) join_group(i, 0);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
