#pragma once
#include <filesystem>
#include <string>

namespace megatron::checkpoint {

/// Holds a folder for writing by a lock on the file .lock in it, until destroyed or until the process ends in any way.
/// Runs, and the jobs that write or remove checkpoints, hold theirs. The file then says who has started the job
/// (kSupervisorVariable). No torch here.
class FolderLock {
 public:
  /// `folder` exists. Throws ConfigError, with `fix`, where it cannot be written or another process holds it.
  FolderLock(const std::filesystem::path& folder, const std::string& fix);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

  /// Whether the folder's name still means the folder that is held: it may have been removed, renamed or replaced
  /// since, and then another process may hold what has its name. The file .lock alone, removed by somebody, is made and
  /// held again.
  bool is_held();
  /// Throws std::runtime_error, "rule, got, fix", unless is_held().
  void require_held();

  const std::filesystem::path& folder() const { return folder_; }

 private:
  bool take();
  void sign() const;

  std::filesystem::path folder_;
  int inside_ = -1;  ///< the folder: while it is open no other one has its inode
  int descriptor_ = -1;
};

}  // namespace megatron::checkpoint
