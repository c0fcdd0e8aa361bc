#include "megatron/text/split/pretokenize.h"

#include "megatron/text/characters/block.h"
#include "megatron/text/characters/unicode_classes.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace megatron::text {
namespace {

struct AsciiMasks {
  std::uint64_t letter, number, space, blank, apostrophe, high;  // high: not ASCII
};

#ifdef __SSE2__

AsciiMasks classify_ascii(const char* bytes) {
  AsciiMasks m{};
  // x <u n, as a signed comparison of x - 128.
  const auto below = [](__m128i x, int n) {
    return _mm_cmplt_epi8(_mm_add_epi8(x, _mm_set1_epi8(-128)), _mm_set1_epi8(static_cast<char>(n - 128)));
  };
  for (int i = 0; i < 64; i += 16) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const auto bits = [i](__m128i v) {
      return static_cast<std::uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(v))) << i;
    };
    const __m128i lower = _mm_or_si128(c, _mm_set1_epi8(0x20));
    const __m128i blank = _mm_cmpeq_epi8(c, _mm_set1_epi8(' '));
    m.letter |= bits(below(_mm_sub_epi8(lower, _mm_set1_epi8('a')), 26));
    m.number |= bits(below(_mm_sub_epi8(c, _mm_set1_epi8('0')), 10));
    m.space |= bits(_mm_or_si128(blank, below(_mm_sub_epi8(c, _mm_set1_epi8('\t')), 5)));
    m.blank |= bits(blank);
    m.apostrophe |= bits(_mm_cmpeq_epi8(c, _mm_set1_epi8('\'')));
    m.high |= bits(c);
  }
  return m;
}

#else

AsciiMasks classify_ascii(const char* bytes) {
  AsciiMasks m{};
  for (int i = 0; i < 64; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (static_cast<unsigned char>((c | 0x20) - 'a') < 26) m.letter |= bit;
    if (static_cast<unsigned char>(c - '0') < 10) m.number |= bit;
    if (c == ' ' || static_cast<unsigned char>(c - '\t') < 5) m.space |= bit;
    if (c == ' ') m.blank |= bit;
    if (c == '\'') m.apostrophe |= bit;
    if (c >= 0x80) m.high |= bit;
  }
  return m;
}

#endif

/// Bytes of the contraction that begins with the apostrophe at `p`; 0 where none does.
std::size_t contraction_length(const char* p, const char* end) {
  if (end - p < 2) return 0;
  switch (p[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return end - p > 2 && p[2] == 'e' ? 3 : 0;
    case 'l':
      return end - p > 2 && p[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace

PieceScanner::PieceScanner(std::string_view text, bool split_digits)
    : begin_(text.data()), size_(text.size()), split_digits_(split_digits) {
  ahead_ = classify(0);
}

/// Adds the characters outside ASCII, whose bytes are the bits of `high`.
void PieceScanner::classify_wide(std::uint64_t high, std::size_t offset, Masks& masks) {
  const UnicodeClasses& classes = UnicodeClasses::instance();
  masks.letter |= spill_letter_;
  masks.number |= spill_number_;
  masks.space |= spill_space_;
  masks.digit |= spill_digit_;
  high &= ~spill_high_;
  spill_letter_ = spill_number_ = spill_space_ = spill_digit_ = spill_high_ = 0;
  while (high != 0) {
    const int i = std::countr_zero(high);
    const DecodedChar c = decode_utf8(begin_ + offset + i, begin_ + size_);
    if (c.length == 0) {
      high &= high - 1;
      continue;
    }
    const std::uint64_t width = (std::uint64_t{1} << c.length) - 1;
    const std::uint64_t here = width << i;
    const std::uint64_t spill = i + c.length > 64 ? width >> (64 - i) : 0;
    high &= ~here;
    spill_high_ = spill;
    const CharClass kind = classes.of(c.code_point);
    if (split_digits_ && is_number_character(c.code_point)) {
      masks.digit |= here, spill_digit_ = spill;
      masks.first_digit |= std::uint64_t{1} << i;
    }
    switch (kind) {
      case CharClass::Letter:
        masks.letter |= here, spill_letter_ = spill;
        break;
      case CharClass::Number:
        masks.number |= here, spill_number_ = spill;
        break;
      case CharClass::Space:
        masks.space |= here, spill_space_ = spill;
        masks.last_space[c.length] |= std::uint64_t{1} << i;
        break;
      case CharClass::Other:
        break;
    }
  }
}

PieceScanner::Masks PieceScanner::classify(std::size_t offset) {
  Masks masks;
  if (offset >= size_) {
    masks.space = ~std::uint64_t{0};  // the end of the text follows a space as a space would
    return masks;
  }
  const AsciiMasks ascii = classify_block(begin_ + offset, size_ - offset, classify_ascii);
  masks.letter = ascii.letter;
  masks.number = ascii.number;
  masks.space = ascii.space;
  masks.last_space[1] = ascii.space;
  masks.blank = ascii.blank;
  masks.apostrophe = ascii.apostrophe;
  if (split_digits_) masks.digit = masks.first_digit = ascii.number;
  if ((ascii.high | spill_high_) != 0) classify_wide(ascii.high, offset, masks);
  return masks;
}

/// A contraction takes the letters after its apostrophe: no piece starts at the first of them, one after the last.
std::uint64_t PieceScanner::cut_contractions(std::uint64_t starts, std::uint64_t candidates) {
  for (; candidates != 0; candidates &= candidates - 1) {
    const int i = std::countr_zero(candidates);
    const char* p = begin_ + position_ + i;
    const auto length = static_cast<int>(contraction_length(p, begin_ + size_));
    if (length == 0) continue;
    if (i + 1 < 64)
      starts &= ~(std::uint64_t{1} << (i + 1));
    else
      drop_start_ |= 1;
    if (i + length < 64)
      starts |= std::uint64_t{1} << (i + length);
    else
      add_start_ |= std::uint64_t{1} << (i + length - 64);
  }
  return starts;
}

bool PieceScanner::next(std::uint64_t& starts) {
  if (position_ >= size_) return false;
  current_ = ahead_;
  ahead_ = classify(position_ + 64);
  const Masks& m = current_;

  // A piece starts where the class changes, except after a space, which belongs to what follows it (to nothing before a
  // digit that is cut out) …
  const std::uint64_t change = (m.letter ^ (m.letter << 1 | last_letter_)) |
                               (m.number ^ (m.number << 1 | last_number_)) | (m.space ^ (m.space << 1 | last_space_));
  std::uint64_t found = change & ~((m.blank << 1 | last_blank_) & ~(m.space | m.digit));
  // … and at the last space before something else: `\s+(?!\S)` gives it up, except where the text is cut behind it.
  const std::uint64_t kept = m.space | m.digit, kept_ahead = ahead_.space | ahead_.digit;
  for (int width = 1; width < 4; ++width) found |= m.last_space[width] & ~(kept >> width | kept_ahead << (64 - width));
  found |= m.first_digit | ((m.digit << 1 | last_digit_) & ~m.digit);

  found = (found | add_start_) & ~drop_start_;
  add_start_ = drop_start_ = 0;
  if ((found & m.apostrophe) != 0) found = cut_contractions(found, found & m.apostrophe);

  last_letter_ = m.letter >> 63;
  last_number_ = m.number >> 63;
  last_space_ = m.space >> 63;
  last_blank_ = m.blank >> 63;
  last_digit_ = m.digit >> 63;
  const std::size_t left = size_ - position_;
  starts = left >= 64 ? found : found & ((std::uint64_t{1} << left) - 1);
  position_ += 64;
  return true;
}

}  // namespace megatron::text
