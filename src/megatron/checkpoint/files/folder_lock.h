#pragma once
#include <filesystem>
#include <string>

namespace megatron::checkpoint {

/// Holds a folder for writing by a lock on the file .lock in it, until destroyed or until the process ends in any way.
/// Runs, and the jobs that write or remove checkpoints, hold theirs. No torch here.
class FolderLock {
 public:
  /// `folder` exists. Throws ConfigError, with `fix`, where it cannot be written or another process holds it.
  FolderLock(const std::filesystem::path& folder, const std::string& fix);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace megatron::checkpoint
