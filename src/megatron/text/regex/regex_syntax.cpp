// What one library calls \p{L}, \s or (?m) is not what another does: an expression is read once, its classes are
// written out as the code points of Unicode 16, and what would mean something else is refused.
#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/category_ranges.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/regex/regex.h"

namespace megatron::text {
namespace {

using Ranges = std::vector<CodePointRange>;

constexpr std::size_t kMaxTranslated = std::size_t{1} << 20;  // \w written out has 10,000 bytes, \b four times as many

constexpr CodePointRange kWhiteSpace[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                          {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                          {0x205F, 0x205F}, {0x3000, 0x3000}};

void add(Ranges& ranges, std::uint32_t first, std::uint32_t last) {
  if (!ranges.empty() && ranges.back().last + 1 == first)
    ranges.back().last = last;
  else
    ranges.push_back({first, last});
}

/// Code points whose general category begins with `name`; empty where there is no such category.
Ranges category(std::string_view name) {
  Ranges ranges;
  if (name.empty() || name.size() > 2) return ranges;
  for (const CategoryRange& range : kCategories)
    if (std::string_view(range.category, name.size()) == name) add(ranges, range.first, range.last);
  return ranges;
}

Ranges complement(const Ranges& ranges) {
  Ranges others;
  std::uint32_t next = 0;
  for (const CodePointRange& range : ranges) {
    if (next < range.first) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= 0x10FFFF) others.push_back({next, 0x10FFFF});
  return others;
}

/// As items of a set. Large ranges first: the library looks at them one after the other.
std::string items(Ranges ranges) {
  std::stable_sort(ranges.begin(), ranges.end(), [](const CodePointRange& a, const CodePointRange& b) {
    return a.last - a.first > b.last - b.first;
  });
  std::string out;
  for (CodePointRange range : ranges) {
    if (range.first >= 0xD800 && range.first < 0xE000) range.first = 0xE000;  // no text has surrogates
    if (range.last >= 0xD800 && range.last < 0xE000) range.last = 0xD7FF;
    if (range.first > range.last) continue;
    out += fmt::format("\\x{{{:x}}}", range.first);
    if (range.last > range.first) out += fmt::format("-\\x{{{:x}}}", range.last);
  }
  return out;
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      const std::size_t begin = out_.size();
      if (c == '(') {
        group();
      } else if (c == ')') {
        close_group();
      } else if (c == '{' && counts_at(at_)) {
        repeat();
      } else if (c == '\\') {
        escape(false);
        atom_ = begin;
      } else if (c == '[') {
        set();
        atom_ = begin;
      } else {
        if (c == '|' || c == '^')
          atom_ = kNone;
        else if (std::string_view("*+?").find(c) == std::string_view::npos && (c & 0xC0) != 0x80)
          atom_ = begin;
        keep(1);
      }
    }
    out_.append(open_, ')');
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(rule_got_fix(concat(where_, ": ", what, " (in regular expressions it is not supported)"),
                                   concat(in_quotes(pattern_.substr(at_)), " at byte ", at_)));
  }

  std::string_view rest() const { return pattern_.substr(at_); }
  void keep(std::size_t size) {
    out_ += pattern_.substr(at_, size);
    at_ += size;
  }

  void put(const Ranges& ranges, bool negated, bool in_set) {
    if (in_set)
      out_ += items(negated ? complement(ranges) : ranges);
    else
      out_ += (negated ? "[^" : "[") + items(ranges) + "]";
  }

  void property(bool in_set) {
    bool negated = pattern_[at_ + 1] == 'P';
    at_ += 2;
    std::string_view name;
    if (rest().starts_with('{')) {
      const std::size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) refuse("a property must end with }");
      name = pattern_.substr(at_ + 1, end - at_ - 1);
      if (name.starts_with('^')) negated = !negated, name.remove_prefix(1);
      const Ranges ranges = category(name);
      if (!ranges.empty()) {
        put(ranges, negated, in_set);
      } else if (std::all_of(name.begin(), name.end(), [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; })) {
        out_ += (negated ? "\\P{" : "\\p{") + std::string(name) + "}";  // a script: as the library knows it
      } else {
        refuse("a property must be a general category or a script");
      }
      at_ = end + 1;
      return;
    }
    name = pattern_.substr(at_, 1);
    const Ranges ranges = category(name);
    if (ranges.empty()) refuse("a property must be a general category or a script");
    put(ranges, negated, in_set);
    ++at_;
  }

  void code_unit(std::size_t digits) {
    const std::string_view number = pattern_.substr(at_ + 2, digits);
    if (number.size() != digits || !std::all_of(number.begin(), number.end(), [](char c) {
          return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
        }))
      refuse("a character must be \\xHH, \\x{H…} or \\uHHHH");
    out_ += concat("\\x{", number, "}");
    at_ += 2 + digits;
  }

  void escape(bool in_set) {
    if (at_ + 1 >= pattern_.size()) refuse("a backslash must have something behind it");
    if (out_.size() > kMaxTranslated) refuse("classes written out must have at most 2^20 bytes");
    const char c = pattern_[at_ + 1];
    const Ranges spaces(std::begin(kWhiteSpace), std::end(kWhiteSpace));
    switch (c) {
      case 'p':
      case 'P':
        return property(in_set);
      case 's':
      case 'S':
        put(spaces, c == 'S', in_set);
        break;
      case 'd':
      case 'D':
        put(category("Nd"), c == 'D', in_set);
        break;
      case 'w':
      case 'W':
        put(words(in_set), c == 'W', in_set);
        break;
      case 'v':
        out_ += "\\x0b";
        break;
      case 'u':
        return code_unit(4);
      case 'x':
        if (pattern_.substr(at_ + 2).starts_with('{')) return keep(2);
        return code_unit(2);
      case 'b':
      case 'B':
        if (in_set) refuse("\\b stands for nothing in a set");
        word_boundary(c == 'B');
        break;
      default:
        if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
          if (std::string_view(in_set ? "nrtfae" : "nrtfaeAzZ").find(c) == std::string_view::npos)
            refuse(concat("\\", std::string(1, c), " must not be used"));
        return keep(static_cast<unsigned char>(c) < 0x80 ? 2 : 1);
    }
    at_ += 2;
  }

  /// Oniguruma's \w, which does not have the joiners, and outside sets has the signs of Latin-1 that are numbers.
  static Ranges words(bool in_set) {
    Ranges ranges;
    if (!in_set) ranges = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
    for (const CodePointRange& range : kWordRanges)
      if (range.first != 0x200C) ranges.push_back(range);
    std::sort(ranges.begin(), ranges.end(),
              [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
    return ranges;
  }

  void word_boundary(bool negated) {
    const std::string word = "[" + items(words(false)) + "]";
    out_ += negated ? concat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))")
                    : concat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
  }

  void set() {
    keep(1);
    if (rest().starts_with('^')) keep(1);
    if (rest().starts_with(']')) refuse("a set must not begin with ]");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') refuse("a set within a set must not be used");
      if (rest().starts_with("&&")) refuse("the intersection of sets must not be used");
      if (pattern_[at_] == '\\')
        escape(true);
      else
        keep(1);
    }
    if (at_ == pattern_.size()) refuse("a set must end with ]");
    keep(1);
  }

  /// Ruby's (?i) reaches to the end of the group around it, over all alternatives that follow: (?i:…).
  void group() {
    if (rest().starts_with("(*")) refuse("a group must not begin with *");
    for (const std::string_view flags : {"(?i)", "(?-i)"}) {
      if (!rest().starts_with(flags)) continue;
      out_.append(flags.substr(0, flags.size() - 1)).append(":");
      at_ += flags.size();
      ++open_;
      atom_ = kNone;
      return;
    }
    groups_.push_back({out_.size(), std::exchange(open_, 0)});
    atom_ = kNone;
    if (!rest().starts_with("(?")) return keep(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"})
      if (rest().starts_with(known)) return keep(known.size());
    refuse("a group must be (…), (?:…), (?i:…), (?>…) or a look around");
  }

  void close_group() {
    if (groups_.empty()) refuse("each ) must close a group");
    out_.append(open_, ')');
    atom_ = groups_.back().begin;
    open_ = groups_.back().open;
    groups_.pop_back();
    keep(1);
  }

  /// Whether the brace at `at` begins a number of repetitions.
  bool counts_at(std::size_t at) const {
    const std::size_t end = pattern_.find_first_not_of("0123456789,", at + 1);
    return end != std::string_view::npos && end > at + 1 && pattern_[end] == '}';
  }

  /// In Ruby {n,m}+ repeats {n,m}, and {n}? may do without {n}: only for others are they possessive and lazy.
  void repeat() {
    if (rest().starts_with("{,")) refuse("a repetition must have a least number");
    const std::size_t size = pattern_.find('}', at_) + 1 - at_;
    const std::string_view after = rest().substr(size);
    const bool exact = rest().substr(0, size).find(',') == std::string_view::npos;
    const bool wrap = after.starts_with('+') || (exact && after.starts_with('?'));
    if (wrap) {
      if (atom_ == kNone) refuse("a repetition must follow what it repeats");
      out_.insert(atom_, "(?:");
    }
    keep(size);
    if (wrap) out_ += ')';
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;

  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Group {
    std::size_t begin = 0;  // in out_
    std::size_t open = 0;   // of the group around it: how many (?i: end with it
  };
  std::vector<Group> groups_;
  std::size_t open_ = 0;
  std::size_t atom_ = kNone;  // where in out_ begins what a repetition would repeat
};

}  // namespace

std::string to_pcre2(std::string_view pattern, const std::string& where) { return Translator(pattern, where).run(); }

}  // namespace megatron::text
