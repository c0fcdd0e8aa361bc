#pragma once
#include <cstdint>
#include <span>

namespace megatron::generate {

struct SamplingOptions {
  double temperature = 1;  ///< divides the logits; 0: the likeliest token (greedy)
  int top_k = 0;           ///< only the k likeliest tokens; 0: all
  double top_p = 1;        ///< only the likeliest tokens that together reach this probability (Holtzman et al. 2020)
};

/// Throws ConfigError, for all violated rules together, unless temperature >= 0, top_k >= 0 and 0 < top_p <= 1.
void check(const SamplingOptions& options);

/// The token drawn from softmax(logits / temperature), restricted to top_k and then to top_p, by `uniform` in [0, 1).
/// Equally likely tokens are ordered by id, so that equal logits give equal tokens on every rank.
std::int64_t sample(std::span<const double> logits, const SamplingOptions& options, double uniform);

/// The number in [0, 1) that draws the token at `position` of prompt `prompt`: Philox by what it is for, so that a
/// batch gives what its prompts would give alone, on any number of ranks.
double uniform_at(std::uint64_t seed, std::int64_t prompt, std::int64_t position);

}  // namespace megatron::generate
