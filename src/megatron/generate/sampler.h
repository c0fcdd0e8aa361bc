#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "megatron/generate/sampling_options.h"
#include "megatron/kernels/token/shortlist.h"

namespace megatron::generate {

/// Throws std::runtime_error "logits are not finite at position …" where one of them is NaN or infinite.
void require_finite(std::span<const double> logits, std::int64_t position);

/// The token drawn from softmax(logits / temperature), restricted to top_k, then to top_p, then to min_p, by
/// `uniform` in [0, 1).
/// Equally likely tokens are ordered by id, so that equal logits give equal tokens on every rank. The logits are finite
/// (require_finite).
std::int64_t sample(std::span<const double> logits, const SamplingOptions& options, double uniform);

/// How many of the likeliest tokens sample() of a shortlist needs; 0: it needs all logits.
int shortlist_of(const SamplingOptions& options);
/// Whether it may draw any token, so that a GPU draws it (kernels::TokenKernels::draw), as sample() of all logits does.
inline bool draws_from_all(const SamplingOptions& options) {
  return options.temperature > 0 && options.top_k == 0 && options.top_p == 1;
}
/// Whether it needs their sum too.
inline bool weighs_all(const SamplingOptions& options) { return options.top_k == 0 && options.top_p < 1; }
/// The token that sample() of all logits would draw; none where that may be one beyond the list. `list`: the
/// shortlist_of() likeliest of a vocabulary of `vocab`, or all of it.
std::optional<std::int64_t> sample(const kernels::Shortlist& list, std::size_t vocab, const SamplingOptions& options,
                                   double uniform);

/// The `count` likeliest tokens, from the likeliest on; of equals the lower id first. `count`: at most all.
std::vector<std::int64_t> likeliest(std::span<const double> logits, std::size_t count);

/// The random numbers of one text: Philox by what they are for, so that a batch gives what its prompts would give
/// alone, in any order and on any number of ranks. `copy` counts the same prompt earlier in the batch: each copy gets a
/// text of its own, the first (0) what the prompt gives alone.
class Draws {
 public:
  Draws(std::uint64_t seed, std::span<const std::int64_t> prompt, std::int64_t copy);
  /// The number in [0, 1) that draws the token at `position`.
  double at(std::int64_t position) const;
  /// It is uniform_of(philox(key(), position, copy())).
  std::uint64_t key() const { return key_; }
  std::uint64_t copy() const { return copy_; }

 private:
  std::uint64_t key_, copy_;
};

/// The draws of each prompt of a batch.
std::vector<Draws> draws_of(const std::vector<std::vector<std::int64_t>>& prompts, std::uint64_t seed);

/// Told of each new token as it is drawn; those of one prompt come in their order.
using OnToken = std::function<void(std::size_t prompt, std::int64_t token)>;

}  // namespace megatron::generate
