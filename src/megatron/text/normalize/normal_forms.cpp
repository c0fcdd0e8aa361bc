#include "megatron/text/normalize/normal_forms.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/normal_form_tables.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

// Hangul syllables (Unicode standard, 3.12).
constexpr std::uint32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr std::uint32_t kSyllables = 11172, kLeads = 19, kVowels = 21, kTrails = 28;

template <std::size_t N>
const CodePointExpansion* find_expansion(const CodePointExpansion (&table)[N], std::uint32_t c) {
  const auto* found = std::lower_bound(std::begin(table), std::end(table), c,
                                       [](const CodePointExpansion& e, std::uint32_t point) { return e.from < point; });
  return found != std::end(table) && found->from == c ? found : nullptr;
}

int combining_class(std::uint32_t c) {
  static const CodePointSet combining = [] {
    CodePointSet set({});
    for (const CombiningRange& range : kCombining)
      for (std::uint32_t member = range.first; member <= range.last; ++member) set.add(member);
    return set;
  }();
  if (c < 0x300 || !combining.has(c)) return 0;
  const auto* found = std::lower_bound(std::begin(kCombining), std::end(kCombining), c,
                                       [](const CombiningRange& r, std::uint32_t point) { return r.last < point; });
  return found != std::end(kCombining) && found->first <= c ? found->value : 0;
}

/// The one character that two compose to, or 0.
std::uint32_t compose(std::uint32_t a, std::uint32_t b) {
  if (a - kLead < kLeads && b - kVowel < kVowels) return kSyllable + ((a - kLead) * kVowels + b - kVowel) * kTrails;
  if (a - kSyllable < kSyllables && (a - kSyllable) % kTrails == 0 && b - kTrail - 1 < kTrails - 1)
    return a + b - kTrail;
  const auto* found = std::lower_bound(std::begin(kCompositions), std::end(kCompositions), std::pair(a, b),
                                       [](const Composition& c, const std::pair<std::uint32_t, std::uint32_t>& pair) {
                                         return std::pair(c.first, c.second) < pair;
                                       });
  return found != std::end(kCompositions) && found->first == a && found->second == b ? found->both : 0;
}

/// Decomposes characters and puts the marks between two starters into the order of their classes.
class Decomposer {
 public:
  Decomposer(bool compatible, std::size_t characters) : compatible_(compatible) { out_.reserve(characters); }

  void take(std::uint32_t c) {
    first_ = true;
    if (c < 0xA0) return put(c);
    if (c - kSyllable < kSyllables) {
      const std::uint32_t index = c - kSyllable;
      put(kLead + index / (kVowels * kTrails));
      put(kVowel + index % (kVowels * kTrails) / kTrails);
      if (index % kTrails != 0) put(kTrail + index % kTrails);
      return;
    }
    if (compatible_)
      if (const CodePointExpansion* found = find_expansion(kCompatible, c)) return expand(kCompatiblePoints, *found);
    if (const CodePointExpansion* found = find_expansion(kCanonical, c)) return expand(kCanonicalPoints, *found);
    put(c);
  }

  std::vector<Change> finish() {
    order_marks();
    return std::move(out_);
  }

 private:
  void expand(const std::uint32_t* points, const CodePointExpansion& expansion) {
    for (std::uint32_t i = 0; i < expansion.size; ++i) put(points[expansion.begin + i]);
  }

  void put(std::uint32_t c) {
    const int own_class = combining_class(c);
    if (own_class == 0) order_marks();
    out_.push_back({c, first_ ? 0 : 1});
    if (own_class != 0) classes_.push_back(static_cast<unsigned char>(own_class));
    first_ = false;
  }

  /// Sorts the marks at the end by class, equal ones in their order, in steps that grow as their number does.
  void order_marks() {
    if (!std::is_sorted(classes_.begin(), classes_.end())) {
      const auto marks = out_.end() - static_cast<std::ptrdiff_t>(classes_.size());
      std::array<std::size_t, 257> places{};
      for (const unsigned char own_class : classes_) ++places[own_class + std::size_t{1}];
      std::partial_sum(places.begin(), places.end(), places.begin());
      std::vector<Change> ordered(classes_.size());
      for (std::size_t i = 0; i < classes_.size(); ++i)
        ordered[places[classes_[i]]++] = marks[static_cast<std::ptrdiff_t>(i)];
      std::copy(ordered.begin(), ordered.end(), marks);
    }
    classes_.clear();
  }

  bool compatible_, first_ = true;
  std::vector<Change> out_;
  std::vector<unsigned char> classes_;  // of the marks behind the last character that is none
};

/// Joins each starter with what follows it, as far as nothing blocks it.
void compose_all(std::vector<Change>& parts) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t starter = kNone, size = 0;  // place of the last starter, and how many stay so far
  int last_class = -1;                    // of the last mark that stayed behind the starter; -1: none did
  for (const Change part : parts) {
    const int own_class = combining_class(part.code_point);
    if (starter != kNone && (last_class < 0 || last_class < own_class)) {
      Change& before = parts[starter];
      if (const std::uint32_t both = compose(before.code_point, part.code_point); both != 0) {
        before = {both, before.change + part.change - 1};
        continue;
      }
    }
    if (own_class == 0) {
      starter = size;
      last_class = -1;
    } else {
      last_class = own_class;
    }
    parts[size++] = part;
  }
  parts.resize(size);
}

/// The characters that a form changes or puts in order, alone or behind others.
CodePointSet changed_by(bool compose, bool compatible) {
  CodePointSet set({});
  const auto add = [&](std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t c = first; c <= last; ++c) set.add(c);
  };
  for (const CombiningRange& range : kCombining) add(range.first, range.last);
  if (compatible)
    for (const CodePointExpansion& expansion : kCompatible) set.add(expansion.from);
  if (compose) {
    for (const Composition& composition : kCompositions) set.add(composition.second);
    add(kVowel, kVowel + kVowels - 1);
    add(kTrail + 1, kTrail + kTrails - 1);
  } else {
    add(kSyllable, kSyllable + kSyllables - 1);
  }
  const auto comes_back = [&](const CodePointExpansion& expansion) {  // and cannot join what is before it
    std::vector<Change> parts;
    for (std::uint32_t i = 0; i < expansion.size; ++i) parts.push_back({kCanonicalPoints[expansion.begin + i], 0});
    if (set.has(parts.at(0).code_point)) return false;
    compose_all(parts);
    return parts.size() == 1 && parts[0].code_point == expansion.from;
  };
  CodePointSet all = set;
  for (const CodePointExpansion& expansion : kCanonical)
    if (!compose || !comes_back(expansion)) all.add(expansion.from);
  return all;
}

}  // namespace

std::vector<Change> normal_form(std::string_view text, const normalizer::UnicodeForm& form) {
  const auto characters =
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  Decomposer decomposer(form.compatible, static_cast<std::size_t>(characters));
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    decomposer.take(c.code_point);
    p += std::max(c.length, 1);
  }
  std::vector<Change> parts = decomposer.finish();
  if (form.compose) compose_all(parts);
  return parts;
}

bool is_mark(std::uint32_t c) {
  static const CodePointSet marks(kMarks);
  return c >= 0x300 && marks.has(c);
}

bool may_change(std::string_view text, const normalizer::UnicodeForm& form) {
  // NFC leaves everything below U+0300 alone, the others what is below U+00A0 (U+00C0): compare first bytes.
  const unsigned char lowest = form.compose && !form.compatible ? 0xCC : 0xC2;
  const auto first =
      std::find_if(text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) >= lowest; });
  if (first == text.end()) return false;
  static const CodePointSet changed[] = {changed_by(false, false), changed_by(false, true), changed_by(true, false),
                                         changed_by(true, true)};
  const CodePointSet& set = changed[2 * form.compose + form.compatible];
  const char* const end = text.data() + text.size();
  for (const char* p = text.data() + (first - text.begin()); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    if (set.has(c.code_point)) return true;
    p += std::max(c.length, 1);
  }
  return false;
}

}  // namespace megatron::text
