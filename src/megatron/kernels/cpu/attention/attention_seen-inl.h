// Which keys a query sees, the products of a block of queries and keys, which leave out what none of them sees, and
// what is asked for while they are computed.
#if defined(MEGATRON_KERNELS_CPU_ATTENTION_SEEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ATTENTION_SEEN_INL_H_
#undef MEGATRON_KERNELS_CPU_ATTENTION_SEEN_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ATTENTION_SEEN_INL_H_
#endif

#include <algorithm>

#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/elementwise/rows-inl.h"
#include "megatron/kernels/cpu/products/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

// Blocks of scores have a stride that is no power of two, so that the rows of a column do not share cache sets.
constexpr std::size_t kKeyBlock = 256, kScoreStride = kKeyBlock + 16;

inline std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// Those of `range` among keys [k0, k0 + count), counted from k0.
inline KeyRange within(KeyRange range, std::size_t k0, std::size_t count) {
  return {std::clamp(range.begin, k0, k0 + count) - k0, std::clamp(range.end, k0, k0 + count) - k0};
}

/// Union of of_row(i) over i in [begin, end), those between them too; begin = end: none. `keys`: how many there are.
template <class OfRow>
KeyRange union_of_rows(std::size_t begin, std::size_t end, std::size_t keys, const OfRow& of_row) {
  KeyRange all{keys, 0};
  for (std::size_t i = begin; i < end; ++i) {
    const KeyRange row = of_row(i);
    if (row.begin < row.end) all = {std::min(all.begin, row.begin), std::max(all.end, row.end)};
  }
  return {std::min(all.begin, all.end), all.end};
}

/// Of queries [q0, q1).
inline KeyRange visible_of_rows(const AttentionProblem& p, std::size_t b, std::size_t q0, std::size_t q1) {
  return union_of_rows(q0, q1, p.keys, [&](std::size_t i) { return visible(p, b, i); });
}

/// Of queries [q0, q1), the begin rounded down to a `panel` of keys: the products begin at one.
inline KeyRange visible_of_block(const AttentionProblem& p, std::size_t b, std::size_t q0, std::size_t q1,
                                 std::size_t panel = kPanel) {
  const KeyRange all = visible_of_rows(p, b, q0, q1);
  return {all.begin / panel * panel, all.end};
}

/// Rows [next, end) of a head that are read or written when the products that come first are done. Asked for some at a
/// time, between those products, they are there by then: what is done for each token, however few keys it sees, does
/// not wait for memory.
struct RowsAhead {
  std::size_t next, end;

  template <class... Tensors>
  void ask(std::size_t count, const AttentionProblem& p, const Head& head, const Tensors&... tensors) {
    const std::size_t bytes = p.size * element_size(p.type);
    for (; count > 0 && next < end; --count, ++next) (ask_for_later(tensors.at(next, head), bytes), ...);
  }
};

/// What the queries of a block see of keys [k0, k0 + count). Where a window, a document or the causal mask ends within
/// the block, the products take of each tile of their rows what it sees: the weights of the rest are zero.
class SeenBlock {
 public:
  SeenBlock(const AttentionProblem& p, std::size_t b, std::size_t q0, std::size_t rows, std::size_t k0,
            std::size_t count)
      : rows_(rows), count_(count) {
    for (std::size_t i = 0; i < rows; ++i) {
      of_row_[i] = within(visible(p, b, q0 + i), k0, count);
      whole_ = whole_ && of_row_[i].begin == 0 && of_row_[i].end == count;
    }
  }
  KeyRange of_row(std::size_t i) const { return of_row_[i]; }

  /// scores [rows, keys] = left [rows, size] times `panels` of the block's keys, of kPanel each.
  void score(const Left& left, const float* panels, std::size_t size, float* scores) const {
    std::size_t keys = 0;
    for (std::size_t j = 0; j < count_; j += keys) {
      keys = std::min(j % kPanel != 0 ? kPanel / 2 : kPanel, round_up(count_ - j, 16));
      Rows see = rows_that_see(j, j + keys);
      if (!whole_ && keys > kPanel / 2 && see.size() != rows_) {  // halves of it have fewer rows, maybe
        const Rows half = rows_that_see(j, j + kPanel / 2);
        if (half.size() < see.size() || rows_that_see(j + kPanel / 2, j + keys).size() < see.size()) {
          keys = kPanel / 2;
          see = half;
        }
      }
      product({left.data + see.begin * left.row_stride, left.row_stride, left.k_stride},
              panels + j / kPanel * kPanel * size + j % kPanel, kPanel, scores + see.begin * kScoreStride + j,
              kScoreStride, see.end - see.begin, size, keys, false);
    }
  }

  /// sums [rows, stride] = or += weights [rows, keys] times x [keys, stride].
  void weigh_keys(const float* weights, const float* x, std::size_t stride, float* sums, bool accumulate) const {
    const std::size_t tile = whole_ ? rows_ : kTileRows;
    for (std::size_t i = 0; i < rows_; i += tile) {
      const std::size_t rows = std::min(tile, rows_ - i);
      const KeyRange keys = keys_seen_by(i, i + rows);
      product({weights + i * kScoreStride + keys.begin, kScoreStride, 1}, x + keys.begin * stride, stride,
              sums + i * stride, stride, rows, keys.end - keys.begin, stride, accumulate);
    }
  }

  /// sums [keys, stride] += the transpose of weights [rows, keys] times x [rows, stride].
  void weigh_queries(const float* weights, const float* x, std::size_t stride, float* sums) const {
    const std::size_t tile = whole_ ? count_ : 2 * kTileRows;
    for (std::size_t j = 0; j < count_; j += tile) {
      const std::size_t keys = std::min(tile, count_ - j);
      const Rows see = rows_that_see(j, j + keys);
      if (see.begin == see.end) continue;
      product({weights + see.begin * kScoreStride + j, 1, kScoreStride}, x + see.begin * stride, stride,
              sums + j * stride, stride, keys, see.end - see.begin, stride, true);
    }
  }

 private:
  struct Rows {
    std::size_t begin, end;
    std::size_t size() const { return end - begin; }
  };

  /// From the first row that sees one of keys [begin, end) to the last, in whole tiles.
  Rows rows_that_see(std::size_t begin, std::size_t end) const {
    if (whole_) return {0, rows_};
    const auto sees = [&](std::size_t i) {
      return of_row_[i].begin < end && begin < of_row_[i].end && of_row_[i].begin < of_row_[i].end;
    };
    std::size_t first = 0, last = rows_;
    while (first < rows_ && !sees(first)) ++first;
    while (last > first && !sees(last - 1)) --last;
    if (first == last) return {0, 0};
    return {first / kTileRows * kTileRows, std::min(rows_, round_up(last, kTileRows))};
  }

  KeyRange keys_seen_by(std::size_t first, std::size_t last) const {
    if (whole_) return {0, count_};
    return union_of_rows(first, last, count_, [this](std::size_t i) { return of_row_[i]; });
  }

  std::size_t rows_, count_;
  KeyRange of_row_[kQueryBlock];
  bool whole_ = true;
};

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
