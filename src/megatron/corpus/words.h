#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::corpus {

/// A word of a text.
struct Word {
  std::uint64_t hash;       ///< equal for equal `folded`; two different words share it once in 2^64
  std::size_t begin, end;   ///< its bytes in the text
  std::string_view folded;  ///< in lower case; lives until the next word
};

/// Cuts text into the words that all tools here compare: runs of letters, digits and '_' (Python's \w+) in lower case,
/// so that case, punctuation and white space make no difference. Characters of scripts that put no spaces between words
/// (Chinese, Japanese kana, Thai, Lao, Khmer, Burmese) are a word each. A byte that is not valid UTF-8 ends a word and
/// belongs to none. Lower case goes character by character; the few whose lower case is several characters stay.
///
/// One thread at a time; keeps its buffers from text to text.
class WordScanner {
 public:
  /// Calls `on_word(const Word&)` for each word, in order.
  template <class OnWord>
  void scan(std::string_view text, OnWord&& on_word) {
    start(text);
    Word word{};
    while (next(word)) on_word(word);
  }

  /// scan() step by step: start(), then next() until it returns false. `text` must stay.
  void start(std::string_view text);
  bool next(Word& word);

 private:
  void scan_block();
  void scan_wide(std::size_t until);
  void take(bool in_word, std::size_t at);
  void fold_wide(Word& word);

  /// A word's end is told by the byte after it: found words wait here, at most those of one block.
  struct Span {
    std::size_t begin, end;
    bool wide;  // has bytes outside ASCII
  };
  std::string_view text_;
  std::string lower_;  // text_ with bit 0x20 of every byte set: lower case where a byte is of an ASCII word
  std::string wide_;
  std::vector<Span> found_;
  std::size_t next_found_ = 0;
  std::size_t position_ = 0;  // all before it is scanned
  std::size_t begin_ = 0;     // of the open word
  bool open_ = false, wide_word_ = false;
};

/// Appends the hash of each run of `n` >= 1 units, words or characters, in order: max(0, units - n + 1) of them.
void append_ngrams(std::span<const std::uint64_t> units, std::size_t n, std::vector<std::uint64_t>& out);

/// What documents are compared by.
struct ShingleOptions {
  bool characters = false;  ///< runs of characters of the folded words joined by one space, instead of runs of words
  int size = 5;
};

/// Hashes of a text's shingles, in the order of the text, with repetitions. A text of fewer than `size` words (or
/// characters) has one shingle, all of it; one without words has none. One thread at a time.
class Shingler {
 public:
  /// Throws ConfigError unless size is 1 to 64.
  explicit Shingler(ShingleOptions options);
  /// Valid until the next call.
  const std::vector<std::uint64_t>& shingles(std::string_view text);

 private:
  void append_characters(std::string_view folded);

  ShingleOptions options_;
  WordScanner scanner_;
  std::vector<std::uint64_t> units_, shingles_;
};

}  // namespace megatron::corpus
