#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/plan/layer.h"

// Which experts a token goes to, and the way there and back. T tokens of a microbatch, k experts of each, E experts, n
// rows that this rank's experts get. Token number i of sequence j is row i * b + j: rows are [s, b] one after another.
namespace megatron::model {

/// The experts of each token, int64 [T, k]: those with the greatest logits first or, where the router has a bias or
/// groups, with the greatest scores, to which `bias` [E] is added for the choice alone (undefined: none). Of equal ones
/// the lowest number. With groups, those of the group_top_k groups whose best group_best experts (0: top_k /
/// group_top_k) have the greatest sum (DeepSeek-AI 2024, section 2.1.2).
at::Tensor chosen_experts(const at::Tensor& logits, const plan::Router& router, std::int64_t top_k,
                          const at::Tensor& bias);

/// `experts` [T, k] of sequences of T / b tokens, with -1 in place of each copy that exceeds an expert's capacity,
/// ceil(tokens * k / E * factor) of each sequence by itself. The first tokens are kept or, with Drop::Least, those for
/// which the expert counts most, by `weights` [T, k]. Ranks that share sequences have T tokens of them each, and keep
/// what one rank would of the whole: collective over `ranks`, two all-gathers of [T, k].
at::Tensor kept_experts(const at::Tensor& experts, const at::Tensor& weights, const plan::Experts& spec,
                        std::int64_t batch, const comm::Group& ranks = {});

/// What each of `experts` counts for its token, [T, k] of the type of the logits [T, E]. Differentiable.
at::Tensor expert_weights(const at::Tensor& logits, const at::Tensor& experts, const plan::Router& router);

/// The auxiliary losses of each sequence, of logits [s, b, E] and experts [s, b, k] (docs/decisions/0107): [b].
/// Differentiable. Of ranks that share sequences each gets the part of its own tokens, which add up, for one all-reduce
/// of [b, E] over them.
struct RouterLosses {
  at::Tensor balance;  ///< E * sum over experts of (share of the choices * mean score): 1 where the load is even
  at::Tensor z;        ///< mean of the square of the logits' log-sum-exp
};
RouterLosses router_losses(const at::Tensor& logits_sbe, const at::Tensor& experts_sbk, const plan::Router& router,
                           const comm::Group& sequence = {});

/// A tensor on its way from other ranks.
class Coming {
 public:
  template <class Wait>
  explicit Coming(Wait wait) : wait_(std::move(wait)) {}
  /// Waits for it and gives it. Once: nothing of it is kept.
  at::Tensor take() {
    const auto wait = std::exchange(wait_, {});
    return wait();
  }

 private:
  std::function<at::Tensor()> wait_;
};

/// Sends each token's copies to the ranks and rows of its experts, and what these give back. Rows of one expert follow
/// one another, by the rank that they come from, then by token; those of a rank's last expert come first, as its
/// weights do in memory (kernels/cuda/grouped.h). Which tokens an expert sees is the same in every layout; their order
/// is not, so that sums over them differ by rounding.
class Routes {
 public:
  /// `experts` [T, k]: of `count` experts, which the ranks of `group` hold equal shares of, in order; -1: a copy goes
  /// nowhere. Collective over the group: one all-gather of `count` numbers.
  Routes(const at::Tensor& experts, std::int64_t count, comm::Group group);

  /// Where the rows of each of this rank's experts begin, the last expert's first; one more than experts.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }
  /// Copies of this rank's tokens that each of all experts gets.
  const std::vector<std::int64_t>& loads() const { return loads_; }
  /// rows [n, c] of tokens [T, c]. Collective over the group, as what follows: one all-to-all.
  Coming to_experts(const at::Tensor& tokens) const;
  /// [n] of a number for each copy, [T, k].
  Coming copies_to_experts(const at::Tensor& numbers) const;
  /// [T, c] of rows [n, c]: the sum over a token's copies of their rows, each times `weights` [T, k] (undefined: 1).
  Coming combined(const at::Tensor& rows, const at::Tensor& weights) const;
  /// [T, k] of numbers [n]; 0 of copies that went nowhere.
  Coming copies_back(const at::Tensor& numbers) const;

 private:
  Coming exchanged(const at::Tensor& sent) const;
  Coming come_back(const at::Tensor& rows) const;

  comm::Group group_;
  std::int64_t top_k_ = 0;
  std::vector<std::int64_t> offsets_, loads_;
  at::Tensor sent_;      ///< [m] int64: which copy each row that is sent is of
  at::Tensor returned_;  ///< [T, k] int64: the row that comes back for each copy; -1: none
  // With several ranks, each of which sends as many rows to each other one, padding among them:
  at::Tensor taken_;  ///< [n] int64: rows that have come, by expert
  at::Tensor given_;  ///< [m, 1] int64: the expert's row that goes back in each; -1: zeros, as padding
};

}  // namespace megatron::model
