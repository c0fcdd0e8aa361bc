#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/kernels/cpu/elementwise/element.h"

// The second product of low-rank matrices (low_rank/low_rank.h): panels of outputs of few rows.
namespace megatron::kernels::cpu {

/// Outputs of a panel: a line of the cache in 16 bits.
inline constexpr std::size_t kLowRankPanel = 32;

/// `count` outputs from `column` on.
struct LowRankPanel {
  std::size_t column, count, rank;
  const void* b;        ///< [rank][kLowRankPanel], zeros behind `count`
  const float* factor;  ///< [kLowRankPanel]; null: 1
};

/// y = factor (y + scale z b) of some rows, of which z has one behind the other.
struct LowRankOutputs {
  ElementType type;  ///< of y and b
  void* y;
  std::size_t y_row;         ///< elements from row to row of y
  const std::int64_t* rows;  ///< their numbers in y; null: 0, 1, …
  std::size_t count;         ///< of rows
  const float* z;            ///< of the panel's part
  std::size_t z_row;
  float scale;
};

/// Adds one panel. A row gets the same bits whatever the others are.
void add_low_rank_panel(const LowRankPanel& panel, const LowRankOutputs& outputs);

}  // namespace megatron::kernels::cpu
