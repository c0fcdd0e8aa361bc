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

std::int64_t sample(std::span<const double> logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0)
    return std::max_element(logits.begin(), logits.end()) - logits.begin();  // the first of equals
  const double largest = *std::max_element(logits.begin(), logits.end());
  if (options.top_k == 0 && options.top_p == 1) {  // in the order of the ids: nothing has to be sorted
    std::vector<double> cumulative(logits.size());
    double sum = 0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const double each = kernels::phases::likelihood((logits[id] - largest) / options.temperature);
      cumulative[id] = sum += each >= options.min_p ? each : 0;  // the likeliest's is 1
    }
    return std::upper_bound(cumulative.begin(), cumulative.end() - 1, uniform * sum) - cumulative.begin();
  }
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
  const auto words = philox(key_, static_cast<std::uint64_t>(position), copy_);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::vector<Draws> draws_of(const std::vector<std::vector<std::int64_t>>& prompts, std::uint64_t seed) {
  std::map<std::vector<std::int64_t>, std::int64_t> copies;
  std::vector<Draws> draws;
  for (const auto& prompt : prompts) draws.emplace_back(seed, prompt, copies[prompt]++);
  return draws;
}

}  // namespace megatron::generate
