#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/training_state.h"
#include "megatron/train/engine.h"

namespace megatron::train {

/// Where a run stands after its last whole iteration.
struct RunState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;  ///< of the training order; skipped iterations consume theirs too
  std::int64_t schedule_samples = 0;  ///< that advanced the learning rate: those of iterations that were not skipped
  std::int64_t skipped_iterations = 0;
  std::int64_t validated_iteration = 0;  ///< after which the last validation was done; 0: none yet
  /// Iterations whose batches rollbacks have chosen to skip, ascending; some may be to come.
  std::vector<std::int64_t> skipped_batches = {};
  std::int64_t rollbacks = 0;
  std::vector<double> recent_losses = {};  ///< that a spike is told by (guard.on_spike), the oldest first
  std::int64_t nonfinite_steps = 0;        ///< the last ones in a row whose loss or gradient was not finite
  bool renumbered = false;  ///< checkpoint.override_ckpt_iteration: rate and optimizer may be ahead of the iteration
};

/// What this rank saves: weights, from the masters where there are some, and optimizer state, named and shaped as in
/// the whole model. The rows that pad the vocabulary are left out: they take no part in the model, and their number
/// depends on the layout. The tensors change behind TrainStep::before_update() alone.
std::vector<checkpoint::ShardedTensor> sharded_tensors(const Engine& engine);

/// What load_run() fills: the parameters, their masters, and `with_state` the optimizer's state.
std::vector<checkpoint::ShardedTensor> tensors_to_load(const Engine& engine, bool with_state);
/// Names of what it reads besides, whole and on every rank, where the checkpoint has it.
std::vector<std::string> tensors_read_whole(const Engine& engine);

/// The counters and the recipe that a checkpoint keeps beside its tensors. `recipe`: the resolved configuration as
/// TOML. `inputs`: to_text() of its InputDigests, unless it is empty.
checkpoint::Metadata run_metadata(const RunState& state, const Engine& engine, const std::string& recipe,
                                  const std::string& inputs = {});

/// Where the run stood that wrote the checkpoint. Throws ConfigError naming `folder` where a counter is missing, is no
/// count, or they cannot be those of one run (fewer samples than iterations, more iterations skipped than done).
RunState run_state_of(const checkpoint::Manifest& manifest, const std::filesystem::path& folder);

/// Fills `engine` from the checkpoint of any layout, precision and optimizer in `folder`. Where another kind of
/// optimizer wrote it, it does not have all of the optimizer's state, or `with_optimizer` is false, all of that state
/// stays fresh; a message says what continues and what is reset, and so does one where the loss scale is reset. Not
/// collective; round_as_trained() is to follow. Throws checkpoint::Unreadable where the checkpoint is damaged or newer,
/// other ConfigErrors where it does not fit.
RunState load_run(const std::filesystem::path& folder, Engine& engine, bool with_optimizer,
                  std::vector<std::string>& messages);

/// As above, from the run that another program has saved in `folder`.
RunState load_run(const interchange::TrainingState& training, const std::filesystem::path& folder, Engine& engine,
                  bool with_optimizer, std::vector<std::string>& messages);

/// A checkpoint holds masters and load_run() rounds them to nearest: where rounding is stochastic, gives the parameters
/// the values that the last step gave them. Collective over dp, once every rank has loaded.
void round_as_trained(Engine& engine);

/// Both, without messages: as a run continues that was not interrupted. Collective over dp.
RunState load_run(const std::filesystem::path& folder, Engine& engine);

/// Fills the engine's parameters and their masters with the weights of `source`, as checkpoint::load_weights().
checkpoint::WeightReport load_weights(const checkpoint::WeightSource& source, Engine& engine,
                                      const plan::ModelShape& shape, bool strict);

}  // namespace megatron::train
