#include "megatron/checkpoint/files/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/machine/environment.h"
#include "megatron/base/ranks/launched_rank.h"

namespace megatron::checkpoint {
namespace {

constexpr const char* kLockFile = ".lock";

/// Whether `name` below the folder `at`, or by itself, is missing or another than what `descriptor` has open. What the
/// system cannot tell now (a server that does not answer) is taken for the same.
bool is_another(int descriptor, int at, const char* name) {
  struct stat open = {}, named = {};
  if (::fstatat(at, name, &named, 0) != 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
  return ::fstat(descriptor, &open) == 0 && (open.st_dev != named.st_dev || open.st_ino != named.st_ino);
}

}  // namespace

/// Opens and locks the file, unless another process holds it; errno then says why not.
bool FolderLock::take() {
  for (;;) {
    descriptor_ = ::openat(inside_, kLockFile, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return false;
    const bool refused = ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;  // or without locks
    if (!refused && !is_another(descriptor_, inside_, kLockFile)) {
      sign();
      return true;
    }
    ::close(std::exchange(descriptor_, -1));
    errno = EWOULDBLOCK;
    if (refused) return false;  // else who held it has removed it meanwhile
  }
}

/// An empty lock file locks all the same.
void FolderLock::sign() const {
  const Environment variables = process_environment();
  const auto supervisor = variables.find(kSupervisorVariable);
  if (::ftruncate(descriptor_, 0) != 0 || supervisor == variables.end()) return;
  [[maybe_unused]] const ssize_t written =
      ::pwrite(descriptor_, supervisor->second.data(), supervisor->second.size(), 0);
}

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& fix) : folder_(folder) {
  inside_ = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (inside_ >= 0 && take()) return;
  const int error = errno;
  if (inside_ >= 0) ::close(inside_);
  if (error == EWOULDBLOCK)
    throw ConfigError(rule_got_fix("Only one run at a time may write a folder.",
                                   concat(folder.string(), ", which another run holds"),
                                   concat("wait for its end, or ", fix)));
  if (error == EMFILE || error == ENFILE) throw ConfigError(write_error(folder / kLockFile, "cannot be opened", error));
  throw ConfigError(rule_got_fix("A run's folder must be writable.",
                                 concat((folder / kLockFile).string(), ": ", std::strerror(error)), fix));
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (inside_ >= 0) ::close(inside_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : folder_(std::move(other.folder_)),
      inside_(std::exchange(other.inside_, -1)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

bool FolderLock::is_held() {
  if (is_another(inside_, AT_FDCWD, folder_.c_str())) return false;
  if (!is_another(descriptor_, inside_, kLockFile)) return true;
  const int before = std::exchange(descriptor_, -1);
  if (take()) {
    ::close(before);
    return true;
  }
  descriptor_ = before;
  return false;
}

void FolderLock::require_held() {
  if (is_held()) return;
  std::error_code error;
  const bool there = std::filesystem::exists(folder_, error);
  throw std::runtime_error(rule_got_fix(
      "A run's folder must stay where it is, and the run's own, until the run has ended.",
      concat(folder_.string(), there ? " is another folder now, or another run's" : " was removed or renamed"),
      "resume in another folder, --train.out FOLDER; of a folder that was renamed its new name is the one that has "
      "the run's checkpoints"));
}

}  // namespace megatron::checkpoint
