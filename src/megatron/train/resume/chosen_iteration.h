#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "megatron/config/run_config.h"

// checkpoint.ckpt_step and override_ckpt_iteration: a run that starts from an iteration of its choice.
namespace megatron::train {

/// Lets checkpoint.load name the checkpoint of iteration checkpoint.ckpt_step in that folder, of this program or of
/// Megatron-LM; as it is where ckpt_step is 0, the run resumes from checkpoints of its own elsewhere, or it has gone
/// there before and that checkpoint is no longer kept. Called before anything else asks where the run starts. Throws
/// ConfigError, which lists the iterations that are there, where that one is not, and for one of another program in a
/// folder where this one has saved since.
void name_chosen_iteration(config::RunConfig& config);

/// Where checkpoint.load names a checkpoint of the run's own that is not its newest, by ckpt_step: that one. Nothing
/// where the newest was saved by a run that has gone back to the same iteration, so that the same command resumes.
std::optional<std::filesystem::path> own_checkpoint_to_go_back_to(const config::RunConfig& config);

/// Whether the run that saved `checkpoint` has started with the same ckpt_step and override_ckpt_iteration; false where
/// it cannot be read.
bool starts_alike(const config::RunConfig& config, const std::filesystem::path& checkpoint);

/// What the user is told where the run starts from `checkpoint`, of its own, and not from the iteration of ckpt_step:
/// that it has started from there before, or that it starts elsewhere. "" otherwise. Throws what reading its manifest
/// does.
std::string note_of_chosen_iteration(const config::RunConfig& config, const std::filesystem::path& checkpoint);

/// Whether the run that starts from `checkpoint` gives its iteration the number checkpoint.override_ckpt_iteration:
/// where that is set, but for a checkpoint of its own (`is_own`) that it has saved since, so that the same command
/// resumes. Throws what reading its manifest does.
bool renumbers(const config::RunConfig& config, const std::filesystem::path& checkpoint, bool is_own);

}  // namespace megatron::train
