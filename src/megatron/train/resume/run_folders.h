#pragma once
#include <filesystem>
#include <mutex>
#include <vector>

#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/config/run_config.h"

namespace megatron::train {

/// Throws ConfigError where there is something at `path`, of a run's metrics.jsonl, that lines cannot be added to: a
/// folder, a device. Called before the run begins.
void check_metrics_file(const std::filesystem::path& path);

/// Tries out what RunFolders holds, and leaves nothing that was not there: for a process whose ranks will hold it.
/// Throws as RunFolders does.
void try_run_folders(const config::RunConfig& config);

/// Tries out whether this rank can write where the run saves, to which each rank writes a part of its own: its host may
/// see that disk read-only, or full. What is missing of the folder's path is not made; nothing is left. `rank`: its
/// number in the run. Throws ConfigError, std::runtime_error for a full disk.
void try_to_save(const config::RunConfig& config, int rank);

/// A run's folders for writing, train.out and that of its checkpoints: made, tried out, and held (by a lock on the file
/// .lock in each) until destroyed or until the process ends in any way; and that of log.trace: made and tried out. One
/// process of a run constructs it, before ranks start. Throws ConfigError where a folder cannot be written or another
/// run holds it, and where metrics.jsonl is no file to add lines to.
class RunFolders {
 public:
  explicit RunFolders(const config::RunConfig& config);

  /// Throws std::runtime_error where one of the two has been removed, renamed or replaced since: what has its name may
  /// be another run's. Several threads may ask.
  void require_held();
  /// Whether require_held() would not throw.
  bool are_held();

 private:
  std::mutex mutex_;  // of locks_
  std::vector<checkpoint::FolderLock> locks_;
};

}  // namespace megatron::train
