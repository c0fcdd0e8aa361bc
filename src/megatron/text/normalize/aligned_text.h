#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::text {

/// Bytes begin … end - 1 of a text.
struct ByteSpan {
  std::size_t begin = 0, end = 0;
  bool operator==(const ByteSpan&) const = default;
};

/// A character of a rewritten text: 0 takes the place of the next old character, 1 is put in front of it, -n takes its
/// place and that of the n after it.
struct Change {
  std::uint32_t code_point = 0;
  int change = 0;
};

/// A text on its way through the normalizers: valid UTF-8, and for each byte, where asked for, which bytes of the
/// original it stands for. What makes it longer than 64 times the original and 64 KiB throws ConfigError: no published
/// normalizer does, and a few of those that put a long text in the place of a short one would fill any memory.
class AlignedText {
 public:
  AlignedText() = default;
  /// `original`, which begins at byte `begin` of the whole text. Each byte that is not valid UTF-8 becomes U+FFFD, or
  /// the character `stand_in_base` + its value where that is not 0, and is counted in `replaced`.
  AlignedText(std::string_view original, std::size_t begin, bool aligned, std::uint32_t stand_in_base,
              std::size_t& replaced);

  const std::string& bytes() const { return bytes_; }
  bool aligned() const { return aligned_; }
  /// Where the text begins in the original.
  std::size_t origin() const { return origin_; }
  /// The original bytes that bytes [begin, end) stand for; needs aligned().
  ByteSpan origin_of(std::size_t begin, std::size_t end) const;

  /// Bytes [begin, end) alone.
  AlignedText part(std::size_t begin, std::size_t end) const;

  /// An empty text with the origin and the kind of `other`, to be written by the appends below.
  static AlignedText like(const AlignedText& other);
  void reserve(std::size_t bytes);
  /// Appends bytes [begin, end) of `from`, with what they stand for.
  void append_kept(const AlignedText& from, std::size_t begin, std::size_t end);
  /// Appends bytes that stand for what byte `at` of `from` does; `at` past the end, or no text: for nothing.
  void append_as(const AlignedText& from, std::size_t at, std::string_view bytes);
  /// Appends bytes that stand for what bytes [begin, end) of `from` do: for nothing, there, where these are none.
  void append_over(const AlignedText& from, std::size_t begin, std::size_t end, std::string_view bytes);
  /// Takes away what is behind byte `size`.
  void shrink(std::size_t size);

  /// Throws ConfigError where `size` bytes are too many for this text.
  void check(std::size_t size) const {
    if (size > most_) refuse(size);
  }

  /// Rewrites the text as `changes` say; the first `skipped` characters are dropped.
  void transform(std::span<const Change> changes, std::size_t skipped = 0);

 private:
  [[noreturn]] void refuse(std::size_t size) const;

  std::string bytes_;
  std::vector<ByteSpan> spans_;
  std::size_t origin_ = 0, most_ = std::string::npos;
  bool aligned_ = false;
};

}  // namespace megatron::text
