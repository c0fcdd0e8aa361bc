#include "megatron/base/text/nearest.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <utility>

#include "megatron/base/error.h"

namespace megatron {
namespace {

/// Edits from one name to others. Its rows are kept: there are hundreds of names to compare.
class EditDistance {
 public:
  explicit EditDistance(std::string_view name) : name_(name) {}

  /// From the name to `other`; any number above `most` where it is above that.
  std::size_t to(std::string_view other, std::size_t most) {
    const auto [shorter, longer] = std::minmax({name_.size(), other.size()});
    if (longer - shorter > most) return most + 1;
    for (auto* row : {&before_last_, &last_, &row_}) row->resize(other.size() + 1);
    std::iota(row_.begin(), row_.end(), std::size_t{0});
    std::size_t least_of_last = 0;
    for (std::size_t i = 1; i <= name_.size(); ++i) {
      before_last_.swap(last_);
      last_.swap(row_);
      row_[0] = i;
      std::size_t least = i;
      for (std::size_t j = 1; j <= other.size(); ++j) {
        std::size_t edits = std::min(last_[j], row_[j - 1]) + 1;
        edits = std::min(edits, last_[j - 1] + (name_[i - 1] == other[j - 1] ? 0 : 1));
        if (i > 1 && j > 1 && name_[i - 1] == other[j - 2] && name_[i - 2] == other[j - 1])
          edits = std::min(edits, before_last_[j - 2] + 1);
        row_[j] = edits;
        least = std::min(least, edits);
      }
      if (least > most && least_of_last > most) return most + 1;  // each row is made of the two before it
      least_of_last = least;
    }
    return row_[other.size()];
  }

 private:
  std::string_view name_;
  std::vector<std::size_t> before_last_, last_, row_;
};

constexpr std::size_t kMaxLength = 128;  // longer words are not misspelled options, and the distance is quadratic
constexpr std::size_t kFar = 2 * kMaxLength;

using Words = std::vector<std::string_view>;

Words words_of(std::string_view name) {
  Words words;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = name.find_first_of("-_.");
    words.push_back(name.substr(0, end));
    name.remove_prefix(end == std::string_view::npos ? name.size() : end + 1);
  }
  return words;
}

bool negates(std::string_view word) {
  return std::ranges::count(std::initializer_list<std::string_view>{"no", "not", "non", "un", "without", "disable"},
                            word) > 0;
}

/// Whether the words mean opposites: "tie" and "untie", "enable" and "disable", "encoder" and "decoder".
bool are_opposite(std::string_view a, std::string_view b) {
  using Pair = std::pair<std::string_view, std::string_view>;
  return std::ranges::any_of(
      std::initializer_list<Pair>{{"", "un"}, {"", "dis"}, {"", "non"}, {"en", "dis"}, {"en", "de"}},
      [&](const Pair& pair) {
        const auto& [one, other] = pair;
        const auto match = [&](std::string_view x, std::string_view y) {
          return x.starts_with(one) && y.starts_with(other) && x.substr(one.size()) == y.substr(other.size());
        };
        return match(a, b) || match(b, a);
      });
}

std::string digits_of(std::string_view word) {
  std::string digits;
  std::ranges::copy_if(word, std::back_inserter(digits), [](char c) { return c >= '0' && c <= '9'; });
  return digits;
}

std::size_t edits_of_word(std::string_view typed, std::string_view other) {
  if (typed == other) return 0;
  const std::size_t most = std::min<std::size_t>(2, typed.size() / 3);
  if (most == 0 || are_opposite(typed, other) || digits_of(typed) != digits_of(other)) return kFar;
  const std::size_t edits = EditDistance(typed).to(other, most);
  return edits > most ? kFar : edits;
}

/// Word by word; the word `skipped` of the longer name is left out.
std::size_t edits_of_words(const Words& typed, const Words& other, bool skips_typed, std::size_t skipped) {
  std::size_t edits = 0, at = 0;
  const Words &longer = skips_typed ? typed : other, &shorter = skips_typed ? other : typed;
  for (std::size_t i = 0; i < longer.size() && edits < kFar; ++i) {
    if (i == skipped) continue;
    edits += skips_typed ? edits_of_word(longer[i], shorter[at]) : edits_of_word(shorter[at], longer[i]);
    ++at;
  }
  return edits;
}

std::size_t edits_of_option(std::string_view name, const Words& typed, const std::string& candidate) {
  const Words other = words_of(candidate);
  if (std::ranges::count_if(typed, negates) != std::ranges::count_if(other, negates)) return kFar;
  if (typed.size() == other.size()) return edits_of_words(typed, other, false, other.size());
  const bool more = typed.size() > other.size();
  const Words& longer = more ? typed : other;
  if (longer.size() != (more ? other : typed).size() + 1) return kFar;
  const std::size_t most = name.size() / 3, joined = std::min<std::size_t>(2, most);
  std::size_t least = EditDistance(name).to(candidate, joined);  // a '-' more or fewer
  if (least > joined) least = kFar;
  for (std::size_t skipped = 0; skipped < longer.size(); ++skipped) {
    const std::size_t edits = longer[skipped].size() + 1 + edits_of_words(typed, other, more, skipped);
    if (edits <= most) least = std::min(least, edits);
  }
  return least;
}

}  // namespace

std::string nearest_option(std::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kMaxLength) return "";
  const Words typed = words_of(name);
  std::string best;
  std::size_t least = kFar;
  for (const std::string& candidate : known) {
    const std::size_t edits = edits_of_option(name, typed, candidate);
    if (edits >= least) continue;
    best = candidate;
    least = edits;
  }
  return best;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kMaxLength) return "";
  std::string best;
  std::size_t best_distance = name.size() < 3 ? 0 : std::max<std::size_t>(1, name.size() / 3);
  EditDistance edits(name);
  for (const std::string& candidate : known) {
    if (!best.empty() && best_distance == 0) break;
    const std::size_t most = best.empty() ? best_distance : best_distance - 1;
    const std::size_t distance = edits.to(candidate, most);
    if (distance > most) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string listed(const std::vector<std::string>& words, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += concat(i == 0 ? "" : i + 1 < words.size() ? ", " : last, words[i]);
  return text;
}

std::string not_a_choice(std::string_view what, std::string_view value, const std::vector<std::string>& choices,
                         std::string_view option, std::string_view otherwise) {
  const std::string near = nearest_name(value, choices);
  return rule_got_fix(concat(what, " must be one of ", listed(choices, ", "), "."), concat("'", value, "'"),
                      near.empty() ? std::string(otherwise) : concat(option, " ", near));
}

}  // namespace megatron
