#pragma once
#include <span>
#include <vector>

#include "megatron/kernels/phases/numbers.h"

// What tokens weigh that one is drawn from. The same bits on every machine: no function of a C library, sums in one
// order.
namespace megatron::kernels::phases {

constexpr int kLikelihoodLanes = 1024;  ///< partial sums of a row: id i is of number i % 1024
constexpr int kChunksOfGroup = 32;      ///< of which sums of a draw are made

/// exp(x), x <= 0, to 2 units in the last place; 0 below -708.
MEGATRON_BOTH double likelihood(double x) {
  if (!(x > -708.0)) return 0;
  const auto n = static_cast<std::int64_t>(x * 1.4426950408889634 - 0.5);  // x / ln 2, rounded
  const auto whole = static_cast<double>(n);
  // ln 2 in two parts, of which the first has so few digits that its product with n is exact.
  const double r = (x - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10;
  // The series of exp(r), |r| <= 0.35: 1 / 13!, 1 / 12!, ..., 1 / 0!.
  constexpr double kSeries[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1,           1};
  double sum = 0;
  MEGATRON_UNROLL
  for (const double each : kSeries) sum = sum * r + each;
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
}

/// What a token weighs that is drawn from all of them; 0 below `min_p` of the likeliest.
MEGATRON_BOTH double weight(double logit, double largest, double temperature, double min_p) {
  const double each = likelihood((logit - largest) / temperature);
  return each >= min_p ? each : 0;
}

/// Where one of all `v` tokens is drawn they are in the order of ids, in kLikelihoodLanes chunks of so many, of which
/// the last may be shorter or empty. Sums are those of chunks, of these by groups, and of groups.
MEGATRON_BOTH std::int64_t chunk_size_of(std::int64_t v) { return (v + kLikelihoodLanes - 1) / kLikelihoodLanes; }

/// The first of `count` parts that reaches beyond `target`, where `before` is what comes before them; the last that
/// weighs anything where rounding has none reach. `before` becomes what comes before it.
template <class Weight>
MEGATRON_BOTH int part_of(double& before, double target, int count, const Weight& weight_of) {
  int found = 0;
  double sum = before;
  MEGATRON_UNROLL_BY(1)
  for (int i = 0; i < count; ++i) {
    const double each = weight_of(i);
    if (each > 0) {
      found = i;
      before = sum;
    }
    sum += each;
    if (sum > target) break;
  }
  return found;
}

/// likelihood((logit - largest) / temperature) summed over the row: the lanes' sums, then those of lanes that are 32
/// apart, then these.
inline double sum_of_likelihoods(std::span<const double> logits, double largest, double temperature) {
  std::vector<double> lanes(kLikelihoodLanes, 0.0);
  for (std::size_t i = 0; i < logits.size(); ++i)
    lanes[i % kLikelihoodLanes] += likelihood((logits[i] - largest) / temperature);
  double all = 0;
  for (std::size_t first = 0; first < 32; ++first) {
    double sum = 0;
    for (std::size_t lane = first; lane < kLikelihoodLanes; lane += 32) sum += lanes[lane];
    all += sum;
  }
  return all;
}

}  // namespace megatron::kernels::phases
