#include "megatron/base/text/nearest.h"

#include <algorithm>
#include <numeric>

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

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr std::size_t kMaxLength = 128;  // longer words are not misspelled options, and the distance is quadratic
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
