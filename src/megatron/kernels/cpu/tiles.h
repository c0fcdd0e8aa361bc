#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Matrix products of bf16 by tiles of 16 rows of 64 bytes, as AMX has them (Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 1, chapter 18). What computes with tiles takes one of two classes as a template argument:
// AmxTiles are the instructions, PlainTiles the same in C++, by which every path is tested on machines without AMX.
namespace megatron::kernels::cpu {

enum class TileKind { None, Plain, Amx };

/// The tiles that kernels use from now on: Amx where the CPU and the system have them, unless force_instruction_set
/// named something else; Plain only where it named "plain-tiles". Process-wide.
TileKind tiles();
/// Whether this process may use AMX's bf16 tiles. Asks the system for permission the first time.
bool amx_available();

/// Bits of a bf16 number.
using Bf16 = std::uint16_t;

constexpr std::size_t kTileRows16 = 16, kTileBytes = 64, kTileDepth = 32;

/// Eight tile registers of this thread, for as long as the object lives.
#if defined(__x86_64__)
class AmxTiles {
 public:
  AmxTiles() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  /// 16 rows of 64 bytes, `stride` bytes apart.
  template <int kTile>
  void load(const void* rows, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* rows, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  /// sum [16][16] float += left [16][32] times right, of which row i holds rows 2i and 2i + 1 of the operand [32][16],
  /// element by element.
  template <int kSum, int kLeft, int kRight>
  void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};
#endif

class PlainTiles {
 public:
  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  template <int kTile>
  void load(const void* rows, std::ptrdiff_t stride) {
    for (std::size_t i = 0; i < kTileRows16; ++i)
      std::memcpy(tiles_[kTile].data() + i * 16,
                  static_cast<const std::byte*>(rows) + static_cast<std::ptrdiff_t>(i) * stride, kTileBytes);
  }
  template <int kTile>
  void store(void* rows, std::ptrdiff_t stride) {
    for (std::size_t i = 0; i < kTileRows16; ++i)
      std::memcpy(static_cast<std::byte*>(rows) + static_cast<std::ptrdiff_t>(i) * stride,
                  tiles_[kTile].data() + i * 16, kTileBytes);
  }
  template <int kSum, int kLeft, int kRight>
  void multiply_add() {
    for (std::size_t i = 0; i < kTileRows16; ++i) {
      float even[16] = {}, odd[16] = {};
      for (std::size_t k = 0; k < 16; ++k) {
        const std::uint32_t left = tiles_[kLeft][i * 16 + k];
        for (std::size_t j = 0; j < 16; ++j) {
          const std::uint32_t right = tiles_[kRight][k * 16 + j];
          even[j] += lower(left) * lower(right);
          odd[j] += upper(left) * upper(right);
        }
      }
      for (std::size_t j = 0; j < 16; ++j) {
        std::uint32_t& sum = tiles_[kSum][i * 16 + j];
        sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(sum) + (even[j] + odd[j]));
      }
    }
  }

 private:
  using Tile = std::array<std::uint32_t, 16 * 16>;
  static float lower(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float upper(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }

  std::array<Tile, 8> tiles_ = {};
};

/// The left operand of tile_block: 32 rows in two halves of 16, `stride` bytes apart; `step` elements from one block of
/// 32 columns to the next.
struct TileLeft {
  const Bf16 *upper, *lower;
  std::ptrdiff_t stride;
  std::size_t step;

  /// Rows of `columns` elements one after another.
  static TileLeft rows(const Bf16* data, std::size_t columns) {
    return {data, data + 16 * columns, static_cast<std::ptrdiff_t>(columns * sizeof(Bf16)), kTileDepth};
  }
  /// Blocks of 32 x 32 one after another, each as two tiles.
  static TileLeft blocks(const Bf16* data) { return {data, data + 512, kTileBytes, 1024}; }
};

/// sum [32][32], rows `stride` floats apart, = or += left [32, 32 depth] times `right`: `depth` blocks of 32 x 32, each
/// as two tiles of 16 columns with pairs of rows interleaved.
template <class Tiles>
inline void tile_block(Tiles& tiles, TileLeft left, const Bf16* right, float* sum, std::size_t stride,
                       std::size_t depth, bool accumulate) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(stride * sizeof(float));
  float* lower = sum + 16 * stride;
  if (accumulate) {
    tiles.template load<0>(sum, row_bytes);
    tiles.template load<1>(sum + 16, row_bytes);
    tiles.template load<2>(lower, row_bytes);
    tiles.template load<3>(lower + 16, row_bytes);
  } else {
    tiles.template zero<0>();
    tiles.template zero<1>();
    tiles.template zero<2>();
    tiles.template zero<3>();
  }
  for (std::size_t k = 0; k < depth; ++k, left.upper += left.step, left.lower += left.step, right += 1024) {
    tiles.template load<6>(right, kTileBytes);
    tiles.template load<4>(left.upper, left.stride);
    tiles.template multiply_add<0, 4, 6>();
    tiles.template load<7>(right + 512, kTileBytes);
    tiles.template multiply_add<1, 4, 7>();
    tiles.template load<5>(left.lower, left.stride);
    tiles.template multiply_add<2, 5, 6>();
    tiles.template multiply_add<3, 5, 7>();
  }
  tiles.template store<0>(sum, row_bytes);
  tiles.template store<1>(sum + 16, row_bytes);
  tiles.template store<2>(lower, row_bytes);
  tiles.template store<3>(lower + 16, row_bytes);
}

}  // namespace megatron::kernels::cpu
