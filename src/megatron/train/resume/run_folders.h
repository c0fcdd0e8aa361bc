#pragma once
#include <filesystem>
#include <vector>

#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/config/run_config.h"

namespace megatron::train {

/// A run's folders for writing, train.out and that of its checkpoints: made, tried out, and held (by a lock on the file
/// .lock in each) until destroyed or until the process ends in any way; and that of log.trace: made and tried out. One
/// process of a run constructs it, before ranks start. Throws ConfigError where a folder cannot be written or another
/// run holds it.
class RunFolders {
 public:
  explicit RunFolders(const config::RunConfig& config);

 private:
  std::vector<checkpoint::FolderLock> locks_;
};

}  // namespace megatron::train
