#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "megatron/plan/rules.h"

// Which ranks send one another how much in a step.
namespace megatron::plan {

/// What bytes are sent for.
enum class TrafficKind : std::uint8_t {
  Tensor,      ///< sums within layers, and of the embedding's and the output layer's parts
  Sequence,    ///< with sequence parallelism, in their place: parts of the stream summed and gathered
  Context,     ///< keys and values, or heads, of ranks that share sequences
  Experts,     ///< tokens to other ranks' experts and back
  Pipeline,    ///< activations and their gradients between stages
  Gradients,   ///< sums of gradients, the tied embedding's too
  Parameters,  ///< gathered, where ranks share the update
};
inline constexpr std::array<const char*, 7> kTrafficNames = {"tensor",   "sequence",  "context",   "experts",
                                                             "pipeline", "gradients", "parameters"};

struct Traffic {
  int from = 0, to = 0;
  TrafficKind kind = TrafficKind::Tensor;
  double bytes = 0;  ///< in one step

  bool operator==(const Traffic&) const = default;
};

/// Of a step at the full batch, the bytes that step_cost() takes time for: one entry for each pair of ranks and kind,
/// ordered by them. Sums and gathered parts go around rings of ranks in ascending order, tokens and heads from each
/// rank to each other of its group alike.
std::vector<Traffic> step_traffic(const ResolvedRun& run);

}  // namespace megatron::plan
