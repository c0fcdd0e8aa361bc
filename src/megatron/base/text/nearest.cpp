#include "megatron/base/text/nearest.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = std::move(last);
    last = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr std::size_t kMaxLength = 128;  // longer words are not misspelled options, and the distance is quadratic
  if (name.size() > kMaxLength) return "";
  std::string best;
  std::size_t best_distance = name.size() < 3 ? 0 : std::max<std::size_t>(1, name.size() / 3);
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance || (distance == best_distance && best.empty())) {
      best = candidate;
      best_distance = distance;
    }
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
