#include "megatron/corpus/words.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/unicode_classes.h"
#define XXH_INLINE_ALL
#include <xxhash.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace megatron::corpus {
namespace {

using text::CharClass;
using text::CodePointRange;

/// Thai, Lao, Burmese, Khmer, kana, Chinese characters: a word each.
constexpr CodePointRange kUnspaced[] = {{0x0E00, 0x0EFF}, {0x1000, 0x109F}, {0x1780, 0x17FF},
                                        {0x3040, 0x30FF}, {0x31F0, 0x31FF}, {0x3400, 0x4DBF},
                                        {0x4E00, 0x9FFF}, {0xF900, 0xFAFF}, {0x20000, 0x3FFFF}};

/// Bits of 64 bytes: those of ASCII words, those outside ASCII.
struct Masks {
  std::uint64_t word = 0, high = 0;
};

#ifdef __SSE2__

/// Also writes the bytes with bit 0x20 set to `lower`.
Masks classify(const char* bytes, char* lower) {
  Masks masks;
  const auto below = [](__m128i x, int n) {  // x <u n, as a signed comparison of x - 128
    return _mm_cmplt_epi8(_mm_add_epi8(x, _mm_set1_epi8(-128)), _mm_set1_epi8(static_cast<char>(n - 128)));
  };
  for (int i = 0; i < 64; i += 16) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const __m128i low = _mm_or_si128(c, _mm_set1_epi8(0x20));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lower + i), low);
    const __m128i letter = below(_mm_sub_epi8(low, _mm_set1_epi8('a')), 26);
    const __m128i digit = below(_mm_sub_epi8(c, _mm_set1_epi8('0')), 10);
    const __m128i word = _mm_or_si128(_mm_or_si128(letter, digit), _mm_cmpeq_epi8(c, _mm_set1_epi8('_')));
    const auto bits = [i](__m128i v) {
      return static_cast<std::uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(v))) << i;
    };
    masks.word |= bits(word);
    masks.high |= bits(c);
  }
  return masks;
}

#else

Masks classify(const char* bytes, char* lower) {
  Masks masks;
  for (int i = 0; i < 64; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    lower[i] = static_cast<char>(c | 0x20);
    const std::uint64_t bit = std::uint64_t{1} << i;
    if ((c | 0x20) - 'a' < 26u || c - '0' < 10u || c == '_') masks.word |= bit;
    if (c >= 0x80) masks.high |= bit;
  }
  return masks;
}

#endif

enum class Kind : std::uint8_t { Break, Letter, Unspaced };

Kind kind_of(std::uint32_t c) {
  if (c >= kUnspaced[0].first && text::in_ranges(kUnspaced, c)) {
    const CharClass unspaced = text::UnicodeClasses::instance().of(c);
    // Vowel signs and tones of Thai and its like are neither; alone they say too little to be words.
    return unspaced == CharClass::Letter || unspaced == CharClass::Number ? Kind::Unspaced : Kind::Break;
  }
  const CharClass kind = text::UnicodeClasses::instance().of(c);
  return kind == CharClass::Letter || kind == CharClass::Number || c == '_' ? Kind::Letter : Kind::Break;
}

/// Lower case of every code point up to the last that has one; built at first use and constant from then on.
std::uint32_t lower_case(std::uint32_t c) {
  static const std::vector<std::uint32_t> table = [] {
    std::vector<std::uint32_t> lower(std::prev(std::end(text::kLowerCase))->from + 1);
    for (std::size_t i = 0; i < lower.size(); ++i) lower[i] = static_cast<std::uint32_t>(i);
    for (const text::CodePointMapping& mapping : text::kLowerCase)
      if (mapping.to[1] == 0) lower[mapping.from] = mapping.to[0];
    for (std::uint32_t ascii = 'A'; ascii <= 'Z'; ++ascii) lower[ascii] = ascii + 0x20;
    return lower;
  }();
  return c < table.size() ? table[c] : c;
}

/// The finalizer of MurmurHash3: every bit of x moves every bit of the result.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 33);
}

}  // namespace

void WordScanner::start(std::string_view text) {
  constexpr std::size_t kKept = 8 << 20;  // one huge text must not hold its memory for the rest of the run
  if (lower_.size() > kKept && text.size() < kKept) std::string().swap(lower_);
  if (lower_.size() < text.size() + 64) lower_.resize(text.size() + 64);
  text_ = text;
  found_.clear();
  next_found_ = position_ = begin_ = 0;
  open_ = wide_word_ = false;
}

/// The character at `at` is or is not of a word.
void WordScanner::take(bool in_word, std::size_t at) {
  if (in_word == open_) return;
  if (in_word)
    begin_ = at;
  else
    found_.push_back({begin_, at, wide_word_});
  open_ = in_word;
  wide_word_ = false;
}

/// Characters one by one from position_ to the first that begins at or after `until`.
void WordScanner::scan_wide(std::size_t until) {
  const char *const begin = text_.data(), *const end = begin + text_.size();
  while (position_ < until) {
    const DecodedChar c = decode_utf8(begin + position_, end);
    const std::size_t length = c.length == 0 ? 1 : static_cast<std::size_t>(c.length);
    const Kind kind = c.length == 0 ? Kind::Break : kind_of(c.code_point);
    take(kind == Kind::Letter, position_);
    if (kind == Kind::Letter && length > 1) wide_word_ = true;
    if (kind == Kind::Unspaced) found_.push_back({position_, position_ + length, true});
    position_ += length;
  }
}

void WordScanner::scan_block() {
  const std::size_t rest = text_.size() - position_;
  char tail[64] = {};
  if (rest < 64) std::memcpy(tail, text_.data() + position_, rest);
  const Masks masks = classify(rest < 64 ? tail : text_.data() + position_, lower_.data() + position_);
  if (masks.high != 0) return scan_wide(position_ + std::min<std::size_t>(rest, 64));
  // A word begins or ends where a byte differs from the one before it.
  std::uint64_t changes = masks.word ^ (masks.word << 1 | (open_ ? 1 : 0));
  for (; changes != 0; changes &= changes - 1)
    take(!open_, position_ + static_cast<std::size_t>(std::countr_zero(changes)));
  position_ += std::min<std::size_t>(rest, 64);
}

void WordScanner::fold_wide(Word& word) {
  wide_.clear();
  const char* const end = text_.data() + word.end;
  for (const char* p = text_.data() + word.begin; p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    const std::uint32_t lower = lower_case(c.code_point);
    append_utf8(wide_, lower < 0x80 ? lower | 0x20 : lower);
    p += c.length;
  }
  word.folded = wide_;
}

bool WordScanner::next(Word& word) {
  while (next_found_ == found_.size()) {
    found_.clear();
    next_found_ = 0;
    if (position_ >= text_.size()) {
      if (!open_) return false;
      take(false, text_.size());
      break;
    }
    scan_block();
  }
  const Span& span = found_[next_found_++];
  word.begin = span.begin;
  word.end = span.end;
  if (span.wide)
    fold_wide(word);
  else
    word.folded = std::string_view(lower_).substr(span.begin, span.end - span.begin);
  word.hash = XXH3_64bits(word.folded.data(), word.folded.size());
  return true;
}

void append_ngrams(std::span<const std::uint64_t> units, std::size_t n, std::vector<std::uint64_t>& out) {
  if (units.size() < n) return;
  // A polynomial of the units, which are hashes themselves, modulo 2^64: one multiplication and one addition a step.
  constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15u;
  std::uint64_t leaving = 1, sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum = sum * kBase + units[i];
    leaving *= kBase;
  }
  out.push_back(mix(sum));
  for (std::size_t i = n; i < units.size(); ++i) {
    sum = sum * kBase + units[i] - leaving * units[i - n];
    out.push_back(mix(sum));
  }
}

Shingler::Shingler(ShingleOptions options) : options_(options) {
  if (options.size < 1 || options.size > 64)
    throw ConfigError(rule_got_fix("a shingle must have 1 to 64 words or characters.", concat(options.size),
                                   "--shingle-size 5 (the default)"));
}

void Shingler::append_characters(std::string_view folded) {
  if (!units_.empty()) units_.push_back(mix(' '));
  const char* const end = folded.data() + folded.size();
  for (const char* p = folded.data(); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    units_.push_back(mix(c.code_point));
    p += std::max(c.length, 1);
  }
}

const std::vector<std::uint64_t>& Shingler::shingles(std::string_view text) {
  constexpr std::size_t kKept = 1 << 20;
  for (auto* buffer : {&units_, &shingles_}) {
    if (buffer->capacity() > kKept && text.size() < kKept) std::vector<std::uint64_t>().swap(*buffer);
    buffer->clear();
  }
  scanner_.scan(text, [&](const Word& word) {
    if (options_.characters)
      append_characters(word.folded);
    else
      units_.push_back(word.hash);
  });
  if (!units_.empty())
    append_ngrams(units_, std::min(units_.size(), static_cast<std::size_t>(options_.size)), shingles_);
  return shingles_;
}

}  // namespace megatron::corpus
