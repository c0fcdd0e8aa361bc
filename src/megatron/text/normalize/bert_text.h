#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/vocabulary.h"

// BERT's treatment of text (Devlin et al. 2019), as Hugging Face tokenizers' BertNormalizer and BertPreTokenizer do it
// to the character.
namespace megatron::text {

/// `text` cleaned, Chinese characters set apart, accents stripped (canonical decomposition), in lower case, as
/// `options` say. Bytes that are not valid UTF-8 count as U+FFFD each.
std::string bert_normalize(std::string_view text, const BertNormalization& options);

/// Finds the words of a text: what white space separates, punctuation each by itself. 64 bytes at a time: every byte
/// gets the class of its character, as bits, and where words begin and end follows from those by operations on words.
/// A byte that is not part of valid UTF-8 is a word's.
class BertWordScanner {
 public:
  explicit BertWordScanner(std::string_view text) : begin_(text.data()), size_(text.size()) {}

  /// Scans the next 64 bytes. Bit i of `begins`: a word begins at byte `block_start() + i`; of `ends`: one has ended
  /// before it. False at the end of the text; a word that reaches it has no end.
  bool next(std::uint64_t& begins, std::uint64_t& ends);

  /// Offset of the block that the last next() scanned.
  std::size_t block_start() const { return position_ - 64; }

 private:
  struct Masks {
    std::uint64_t space = 0, mark = 0;            // bytes of white space, of punctuation
    std::uint64_t first_mark = 0, last_mark = 0;  // first and last byte of each punctuation character
  };
  void classify_wide(std::uint64_t high, Masks& masks);

  const char* begin_;
  std::size_t size_;
  std::size_t position_ = 0;
  // What the block before leaves: whether its last byte was a word's or ended a mark; bytes of a character begun there.
  std::uint64_t last_word_ = 0, last_mark_ = 0;
  std::uint64_t spill_space_ = 0, spill_mark_ = 0, spill_last_mark_ = 0, spill_high_ = 0;
};

/// Calls `word(std::string_view)` for each word of `text`, in order.
template <class OnWord>
void for_each_bert_word(std::string_view text, const OnWord& word) {
  BertWordScanner scanner(text);
  std::size_t begin = 0;
  bool inside = false;
  for (std::uint64_t begins = 0, ends = 0; scanner.next(begins, ends);) {
    const std::size_t block = scanner.block_start();
    while (true) {
      if (!inside) {
        if (begins == 0) break;
        begin = block + static_cast<std::size_t>(std::countr_zero(begins));
        begins &= begins - 1;
        inside = true;
      }
      if (ends == 0) break;
      word(text.substr(begin, block + static_cast<std::size_t>(std::countr_zero(ends)) - begin));
      ends &= ends - 1;
      inside = false;
    }
  }
  if (inside) word(text.substr(begin));
}

/// Whether BERT sets the character apart as a Chinese one.
bool is_bert_ideograph(std::uint32_t code_point);

}  // namespace megatron::text
