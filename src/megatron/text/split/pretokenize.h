#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace megatron::text {

/// Cuts text into the pieces that GPT-2's regular expression matches,
///
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// 64 bytes at a time: every byte gets the class of its character, as bits, and the starts of pieces follow from those
/// by a few operations on words. A byte that is not part of valid UTF-8 is a character of the third kind. The pieces
/// cover the text without gaps.
///
/// With `split_digits` the text is first cut around every number character, each of which is a piece.
class PieceScanner {
 public:
  explicit PieceScanner(std::string_view text, bool split_digits = false);

  /// Scans the next 64 bytes. Bit i: a piece starts at byte `block_start() + i`. False at the end of the text.
  bool next(std::uint64_t& starts);

  /// Offset of the block that the last next() scanned.
  std::size_t block_start() const { return position_ - 64; }

 private:
  // Bit i: byte i of a block belongs to a character of this class.
  struct Masks {
    std::uint64_t letter = 0, number = 0, space = 0;
    std::uint64_t last_space[4] = {};          // [w]: first byte of a space of w bytes
    std::uint64_t digit = 0, first_digit = 0;  // with split_digits: number characters, their first bytes
    std::uint64_t blank = 0;                   // U+0020
    std::uint64_t apostrophe = 0;              // U+0027
  };
  Masks classify(std::size_t offset);
  void classify_wide(std::uint64_t high, std::size_t offset, Masks& masks);
  std::uint64_t cut_contractions(std::uint64_t starts, std::uint64_t candidates);

  const char* begin_;
  std::size_t size_;
  bool split_digits_;
  std::size_t position_ = 0;  // of the block that next() will scan
  Masks current_, ahead_;     // that block and the one after it
  // What the block before leaves for the one at hand: classes of its last byte, bytes of a character that began there,
  // starts that a contraction adds or removes.
  std::uint64_t last_letter_ = 0, last_number_ = 0, last_space_ = 0, last_blank_ = 0, last_digit_ = 0;
  std::uint64_t spill_letter_ = 0, spill_number_ = 0, spill_space_ = 0, spill_digit_ = 0, spill_high_ = 0;
  std::uint64_t add_start_ = 1, drop_start_ = 0;  // a piece starts at byte 0
};

/// Calls `piece(const char* begin, std::size_t size)` for each piece of `text`, in order.
template <class OnPiece>
void for_each_piece(std::string_view text, bool split_digits, OnPiece&& piece) {
  if (text.empty()) return;
  PieceScanner scanner(text, split_digits);
  std::size_t begin = 0;
  std::uint64_t starts = 0;
  while (scanner.next(starts)) {
    const std::size_t block = scanner.block_start();
    if (block == 0) starts &= ~std::uint64_t{1};  // the start at byte 0 ends no piece
    while (starts != 0) {
      const std::size_t end = block + static_cast<std::size_t>(std::countr_zero(starts));
      starts &= starts - 1;
      piece(text.data() + begin, end - begin);
      begin = end;
    }
  }
  piece(text.data() + begin, text.size() - begin);
}

template <class OnPiece>
void for_each_piece(std::string_view text, OnPiece&& piece) {
  for_each_piece(text, false, std::forward<OnPiece>(piece));
}

}  // namespace megatron::text
