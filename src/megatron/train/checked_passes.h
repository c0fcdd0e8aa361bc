#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megatron/parallel/context.h"
#include "megatron/parallel/parameter.h"
#include "megatron/supervise/suspects.h"

// The passes of a step, computed again on this rank and on another to find who computes wrongly (guard.rerun_interval).
namespace megatron::train {

/// A checksum of one pass's gradients; their order does not matter.
class GradientChecksum {
 public:
  /// One parameter's gradient on this rank, or of pooled gradients what one round of reductions takes.
  void add(const parallel::Parameter& parameter, std::int64_t round);
  void add_loss(double sum, double count);
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// For tests: flips a bit of the first element, which must be in place.
void flip_bit(const at::Tensor& gradient);

/// Computes the forward and backward passes of the rank that reads the samples `places` further on in
/// ParallelContext::samples(). Returns a checksum of the gradients before they are summed over ranks, which `reduces`
/// asks for.
using RunPass = std::function<std::uint64_t(int places, bool reduces)>;

/// Has a step's passes computed: first those of the next copy of the model, `distance` places further on, or where
/// that is 0 its own; then its own, as the step needs them. Where two ranks have got other gradients for the same
/// passes, both are computed again, on a third rank too if there is one, and the last are the step's own. Nothing but
/// checksums is kept from pass to pass. Returns who computes wrongly, the same on every rank. Collective over the
/// world.
std::vector<supervise::Suspect> run_checked(const parallel::ParallelContext& context, int distance, const RunPass& run);

/// Suspects as events.jsonl has them: an array of an object for each. Collective over the world: each rank names its
/// machine.
nlohmann::ordered_json events_of(const std::vector<supervise::Suspect>& suspects,
                                 const parallel::ParallelContext& context);
/// What a reader is told of them: "rank 1 (…) on HOST: 3 of 6 results differ", one after the other.
std::string text_of_suspects(const nlohmann::ordered_json& events);

}  // namespace megatron::train
