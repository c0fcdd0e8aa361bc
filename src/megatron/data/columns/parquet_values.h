#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/columns/parquet_footer.h"

// What is in a page of parquet, value by value: a run of few bytes may stand for billions, so nothing is expanded.
namespace megatron::data {

/// The page that decoders read, for their messages.
struct ParquetPage {
  const ColumnFile& file;
  std::uint64_t offset;  ///< of its head in the file
  [[noreturn]] void wrong(const std::string& rule, const std::string& got) const { file.damaged(offset, rule, got); }
};

/// Runs and bit-packed groups of whole numbers: levels, and indices into a dictionary.
class HybridDecoder {
 public:
  HybridDecoder() = default;
  HybridDecoder(std::span<const std::byte> bytes, int bits) : rest_(bytes), bits_(bits) {}
  std::uint32_t next(const ParquetPage& page);

 private:
  void begin_run(const ParquetPage& page);

  std::span<const std::byte> rest_ = {}, packed_ = {};
  int bits_ = 0;
  std::uint64_t left_ = 0, bit_ = 0;
  std::uint32_t value_ = 0;
  bool is_packed_ = false;
};

/// DELTA_BINARY_PACKED: blocks of differences, each less the smallest of its block.
class DeltaDecoder {
 public:
  DeltaDecoder() = default;
  DeltaDecoder(std::span<const std::byte> bytes, const ParquetPage& page);
  std::int64_t next(const ParquetPage& page);
  /// What comes after the last block. Looks at the blocks' heads alone.
  std::span<const std::byte> behind(const ParquetPage& page) const;

 private:
  void begin_block(const ParquetPage& page);
  void begin_part(const ParquetPage& page);

  static constexpr std::size_t kMaxParts = 256;
  std::span<const std::byte> rest_ = {}, packed_ = {};
  std::array<std::uint8_t, kMaxParts> widths_{};
  std::uint64_t left_ = 0, parts_ = 0, part_values_ = 0, part_ = 0, in_part_ = 0;
  std::uint64_t value_ = 0, smallest_ = 0;
  bool is_first_ = true;
};

/// The values of one page. Of a page of a dictionary: its whole.
class ParquetValues {
 public:
  /// `dictionary`: that of the chunk, which outlives it; null where it has none.
  void start(const ParquetPage& page, const ParquetLeaf& leaf, std::int64_t encoding, std::span<const std::byte> bytes,
             const ParquetValues* dictionary);
  /// Reads the next value, which text() or bits() has until the next call.
  void next(const ParquetPage& page);

  std::string_view text() const { return text_; }
  std::uint64_t bits() const { return bits_; }  ///< of a number, zero-extended

  /// Reads `count` values of a PLAIN page ahead, for others to refer to.
  void keep_all(const ParquetPage& page, std::int64_t count);

 private:
  enum class How : std::uint8_t { Plain, Dictionary, Runs, Delta, DeltaLengths, DeltaTexts };

  void next_plain(const ParquetPage& page);
  std::span<const std::byte> take(std::uint64_t bytes, const ParquetPage& page);

  How how_ = How::Plain;
  int physical_ = 0;
  std::span<const std::byte> rest_ = {};
  std::uint64_t bit_ = 0;
  HybridDecoder runs_;
  DeltaDecoder numbers_, prefixes_;
  const ParquetValues* dictionary_ = nullptr;
  std::vector<std::string_view> texts_;  // of a dictionary
  std::vector<std::uint64_t> all_bits_;
  std::string_view text_;
  std::string whole_;  // of a text that begins as the one before
  std::uint64_t bits_ = 0;
};

}  // namespace megatron::data
