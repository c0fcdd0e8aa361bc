#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Matrix products of bf16 by tiles of 16 rows of 64 bytes, as AMX has them (Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 1, chapter 18). What computes with tiles takes one of three classes as template argument:
// HardwareTiles are the instructions of AMX; EmulatedTiles the same in C++, by which every path is tested on machines
// without AMX; DotTiles leave blocks of tiles to the dot products of AVX512_BF16, which read them in the same order.
namespace megatron::kernels::cpu {

enum class TileUnit { None, Emulated, Dots, Hardware };

/// What kernels compute tiles with from now on: Hardware where the chosen instruction set is "amx", Dots where it is
/// "avx512_bf16". Process-wide.
TileUnit tile_unit();
/// Whether tiles are emulated: for tests, switched on and off by emulate_tiles.
bool emulated_tiles();
void emulate_tiles(bool on);

/// Bits of a bf16 number.
using Bf16 = std::uint16_t;

constexpr std::size_t kTileRows16 = 16, kTileBytes = 64, kTileDepth = 32;

/// Eight tile registers of this thread, for as long as the object lives.
#if defined(__x86_64__)
class HardwareTiles {
 public:
  HardwareTiles() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~HardwareTiles() { asm volatile("tilerelease"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

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
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};
#endif

class EmulatedTiles {
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
  void multiply() {
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

/// Holds nothing: the sums of a block stay in vector registers (tile_multiply.h).
class DotTiles {};

}  // namespace megatron::kernels::cpu
