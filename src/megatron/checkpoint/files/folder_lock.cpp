#include "megatron/checkpoint/files/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::checkpoint {

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& fix) {
  const std::filesystem::path path = folder / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw ConfigError(
        rule_got_fix("A run's folder must be writable.", concat(path.string(), ": ", std::strerror(errno)), fix));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;  // some file systems have no locks
  ::close(descriptor_);
  throw ConfigError(rule_got_fix("Only one run at a time may write a folder.",
                                 concat(folder.string(), ", which another run holds"),
                                 concat("wait for its end, or ", fix)));
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

}  // namespace megatron::checkpoint
