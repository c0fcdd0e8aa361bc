#include "megatron/kernels/cpu/products/low_rank.h"

#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/low_rank.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <algorithm>

#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/products/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kVectors = kLowRankPanel / kLanes;          // of a panel
constexpr std::size_t kRowsAtOnce = HWY_MAX_BYTES >= 64 ? 4 : 2;  // of y, as many sums as the registers hold

/// kRows rows of a panel's sums, by recursion so that each stays in a register.
template <std::size_t kRows>
struct PanelSums {
  RowVectors<kVectors> row;
  PanelSums<kRows - 1> rest;

  HWY_INLINE void clear() {
    row.clear();
    rest.clear();
  }
  HWY_INLINE void multiply_add(const float* z, std::size_t z_row, const RowVectors<kVectors>& b) {
    row.multiply_add(hn::Set(Floats(), *z), b);
    rest.multiply_add(z + z_row, z_row, b);
  }
  /// To rows `first` … of y.
  template <class T>
  HWY_INLINE void add_to(const LowRankPanel& panel, const LowRankOutputs& out, std::size_t first) const {
    const std::size_t number = out.rows == nullptr ? first : static_cast<std::size_t>(out.rows[first]);
    add_vectors(row, static_cast<T*>(out.y) + number * out.y_row + panel.column, panel, panel.factor, out.scale, 0);
    rest.template add_to<T>(panel, out, first + 1);
  }

 private:
  template <std::size_t kCount, class T>
  HWY_INLINE static void add_vectors(const RowVectors<kCount>& sums, T* y, const LowRankPanel& panel,
                                     const float* factor, float scale, std::size_t done) {
    if constexpr (kCount > 0) {
      if (done >= panel.count) return;
      const std::size_t lanes = std::min(kLanes, panel.count - done);
      F sum = hn::MulAdd(hn::Set(Floats(), scale), sums.first, load(y, lanes));
      if (factor != nullptr) sum = hn::Mul(sum, hn::LoadU(Floats(), factor));
      store(sum, y, lanes);
      add_vectors(sums.rest, y + kLanes, panel, factor == nullptr ? nullptr : factor + kLanes, scale, done + kLanes);
    }
  }
};
template <>
struct PanelSums<0> {
  HWY_INLINE void clear() {}
  HWY_INLINE void multiply_add(const float*, std::size_t, const RowVectors<kVectors>&) {}
  template <class T>
  HWY_INLINE void add_to(const LowRankPanel&, const LowRankOutputs&, std::size_t) const {}
};

/// Of kRows rows from number `first` on.
template <std::size_t kRows, class T>
HWY_INLINE void add_rows(const LowRankPanel& panel, const LowRankOutputs& out, std::size_t first) {
  const T* b = static_cast<const T*>(panel.b);
  const float* z = out.z + first * out.z_row;
  PanelSums<kRows> sums;
  RowVectors<kVectors> own;
  sums.clear();
  for (std::size_t r = 0; r < panel.rank; ++r, b += kLowRankPanel) {
    own.load_rows(b, kLanes, kLanes);
    sums.multiply_add(z + r, out.z_row, own);
  }
  sums.template add_to<T>(panel, out, first);
}

template <class T>
void panel_of(const LowRankPanel& panel, const LowRankOutputs& out) {
  std::size_t i = 0;
  for (; i + kRowsAtOnce <= out.count; i += kRowsAtOnce) add_rows<kRowsAtOnce, T>(panel, out, i);
  for (; i < out.count; ++i) add_rows<1, T>(panel, out, i);
}

void add_panel(const LowRankPanel& panel, const LowRankOutputs& out) {
  switch (out.type) {
    case ElementType::Float32:
      return panel_of<float>(panel, out);
    case ElementType::BFloat16:
      return panel_of<c10::BFloat16>(panel, out);
    case ElementType::Float16:
      return panel_of<c10::Half>(panel, out);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(add_panel);

void add_low_rank_panel(const LowRankPanel& panel, const LowRankOutputs& outputs) {
  HWY_DYNAMIC_DISPATCH(add_panel)(panel, outputs);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
