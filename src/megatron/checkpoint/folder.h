#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "megatron/checkpoint/manifest.h"

// The folder of a run's checkpoints: iter_0000100/, iter_0000200/, latest. No torch here.
namespace megatron::checkpoint {

/// "iter_0000100".
std::string iteration_name(std::int64_t iteration);

/// The iter_ folder meant by `folder`: itself, or what the `latest` in it (or in its `checkpoints`) names. Throws
/// ConfigError where there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder);

/// Whether `folder`, or its `checkpoints`, has a `latest`, or is an iter_ folder. Damage is for load() to report: a run
/// that took a damaged checkpoint for none would begin again from nothing.
bool has_checkpoint(const std::filesystem::path& folder);

/// The manifest of an iter_ folder.
Manifest read_manifest(const std::filesystem::path& iteration_folder);

/// An empty folder in which iteration `name` of `folder` is written; leftovers of earlier attempts are removed.
std::filesystem::path begin_writing(const std::filesystem::path& folder, const std::string& name);

/// Gives the finished temporary folder its name, durably, then makes `latest` say it. At every moment `latest`, if it
/// exists, names a whole checkpoint.
void publish(const std::filesystem::path& folder, const std::filesystem::path& temporary, const std::string& name);

/// Removes all but the newest `keep_last` iterations (0: none is removed), never the one that `latest` names.
void remove_old(const std::filesystem::path& folder, int keep_last);

}  // namespace megatron::checkpoint
