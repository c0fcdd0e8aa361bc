// What the forward and the backward pass of attention share.
#if defined(MEGATRON_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ATTENTION_INL_H_
#undef MEGATRON_KERNELS_CPU_ATTENTION_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "megatron/kernels/cpu/attention.h"
#include "megatron/kernels/cpu/product-inl.h"
#include "megatron/kernels/cpu/random.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

// Blocks of scores have a stride that is no power of two, so that the rows of a column do not share cache sets.
constexpr std::size_t kKeyBlock = 256, kScoreStride = kKeyBlock + 16, kPanel = 64;

inline std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// Keys in [begin, end) are seen by at least one, those of `row` by that query; positions of keys.
struct KeyRange {
  std::size_t begin, end;
};

inline KeyRange visible(const AttentionProblem& p, std::size_t b, std::size_t query) {
  const std::size_t last = query + p.keys + 1;  // one past, shifted by `queries` to stay unsigned
  const std::size_t end = !p.causal ? p.keys : last > p.queries ? std::min(p.keys, last - p.queries) : 0;
  const std::int32_t first = p.first_key != nullptr ? std::max(p.first_key[b * p.queries + query], 0) : 0;
  return {std::min(static_cast<std::size_t>(first), end), end};
}

/// Union over queries [q0, q1), its begin rounded down to a key block.
inline KeyRange visible_of_block(const AttentionProblem& p, std::size_t b, std::size_t q0, std::size_t q1) {
  KeyRange all{p.keys, 0};
  for (std::size_t i = q0; i < q1; ++i) {
    const KeyRange row = visible(p, b, i);
    if (row.begin < row.end) all = {std::min(all.begin, row.begin), std::max(all.end, row.end)};
  }
  return {std::min(all.begin, all.end) / kKeyBlock * kKeyBlock, all.end};
}

/// rows x size of `from`, rows `position` apart, to rows of `to_stride` (zeros behind `size`).
inline void pack_rows(const float* from, std::ptrdiff_t position, std::size_t rows, std::size_t size, float* to,
                      std::size_t to_stride) {
  for (std::size_t r = 0; r < rows; ++r, from += position, to += to_stride) {
    std::memcpy(to, from, size * sizeof(float));
    std::fill(to + size, to + to_stride, 0.0f);
  }
}

/// The transpose of rows x size in panels of 64 rows: panel [size][64], zeros for rows past the last.
inline void pack_transposed(const float* from, std::ptrdiff_t position, std::size_t rows, std::size_t size, float* to) {
  const Floats d;
  const Ints di;
  const std::size_t lanes = hn::Lanes(d);
  // Stride between lanes in 32-bit elements: larger ones than fit the gather's index are not met (2^31 / 16).
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<std::int32_t>(position)));
  for (std::size_t r0 = 0; r0 < rows; r0 += kPanel, to += size * kPanel) {
    for (std::size_t r = 0; r < kPanel; r += lanes) {
      const float* source = from + static_cast<std::ptrdiff_t>(r0 + r) * position;
      if (r0 + r + lanes <= rows) {
        for (std::size_t c = 0; c < size; ++c)
          hn::StoreU(hn::GatherIndex(d, source + c, offsets), d, to + c * kPanel + r);
      } else {
        for (std::size_t i = 0; i < lanes; ++i) {
          for (std::size_t c = 0; c < size; ++c) {
            to[c * kPanel + r + i] = r0 + r + i < rows ? source[static_cast<std::ptrdiff_t>(i) * position + c] : 0.0f;
          }
        }
      }
    }
  }
}

/// scores [rows, keys of the block] = left [rows, size] times the panels of keys [k0, k0 + count), k0 a multiple of 64.
inline void score_block(const Left& left, const float* panels, std::size_t size, std::size_t k0, std::size_t count,
                        std::size_t rows, float* scores) {
  for (std::size_t j = 0; j < count; j += kPanel) {
    product(left, panels + (k0 + j) * size, kPanel, scores + j, kScoreStride, rows, size,
            std::min(kPanel, round_up(count - j, 16)), false);
  }
}

/// The dropout mask of one row of probabilities: keys [k0, k0 + count) of query `query`.
struct DropoutRow {
  const AttentionProblem& p;
  std::uint32_t words[kKeyBlock];

  void draw(std::size_t b, std::size_t n, std::size_t query, std::size_t k0, std::size_t count) {
    const std::uint64_t row = (p.head_offset + n) * p.queries + query;
    random_words(p.dropout_key, static_cast<std::uint64_t>(p.sample_ids[b]), row * p.keys + k0, count, words);
  }
  /// x scaled where the element is kept, else 0.
  HWY_INLINE F apply(F x, std::size_t i) const {
    const Floats d;
    const hn::RebindToUnsigned<Floats> du;
    const auto dropped = hn::Lt(hn::LoadU(du, words + i), hn::Set(du, p.dropout_threshold));
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), hn::Mul(x, hn::Set(d, p.keep_scale)));
  }
};

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
