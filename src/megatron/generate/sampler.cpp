#include "megatron/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/kernels/phases/likelihood.h"

namespace megatron::generate {

std::vector<std::int64_t> likeliest(std::span<const double> logits, std::size_t count) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int64_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int64_t a, std::int64_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  order.resize(count);
  return order;
}

void require_finite(std::span<const double> logits, std::int64_t position) {
  const auto bad = std::find_if_not(logits.begin(), logits.end(), [](double x) { return std::isfinite(x); });
  if (bad == logits.end()) return;
  throw std::runtime_error(concat("logits are not finite at position ", position, ": ", *bad, " for token ",
                                  bad - logits.begin(), " (are the checkpoint's weights?)"));
}

int shortlist_of(const SamplingOptions& options) {
  if (options.temperature == 0) return 0;
  if (options.top_k > 0) return options.top_k <= kernels::kMostShortlisted ? options.top_k : 0;
  return options.top_p < 1 ? kernels::kMostShortlisted : 0;
}

std::optional<std::int64_t> sample(const kernels::Shortlist& list, std::size_t vocab, const SamplingOptions& options,
                                   double uniform) {
  const std::size_t count = list.tokens.size();
  const auto weight = [&](std::size_t i) {
    return kernels::phases::likelihood((list.logits[i] - list.logits[0]) / options.temperature);
  };
  std::vector<double> cumulative(count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) cumulative[i] = sum += weight(i);
  const double share = options.top_p * (options.top_k == 0 ? list.all : sum);
  const std::size_t allowed = options.top_k > 0 ? std::min(vocab, static_cast<std::size_t>(options.top_k)) : vocab;
  if (count < allowed && sum < share) return std::nullopt;
  const auto reach = std::lower_bound(cumulative.begin(), cumulative.end(), share);
  std::size_t likely = count;
  while (weight(likely - 1) < options.min_p) --likely;
  const auto kept = std::min(reach, cumulative.begin() + static_cast<std::ptrdiff_t>(likely) - 1);
  const auto drawn = std::upper_bound(cumulative.begin(), kept, uniform * *kept);
  return list.tokens[static_cast<std::size_t>(drawn - cumulative.begin())];
}

namespace {

/// The token that kernels/phases/token_draw.h draws, by the same sums.
std::int64_t sample_all(std::span<const double> logits, double largest, const SamplingOptions& options,
                        double uniform) {
  namespace phases = kernels::phases;
  constexpr int kOfGroup = phases::kChunksOfGroup, kGroups = phases::kLikelihoodLanes / kOfGroup;
  const auto v = static_cast<std::int64_t>(logits.size()), most = phases::chunk_size_of(v);
  const auto size_of = [&](std::int64_t chunk) { return std::clamp<std::int64_t>(v - chunk * most, 0, most); };
  const auto weight = [&](std::int64_t id) {
    return phases::weight(logits[static_cast<std::size_t>(id)], largest, options.temperature, options.min_p);
  };
  std::vector<double> chunks(phases::kLikelihoodLanes), groups(kGroups);
  double all = 0;
  for (std::int64_t chunk = 0; chunk < phases::kLikelihoodLanes; ++chunk) {
    double& sum = chunks[static_cast<std::size_t>(chunk)];
    for (std::int64_t i = 0; i < size_of(chunk); ++i) sum += weight(chunk * most + i);
    groups[static_cast<std::size_t>(chunk / kOfGroup)] += sum;
  }
  for (const double group : groups) all += group;
  const double target = all * uniform;
  double before = 0;
  const int group =
      phases::part_of(before, target, kGroups, [&](int g) { return groups[static_cast<std::size_t>(g)]; });
  const int chunk = group * kOfGroup + phases::part_of(before, target, kOfGroup, [&](int i) {
                      return chunks[static_cast<std::size_t>(group * kOfGroup + i)];
                    });
  return chunk * most + phases::part_of(before, target, static_cast<int>(size_of(chunk)),
                                        [&](int i) { return weight(chunk * most + i); });
}

}  // namespace

std::int64_t sample(std::span<const double> logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0)
    return std::max_element(logits.begin(), logits.end()) - logits.begin();  // the first of equals
  const double largest = *std::max_element(logits.begin(), logits.end());
  if (draws_from_all(options)) return sample_all(logits, largest, options, uniform);
  const std::size_t allowed =
      options.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(options.top_k)) : logits.size();
  kernels::Shortlist list;
  if (weighs_all(options)) list.all = kernels::phases::sum_of_likelihoods(logits, largest, options.temperature);
  // top_p keeps the tokens up to and with the one that reaches the share: among the likeliest few, mostly.
  for (std::size_t count = options.top_k > 0 ? allowed : kernels::kMostShortlisted;; count *= 8) {
    count = std::min(count, allowed);
    list.tokens = likeliest(logits, count);
    list.logits.clear();
    for (const std::int64_t token : list.tokens) list.logits.push_back(logits[static_cast<std::size_t>(token)]);
    if (const auto drawn = sample(list, logits.size(), options, uniform)) return *drawn;
  }
}

Draws::Draws(std::uint64_t seed, std::span<const std::int64_t> prompt, std::int64_t copy)
    : copy_(static_cast<std::uint64_t>(copy)) {
  std::string name = "generate";
  for (const std::int64_t token : prompt) name += "/" + std::to_string(token);
  key_ = stream_key(seed, name);
}

double Draws::at(std::int64_t position) const {
  return uniform_of(philox(key_, static_cast<std::uint64_t>(position), copy_));
}

std::vector<Draws> draws_of(const std::vector<std::vector<std::int64_t>>& prompts, std::uint64_t seed) {
  std::map<std::vector<std::int64_t>, std::int64_t> copies;
  std::vector<Draws> draws;
  for (const auto& prompt : prompts) draws.emplace_back(seed, prompt, copies[prompt]++);
  return draws;
}

}  // namespace megatron::generate
