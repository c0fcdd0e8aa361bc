#include "megatron/text/bert_text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "megatron/text/bert_tables.h"
#include "megatron/text/unicode_classes.h"

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

/// Takes characters one by one, through the steps in their order.
class Normalizer {
 public:
  Normalizer(const BertNormalization& options, std::string& out) : options_(options), out_(out) {}

  void take(std::uint32_t c) {
    if (options_.clean_text) {
      if (c < 0x80 ? c < 0x20 || c == 0x7F : in_ranges(kBertRemoved, c)) {
        if (c != '\t' && c != '\n' && c != '\r') return;
        c = ' ';
      } else if (c >= 0x80 && UnicodeClasses::instance().of(c) == CharClass::Space) {
        c = ' ';
      }
    }
    const bool chinese = options_.space_chinese && c >= kChinese[0].first && in_ranges(kChinese, c);
    if (chinese) strip(' ');
    strip(c);
    if (chinese) strip(' ');
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

  const BertNormalization& options_;
  std::string& out_;
  std::vector<std::pair<std::uint8_t, std::uint32_t>> marks_;
};

}  // namespace

std::string bert_normalize(std::string_view text, const BertNormalization& options) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  Normalizer normalizer(options, out);
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    normalizer.take(c.length == 0 ? kReplacement : c.code_point);
    p += std::max(c.length, 1);
  }
  normalizer.flush();
  return out;
}

BertChar bert_char(std::string_view text, std::size_t at, std::size_t& length) {
  const DecodedChar c = decode_utf8(text.data() + at, text.data() + text.size());
  length = static_cast<std::size_t>(std::max(c.length, 1));
  if (c.length == 0) return BertChar::Word;
  if (UnicodeClasses::instance().of(c.code_point) == CharClass::Space) return BertChar::Space;
  return in_ranges(kBertPunctuation, c.code_point) ? BertChar::Punctuation : BertChar::Word;
}

}  // namespace megatron::text
