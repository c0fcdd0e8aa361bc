#include "megatron/text/regex/regex_alphabet.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include "megatron/base/text/code_points.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_ranges.h"

namespace megatron::text {
namespace {

constexpr std::uint32_t kEnd = 0x110000;
constexpr std::size_t kMaxSets = 256;

/// Reads the expression: its sets, and the text between them as it is.
class Reader {
 public:
  explicit Reader(std::string_view pattern) : pattern_(pattern) { sets_.push_back({{'\n', '\n'}}); }

  /// False where the expression has no alphabet.
  bool run() {
    while (ok_ && at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '(') {
        open_group();
      } else if (c == ')') {
        ok_ = !caseless_.empty();
        if (ok_) caseless_.pop_back();
        keep(1);
      } else if (std::string_view("|*+?^$").find(c) != std::string_view::npos) {
        keep(1);
      } else if (const std::size_t size = repetition_size(); size > 0) {
        keep(size);
      } else if (c == '.') {
        ++at_;
        put(complement(sets_[0]));
      } else if (c == '[') {
        set();
      } else if (c == '\\' && at_ + 1 < pattern_.size() && std::string_view("AzZ").find(pattern_[at_ + 1]) < 3) {
        keep(2);
      } else {
        const std::uint32_t own = character();
        put(with_case({{own, own}}));
      }
    }
    return ok_;
  }

  const std::vector<CodePoints>& sets() const { return sets_; }
  /// The expression: text, and indices of sets before which it stands.
  const std::vector<std::pair<std::string, std::size_t>>& parts() const { return parts_; }
  const std::string& rest() const { return kept_; }

 private:
  void keep(std::size_t size) {
    kept_ += pattern_.substr(at_, size);
    at_ += size;
  }

  void put(CodePoints set) {
    const auto [found, is_new] = index_.emplace(std::move(set), sets_.size());
    if (is_new) sets_.push_back(found->first);
    ok_ = ok_ && sets_.size() <= kMaxSets;
    parts_.emplace_back(std::exchange(kept_, {}), found->second);
  }

  bool caseless() const { return !caseless_.empty() && caseless_.back(); }

  void open_group() {
    const std::string_view rest = pattern_.substr(at_);
    const bool own = rest.starts_with("(?i:") || (caseless() && !rest.starts_with("(?-i:"));
    caseless_.push_back(own);
    if (!rest.starts_with("(?i:") && !rest.starts_with("(?-i:")) {
      keep(rest.starts_with("(?<") ? 4 : rest.starts_with("(?") ? 3 : 1);
      return;
    }
    kept_ += "(?:";
    at_ += rest.find(':') + 1;
  }

  /// Size of {n}, {n,} or {n,m} here, or 0.
  std::size_t repetition_size() const {
    constexpr std::string_view kDigits = "0123456789";
    if (pattern_[at_] != '{') return 0;
    std::size_t end = std::min(pattern_.find_first_not_of(kDigits, at_ + 1), pattern_.size());
    if (end == at_ + 1) return 0;
    if (end < pattern_.size() && pattern_[end] == ',')
      end = std::min(pattern_.find_first_not_of(kDigits, end + 1), pattern_.size());
    return end < pattern_.size() && pattern_[end] == '}' ? end + 1 - at_ : 0;
  }

  /// Reads one character, escaped or not.
  std::uint32_t character() {
    const auto plain = [&]() -> std::uint32_t {
      if (at_ >= pattern_.size()) return fail();
      const DecodedChar c = decode_utf8(pattern_.data() + at_, pattern_.data() + pattern_.size());
      at_ += static_cast<std::size_t>(std::max(c.length, 1));
      return c.length == 0 ? fail() : c.code_point;
    };
    if (pattern_[at_] != '\\') return plain();
    ++at_;
    const char c = at_ < pattern_.size() ? pattern_[at_] : '\0';
    if (c == 'x') return code_point();
    constexpr std::pair<char, std::uint32_t> kControls[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'},
                                                            {'f', '\f'}, {'a', 7},    {'e', 27}};
    for (const auto& [name, value] : kControls)
      if (c == name) return ++at_, value;
    const bool is_word = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    return is_word ? fail() : plain();
  }

  /// Behind a backslash: x{H…} or xHH.
  std::uint32_t code_point() {
    const bool braces = at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '{';
    const std::size_t begin = at_ + (braces ? 2 : 1);
    const std::size_t end = braces ? pattern_.find('}', begin) : begin + 2;
    if (end == std::string_view::npos || end > pattern_.size() || end == begin || end - begin > 6) return fail();
    std::uint32_t value = 0;
    for (const char c : pattern_.substr(begin, end - begin)) {
      const int digit = c >= '0' && c <= '9'                     ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                 : -1;
      if (digit < 0) return fail();
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    at_ = end + (braces ? 1 : 0);
    return value < kEnd ? value : fail();
  }

  std::uint32_t fail() {
    ok_ = false;
    at_ = pattern_.size();
    return 0;
  }

  void set() {
    ++at_;
    const bool negated = at_ < pattern_.size() && pattern_[at_] == '^';
    if (negated) ++at_;
    CodePoints set;
    while (ok_ && at_ < pattern_.size() && pattern_[at_] != ']') {
      const std::uint32_t first = character();
      std::uint32_t last = first;
      if (ok_ && at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      ok_ = ok_ && first <= last;
      set.emplace_back(first, last);
    }
    ++at_;  // ]
    set = in_order(std::move(set));
    set = with_case(std::move(set));
    put(negated ? complement(set) : set);
  }

  /// With the other case of each letter, where the expression asks for it.
  CodePoints with_case(CodePoints set) {
    if (!caseless()) return set;
    if (!set.empty() && set.back().second >= 0x80) fail();
    for (std::size_t i = set.size(); i-- > 0;)
      for (std::uint32_t c = set[i].first; ok_ && c <= set[i].second; ++c) {
        const std::uint32_t small = c | 0x20;
        if (small < 'a' || small > 'z') continue;
        set.emplace_back(c ^ 0x20, c ^ 0x20);
        if (small == 'k') set.emplace_back(0x212A, 0x212A);  // the Kelvin sign
        if (small == 's') set.emplace_back(0x17F, 0x17F);    // the long s
      }
    set = in_order(std::move(set));
    return set;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool ok_ = true;
  std::vector<bool> caseless_;  // of the groups that are open
  std::string kept_;
  std::vector<std::pair<std::string, std::size_t>> parts_;
  std::vector<CodePoints> sets_;  // the first: the line end alone
  std::map<CodePoints, std::size_t> index_;
};

/// Numbers the kinds of characters, and fills in which of them each set has. False where they are too many.
bool number_kinds(const std::vector<CodePoints>& sets, std::vector<std::uint8_t>& kinds,
                  std::vector<std::array<bool, 256>>& members) {
  std::vector<std::uint32_t> begins = {0, kEnd};
  for (const CodePoints& set : sets)
    for (const auto& [first, last] : set) begins.insert(begins.end(), {first, last + 1});
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  kinds.resize(kEnd);
  members.assign(sets.size(), {});
  std::map<std::string, std::uint32_t> known;  // which sets have the characters, to their kind
  std::vector<std::size_t> next(sets.size());  // range of each set that is not passed yet
  std::uint32_t count = 0;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    std::string in_sets(sets.size(), '\0');
    for (std::size_t s = 0; s < sets.size(); ++s) {
      while (next[s] < sets[s].size() && sets[s][next[s]].second < begins[i]) ++next[s];
      in_sets[s] = next[s] < sets[s].size() && sets[s][next[s]].first <= begins[i];
    }
    const auto [found, is_new] = known.emplace(in_sets, 0);
    if (is_new) {
      found->second = in_sets[0] != '\0' ? '\n' : count++;
      if (count == '\n') ++count;
      if (found->second > 255) return false;
      for (std::size_t s = 0; s < sets.size(); ++s) members[s][found->second] = in_sets[s] != '\0';
    }
    std::fill(kinds.begin() + begins[i], kinds.begin() + begins[i + 1], static_cast<std::uint8_t>(found->second));
  }
  return true;
}

/// A set of bytes.
void append_set(std::string& out, const std::array<bool, 256>& members) {
  out += '[';
  if (std::find(members.begin(), members.end(), true) == members.end()) out += "^\\x00-\\xff";  // none
  for (unsigned first = 0; first < members.size(); ++first) {
    if (!members[first]) continue;
    unsigned last = first;
    while (last + 1 < members.size() && members[last + 1]) ++last;
    out += fmt::format("\\x{:02x}", first);
    if (last > first) out += fmt::format("-\\x{:02x}", last);
    first = last;
  }
  out += ']';
}

}  // namespace

std::optional<RegexAlphabet> alphabet_of(std::string_view translated) {
  Reader reader(translated);
  if (!reader.run()) return std::nullopt;
  RegexAlphabet alphabet;
  std::vector<std::array<bool, 256>> members;
  if (!number_kinds(reader.sets(), alphabet.kinds, members)) return std::nullopt;
  for (const auto& [before, set] : reader.parts()) {
    alphabet.pattern += before;
    append_set(alphabet.pattern, members[set]);
  }
  alphabet.pattern += reader.rest();
  return alphabet;
}

}  // namespace megatron::text
