#pragma once
#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/kernels/phases/numbers.h"

namespace megatron::kernels::phases {

/// Words of a stream in ascending order of their index: Philox gives four at a time.
struct Words {
  std::uint64_t key = 0, sample = 0, block = ~std::uint64_t{0};
  PhiloxWords four = {};

  MEGATRON_BOTH std::uint32_t at(std::uint64_t index) {
    if (index / 4 != block) {
      block = index / 4;
      four = philox(key, block, sample);
    }
    const auto place = static_cast<int>(index % 4);
    return place < 2 ? (place == 0 ? four[0] : four[1]) : (place == 2 ? four[2] : four[3]);
  }
};

/// Dropout (dropout.h) as a kernel is handed it. The samples' ids are on the host: most launches carry them.
struct Mask {
  static constexpr int kCarried = 64;
  bool on = false;
  std::uint32_t threshold = 0;
  double factor = 1;
  std::uint64_t key = 0;
  std::int64_t position_offset = 0, features = 0, feature_offset = 0, jump_at = 0, jump = 0;
  const std::int64_t* many = nullptr;  ///< the ids where there are more than kCarried
  std::int64_t carried[kCarried] = {};

  MEGATRON_BOTH std::uint64_t sample(std::int64_t b) const {
    return static_cast<std::uint64_t>(many != nullptr ? many[b] : carried[b]);
  }
  /// Number of feature `j` at `position` in the full activation.
  MEGATRON_BOTH std::uint64_t element(std::int64_t position, std::int64_t j) const {
    const std::int64_t place = position_offset + position + (position >= jump_at ? jump : 0);
    return static_cast<std::uint64_t>(place * features + feature_offset + j);
  }
  MEGATRON_BOTH Words words(std::int64_t b) const { return {key, sample(b)}; }
  /// What an element is multiplied by.
  MEGATRON_BOTH double of(Words& words, std::uint64_t index) const { return words.at(index) >= threshold ? factor : 0; }
  /// What kCount elements from number `index` on are multiplied by. Philox gives the words of four at a time.
  template <class C, int kCount>
  MEGATRON_BOTH void factors(std::int64_t b, std::uint64_t index, C (&to)[kCount]) const {
    const C kept = static_cast<C>(factor);
    const std::uint64_t stream = sample(b);
    if (kCount % 4 == 0 && index % 4 == 0) {
      MEGATRON_UNROLL for (int group = 0; group < kCount / 4; ++group) {
        const PhiloxWords four = philox(key, index / 4 + static_cast<std::uint64_t>(group), stream);
        MEGATRON_UNROLL for (int i = 0; i < 4; ++i) to[group * 4 + i] = four[i] >= threshold ? kept : C(0);
      }
      return;
    }
    Words words{key, stream};
    MEGATRON_UNROLL for (int i = 0; i < kCount; ++i) to[i] =
        words.at(index + static_cast<std::uint64_t>(i)) >= threshold ? kept : C(0);
  }
};

}  // namespace megatron::kernels::phases
