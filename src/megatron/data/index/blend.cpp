#include "megatron/data/index/blend.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/data/index/numpy_random.h"

namespace megatron::data {
namespace {

constexpr std::size_t kMaxSets = 32766;  // numbered in int16 by Megatron-Core
constexpr std::uint64_t kMaxFile = std::uint64_t{16} << 20;

std::optional<double> number_of(const std::string& word) {
  double value = 0;
  const char* const end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || error != std::errc() || rest != end) return std::nullopt;
  return value;
}

void check_count(std::size_t sets) {
  if (sets > kMaxSets)
    throw ConfigError(rule_got_fix(concat("a blend has at most ", kMaxSets, " datasets."), concat(sets),
                                   "merge some: megatron data merge A B --output-prefix P"));
}

/// Shares are what the order of the samples is computed from.
void check_shares(const std::vector<double>& weights, const std::vector<std::string>& words) {
  const std::vector<double> shares = normalize_weights(weights);
  for (std::size_t i = 0; i < shares.size(); ++i)
    if (!std::isnormal(shares[i]))
      throw ConfigError(rule_got_fix("the weights of a blend must have a finite sum, and each a share of it above 0.",
                                     concat(words[2 * i], " for ", words[2 * i + 1]),
                                     "shares of the samples: --data-path 0.3 A 0.7 B"));
}

}  // namespace

Blend parse_blend(const std::vector<std::string>& words) {
  if (words.empty() || std::ranges::find(words, "") != words.end())
    throw ConfigError(rule_got_fix("a blend must name datasets: prefixes of .bin/.idx pairs.",
                                   words.empty() ? "no words" : "an empty name", "--data-path PREFIX"));
  for (const std::string& word : words)  // of a file: a command line has none
    if (word.find('\0') != std::string::npos)
      throw ConfigError(rule_got_fix("the name of a dataset must have no NUL character.", printable(word),
                                     "--data-path PREFIX, and its words in a file as there"));
  Blend blend;
  std::vector<double> weights;
  if (words.size() % 2 == 0)
    for (std::size_t i = 0; i < words.size(); i += 2)
      if (const auto weight = number_of(words[i])) weights.push_back(*weight);
  if (weights.empty()) {
    blend.prefixes = words;
    check_count(words.size());
    return blend;
  }
  if (2 * weights.size() != words.size())
    throw ConfigError(rule_got_fix("a blend is either prefixes alone or a weight before each prefix.",
                                   concat(weights.size(), " weights for ", words.size() / 2, " datasets"),
                                   "--data-path 0.3 A_text_document 0.7 B_text_document (as weights, then prefixes)"));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isnormal(weights[i]) || weights[i] < 0)  // subnormal ones are 0 to threads that compute
      throw ConfigError(rule_got_fix("the weight of a dataset must be finite and above 2.3e-308.",
                                     concat(words[2 * i], " for ", words[2 * i + 1]), "a weight above 0, such as 1"));
    blend.prefixes.push_back(words[2 * i + 1]);
  }
  check_count(weights.size());
  check_shares(weights, words);
  blend.weights = std::move(weights);
  return blend;
}

Blend read_blend_file(const std::filesystem::path& path) {
  std::istringstream text(read_file(path, kMaxFile));
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  if (words.empty())
    throw ConfigError(rule_got_fix(concat(path.string(), ": must hold weights and prefixes."), "an empty file",
                                   "words as in --data-path: 0.3 A 0.7 B"));
  return parse_blend(words);
}

std::array<std::optional<Blend>, 3> read_split_blends_file(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& got) {
    throw ConfigError(
        rule_got_fix(concat(path.string(), ": must be a JSON object of lists of strings: train, valid, test."), got,
                     R"({"train": ["0.3", "A", "0.7", "B"], "valid": ["C"], "test": null})"));
  };
  nlohmann::json object;
  try {
    object = parse_json(read_file(path, kMaxFile));
  } catch (const JsonError& error) {
    fail(error.what());
  }
  if (!object.is_object()) fail("another JSON value");
  constexpr std::array kNames = {"train", "valid", "test"};
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(kNames, key) == kNames.end()) fail("the key \"" + key + "\"");
  std::array<std::optional<Blend>, 3> blends;
  for (std::size_t part = 0; part < 3; ++part) {
    const auto found = object.find(kNames[part]);
    if (found == object.end() || found->is_null()) continue;
    std::vector<std::string> words;
    if (!found->is_array()) fail(std::string(kNames[part]) + " without a list");
    for (const auto& word : *found) {
      if (!word.is_string() && !word.is_number()) fail(concat("an entry of ", kNames[part], " that is no text"));
      words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
    }
    if (!words.empty()) blends[part] = parse_blend(words);
  }
  return blends;
}

std::vector<double> normalize_weights(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

BlendPlan plan_weighted_blend(std::span<const double> weights, std::int64_t samples) {
  BlendPlan plan;
  for (const double weight : weights) {
    const double target = std::ceil(static_cast<double>(samples) * weight);
    plan.size += static_cast<std::int64_t>(target);
    plan.requests.emplace_back(static_cast<std::int64_t>(std::ceil(target * (1 + 0.005))));
  }
  return plan;
}

std::vector<std::int64_t> fill_blend_order(std::span<const double> weights, const BlendOrder& out) {
  const std::size_t sets = weights.size();
  // Counts are kept as doubles too: exact below 2^53, and the loop over the sets has no conversions.
  std::vector<double> taken(sets, 0), behind(sets, 0);
  std::vector<std::int64_t> counts(sets, 0);
  for (std::size_t k = 0; k < out.set.size(); ++k) {
    const double at = std::max(static_cast<double>(k), 1.0);
    for (std::size_t i = 0; i < sets; ++i) behind[i] = weights[i] * at - taken[i];
    const auto furthest = static_cast<std::size_t>(std::max_element(behind.begin(), behind.end()) - behind.begin());
    out.set[k] = static_cast<std::int16_t>(furthest);
    out.sample[k] = counts[furthest]++;
    taken[furthest] += 1;
  }
  return counts;
}

void fill_exhaustive_order(std::span<const std::int64_t> sizes, const BlendOrder& out) {
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  struct Open {
    std::int16_t set;
    double weight;
    std::int64_t taken, size;
  };
  std::vector<Open> open;  // sets that have samples left, in their order
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 0)
      open.push_back(
          {static_cast<std::int16_t>(i), static_cast<double>(sizes[i]) / static_cast<double>(total), 0, sizes[i]});
  for (std::size_t k = 0; !open.empty(); ++k) {
    const double at = std::max(static_cast<double>(k), 1.0);
    std::size_t furthest = 0;
    double most = std::numeric_limits<double>::lowest();
    for (std::size_t i = 0; i < open.size(); ++i) {
      const double behind = open[i].weight * at - static_cast<double>(open[i].taken);
      if (behind > most) {
        most = behind;
        furthest = i;
      }
    }
    Open& from = open[furthest];
    out.set[k] = from.set;
    out.sample[k] = from.taken++;
    if (from.taken == from.size) open.erase(open.begin() + static_cast<std::ptrdiff_t>(furthest));
  }
}

}  // namespace megatron::data
