#pragma once
#include <filesystem>
#include <functional>
#include <mutex>
#include <vector>

#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/comm/group.h"
#include "megatron/config/run_config.h"

namespace megatron::train {

/// Throws ConfigError where there is something at `path`, of a run's metrics.jsonl, that lines cannot be added to: a
/// folder, a device. Called before the run begins.
void check_metrics_file(const std::filesystem::path& path);

/// Tries out what RunFolders holds, and leaves nothing that was not there: for a process whose ranks will hold it.
/// Throws as RunFolders does.
void try_run_folders(const config::RunConfig& config);

/// Makes `folder`, locks it as RunFolders does and looks into it by `look`; then leaves nothing that was not there.
/// Throws ConfigError as checkpoint::FolderLock, and what `look` does.
void try_folder(const std::filesystem::path& folder, const char* fix, const std::function<void()>& look);

/// Tries out whether this rank can write where the run saves, to which each rank writes a part of its own: its host may
/// see that disk read-only, or full. What is missing of the folder's path is not made; nothing is left. `rank`: its
/// number in the run. Throws ConfigError, std::runtime_error for a full disk.
void try_to_save(const config::RunConfig& config, int rank);

/// Whether all ranks see the folder in which the run saves: rank 0 leaves a file of a name that nobody knows in it (or,
/// where it is missing, in what there is of its path) for the others to find. Each host with a disk of its own there
/// would keep a part of each checkpoint, which is found when one is to be resumed from. Where rank 0 cannot write there
/// nothing is found out: RunFolders says it. Collective over `world`; on every rank throws comm::AgreedError.
void require_shared_folder(const config::RunConfig& config, const comm::Group& world);

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
