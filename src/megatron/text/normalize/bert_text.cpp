#include "megatron/text/normalize/bert_text.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/block.h"
#include "megatron/text/characters/unicode_classes.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace megatron::text {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;
constexpr CodePointRange kChinese[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},  {0x20000, 0x2a6df},
                                       {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};

/// What `code_point` becomes, or null where it stays.
template <std::size_t N>
const CodePointMapping* find_mapping(const CodePointMapping (&mappings)[N], std::uint32_t code_point) {
  const auto* found = std::lower_bound(std::begin(mappings), std::end(mappings), code_point,
                                       [](const CodePointMapping& m, std::uint32_t c) { return m.from < c; });
  return found != std::end(mappings) && found->from == code_point ? found : nullptr;
}

std::uint8_t combining_class(std::uint32_t code_point) {
  if (code_point < 0x300) return 0;
  const auto* found = std::lower_bound(std::begin(kCombining), std::end(kCombining), code_point,
                                       [](const CombiningRange& r, std::uint32_t c) { return r.last < c; });
  return found != std::end(kCombining) && found->first <= code_point ? found->value : 0;
}

/// What the steps below ask of a character, by code point.
class BertClasses {
 public:
  enum Flag : std::uint8_t {
    kRemoved = 1,
    kSpace = 2,
    kPunctuation = 4,
    kIdeograph = 8,
    kDecomposed = 16,
    kUpper = 32
  };

  /// The one table of the process, built at first use and constant from then on.
  static const BertClasses& instance() {
    static const BertClasses classes;
    return classes;
  }

  /// `code_point` must be below 0x110000.
  std::uint8_t of(std::uint32_t code_point) const { return flags_[code_point]; }

 private:
  BertClasses() : flags_(0x110000) {
    const auto add = [this](std::uint32_t first, std::uint32_t last, Flag flag) {
      for (std::uint32_t c = first; c <= last; ++c) flags_[c] = static_cast<std::uint8_t>(flags_[c] | flag);
    };
    for (const auto& range : kBertRemoved) add(range.first, range.last, kRemoved);
    for (std::uint32_t c = 0; c <= 0x3000; ++c)  // the last white space there is
      if (UnicodeClasses::instance().of(c) == CharClass::Space) add(c, c, kSpace);
    for (const auto& range : kBertPunctuation) add(range.first, range.last, kPunctuation);
    for (const auto& range : kChinese) add(range.first, range.last, kIdeograph);
    for (const auto& range : kBertAccents) add(range.first, range.last, kDecomposed);
    for (const auto& range : kCombining) add(range.first, range.last, kDecomposed);
    for (const auto& mapping : kBertDecompositions) add(mapping.from, mapping.from, kDecomposed);
    add(0xAC00, 0xD7A3, kDecomposed);
    for (const auto& mapping : kLowerCase) add(mapping.from, mapping.from, kUpper);
  }
  std::vector<std::uint8_t> flags_;
};

/// Takes text through the steps in their order.
class BertNormalizer {
 public:
  BertNormalizer(const BertNormalization& options, std::string& out)
      : options_(options), out_(out), classes_(BertClasses::instance()) {
    if (options.space_chinese) changes_ |= BertClasses::kIdeograph;
    if (options.strip_accents) changes_ |= BertClasses::kDecomposed;
    if (options.lower_case) changes_ |= BertClasses::kUpper;
  }

  void take(std::uint32_t c) {
    const unsigned flags = classes_.of(c);
    if (options_.clean_text && (flags & BertClasses::kRemoved) != 0) return;
    if (options_.clean_text && (flags & BertClasses::kSpace) != 0) return starter(' ');
    if ((flags & changes_) == 0) return starter(c);
    const bool chinese = (flags & changes_ & BertClasses::kIdeograph) != 0;
    if (chinese) strip(' ');
    strip(c);
    if (chinese) strip(' ');
  }

  /// take() of each character of text of plain_length() bytes.
  void take_plain(std::string_view text) {
    if (!marks_.empty()) flush();
    const std::size_t at = out_.size();
    out_.append(text);
    fold(out_.data() + at, text.size());
  }

  /// Writes the marks that wait for their order.
  void flush() {
    std::stable_sort(marks_.begin(), marks_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& mark : marks_) lower(mark.second);
    marks_.clear();
  }

 private:
  void strip(std::uint32_t c) {
    if (!options_.strip_accents || c < 0xC0) {
      starter(c);
    } else if (c >= 0xAC00 && c < 0xD7A4) {  // a Hangul syllable (Unicode standard, 3.12)
      const std::uint32_t index = c - 0xAC00;
      starter(0x1100 + index / 588);
      starter(0x1161 + index % 588 / 28);
      if (index % 28 != 0) starter(0x11A7 + index % 28);
    } else if (const CodePointMapping* mapping = find_mapping(kBertDecompositions, c)) {
      for (const std::uint32_t part : mapping->to)
        if (part != 0) in_order(part);
    } else if (!in_ranges(kBertAccents, c)) {
      in_order(c);
    } else if (combining_class(c) == 0) {
      flush();
    }
  }

  /// Marks between two starters come in the order of their classes.
  void in_order(std::uint32_t c) {
    const std::uint8_t value = combining_class(c);
    if (value == 0) return starter(c);
    marks_.emplace_back(value, c);
  }

  void starter(std::uint32_t c) {
    if (!marks_.empty()) flush();
    lower(c);
  }

  void lower(std::uint32_t c) {
    if (!options_.lower_case) return append_utf8(out_, c);
    if (c < 0x80) {
      out_.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 0x20 : c));
    } else if (const CodePointMapping* mapping = find_mapping(kLowerCase, c)) {
      for (const std::uint32_t part : mapping->to)
        if (part != 0) append_utf8(out_, part);
    } else {
      append_utf8(out_, c);
    }
  }

  /// Line ends and tabs to spaces, capitals to small letters.
  void fold(char* p, std::size_t n) const {
    const char blank = options_.clean_text ? ' ' : '\0', case_bit = options_.lower_case ? 0x20 : 0;
    std::size_t i = 0;
#ifdef __SSE2__
    for (; i + 16 <= n; i += 16) {
      const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i));
      const __m128i capital =
          _mm_and_si128(_mm_cmpgt_epi8(c, _mm_set1_epi8('A' - 1)), _mm_cmplt_epi8(c, _mm_set1_epi8('Z' + 1)));
      const __m128i lower = _mm_or_si128(c, _mm_and_si128(capital, _mm_set1_epi8(case_bit)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + i), _mm_max_epu8(lower, _mm_set1_epi8(blank)));
    }
#endif
    for (; i < n; ++i) p[i] = std::max(p[i] >= 'A' && p[i] <= 'Z' ? static_cast<char>(p[i] | case_bit) : p[i], blank);
  }

  const BertNormalization& options_;
  std::string& out_;
  const BertClasses& classes_;
  unsigned changes_ = 0;  // of BertClasses::Flag: what these options change beyond cleaning
  std::vector<std::pair<std::uint8_t, std::uint32_t>> marks_;
};

/// Bytes at `p` that are printable ASCII, tabs or line ends.
std::size_t plain_length(const char* p, const char* end) {
  const char* const begin = p;
#ifdef __SSE2__
  for (; end - p >= 16; p += 16) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const auto is = [c](char x) { return _mm_cmpeq_epi8(c, _mm_set1_epi8(x)); };
    const __m128i printable = _mm_andnot_si128(is(0x7F), _mm_cmpgt_epi8(c, _mm_set1_epi8(0x1F)));
    const __m128i plain = _mm_or_si128(_mm_or_si128(printable, is('\t')), _mm_or_si128(is('\n'), is('\r')));
    const unsigned other = ~static_cast<unsigned>(_mm_movemask_epi8(plain)) & 0xFFFFu;
    if (other != 0) return static_cast<std::size_t>(p - begin) + static_cast<std::size_t>(std::countr_zero(other));
  }
#endif
  while (p < end && ((*p >= 0x20 && *p < 0x7F) || *p == '\t' || *p == '\n' || *p == '\r')) ++p;
  return static_cast<std::size_t>(p - begin);
}

struct AsciiMasks {
  std::uint64_t space = 0, mark = 0, high = 0;  // high: not ASCII
};

AsciiMasks classify_ascii(const char* bytes) {
  AsciiMasks m;
#ifdef __SSE2__
  const auto in = [](__m128i c, char first, char last) {  // of characters in ASCII
    return _mm_and_si128(_mm_cmpgt_epi8(c, _mm_set1_epi8(static_cast<char>(first - 1))),
                         _mm_cmplt_epi8(c, _mm_set1_epi8(static_cast<char>(last + 1))));
  };
  for (int i = 0; i < 64; i += 16) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const auto bits = [i](__m128i v) {
      return static_cast<std::uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(v))) << i;
    };
    const __m128i lower = _mm_or_si128(c, _mm_set1_epi8(0x20));
    const __m128i letter = in(lower, 'a', 'z'), digit = in(c, '0', '9');
    const __m128i graphic =
        _mm_andnot_si128(_mm_cmpeq_epi8(c, _mm_set1_epi8(0x7F)), _mm_cmpgt_epi8(c, _mm_set1_epi8(' ')));
    m.space |= bits(_mm_or_si128(_mm_cmpeq_epi8(c, _mm_set1_epi8(' ')), in(c, '\t', '\r')));
    m.mark |= bits(_mm_andnot_si128(_mm_or_si128(letter, digit), graphic));
    m.high |= bits(c);
  }
#else
  const BertClasses& classes = BertClasses::instance();
  for (int i = 0; i < 64; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (c >= 0x80)
      m.high |= bit;
    else if ((classes.of(c) & BertClasses::kSpace) != 0)
      m.space |= bit;
    else if ((classes.of(c) & BertClasses::kPunctuation) != 0)
      m.mark |= bit;
  }
#endif
  return m;
}

}  // namespace

std::string bert_normalize(std::string_view text, const BertNormalization& options) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  BertNormalizer steps(options, out);
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    if (const std::size_t plain = plain_length(p, end); plain > 0) {
      steps.take_plain({p, plain});
      p += plain;
      continue;
    }
    const DecodedChar c = decode_utf8(p, end);
    steps.take(c.length == 0 ? kReplacement : c.code_point);
    p += std::max(c.length, 1);
  }
  steps.flush();
  return out;
}

/// Adds the characters outside ASCII, whose bytes are the bits of `high`.
void BertWordScanner::classify_wide(std::uint64_t high, Masks& masks) {
  const BertClasses& classes = BertClasses::instance();
  masks.space |= spill_space_;
  masks.mark |= spill_mark_;
  masks.last_mark |= spill_last_mark_;
  high &= ~spill_high_;
  spill_space_ = spill_mark_ = spill_last_mark_ = spill_high_ = 0;
  while (high != 0) {
    const int i = std::countr_zero(high);
    const DecodedChar c = decode_utf8(begin_ + position_ + i, begin_ + size_);
    if (c.length == 0) {
      high &= high - 1;
      continue;
    }
    const std::uint64_t width = (std::uint64_t{1} << c.length) - 1;
    const std::uint64_t here = width << i, last = std::uint64_t{1} << (c.length - 1);
    const bool spills = i + c.length > 64;
    high &= ~here;
    spill_high_ = spills ? width >> (64 - i) : 0;
    const std::uint8_t flags = classes.of(c.code_point);
    if ((flags & BertClasses::kSpace) != 0) {
      masks.space |= here;
      spill_space_ = spill_high_;
    } else if ((flags & BertClasses::kPunctuation) != 0) {
      masks.mark |= here;
      masks.first_mark |= std::uint64_t{1} << i;
      masks.last_mark |= last << i;
      spill_mark_ = spill_high_;
      spill_last_mark_ = spills ? last >> (64 - i) : 0;
    }
  }
}

bool BertWordScanner::next(std::uint64_t& begins, std::uint64_t& ends) {
  if (position_ >= size_) return false;
  const AsciiMasks ascii = classify_block(begin_ + position_, size_ - position_, classify_ascii);
  Masks m{.space = ascii.space, .mark = ascii.mark, .first_mark = ascii.mark, .last_mark = ascii.mark};
  if ((ascii.high | spill_high_) != 0) classify_wide(ascii.high, m);
  const std::uint64_t word = ~(m.space | m.mark), word_before = word << 1 | last_word_;
  begins = (word & ~word_before) | m.first_mark;
  ends = (word_before & ~word) | m.last_mark << 1 | last_mark_;
  last_word_ = word >> 63;
  last_mark_ = m.last_mark >> 63;
  position_ += 64;
  return true;
}

bool is_bert_ideograph(std::uint32_t code_point) {
  return code_point >= kChinese[0].first && in_ranges(kChinese, code_point);
}

}  // namespace megatron::text
