#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/config/run_config.h"

namespace megatron::interchange {

/// In the metadata of a checkpoint whose learning rate or optimizer is ahead of its iteration, which was given another
/// number: checkpoint.override_ckpt_iteration.
inline constexpr const char* kRenumbered = "renumbered";

/// Where a run stood that saved a folder, of this program or of another.
struct TrainingState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;  ///< of the training order
  std::int64_t schedule_samples = 0;  ///< that advanced the learning rate
  std::int64_t skipped_iterations = 0;
  std::int64_t validated_iteration = 0;  ///< after which the last validation was done
  std::int64_t optimizer_steps = 0;
  std::string optimizer = {};            ///< as optimizer.name says it
  checkpoint::Metadata loss_scale = {};  ///< counters of a dynamic loss scale, by the names that checkpoints give them
  config::RunConfig recipe = {};
  /// Kinds of state that the optimizer keeps; none where the folder has the weights alone.
  std::vector<std::string> kinds = {};
  /// The weights, of masters where there are some, and "optimizer.KIND.NAME".
  std::shared_ptr<const checkpoint::WeightSource> tensors = {};

  /// What a checkpoint of ours keeps beside its tensors.
  checkpoint::Metadata metadata() const;
};

/// "optimizer.exp_avg.decoder.final_layernorm.weight".
std::string state_name(const std::string& kind, const std::string& parameter);

}  // namespace megatron::interchange
