#include "megatron/train/run_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/train/inputs.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix = "name another: --train.out, --checkpoint.save";

}  // namespace

RunFolders::Lock::Lock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw ConfigError(
        rule_got_fix("A run's folder must be writable.", concat(path.string(), ": ", std::strerror(errno)), kFix));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;  // some file systems have no locks
  ::close(descriptor_);
  throw ConfigError(rule_got_fix("Only one run at a time may write a folder.",
                                 concat(folder.string(), ", which another run holds"),
                                 concat("wait for its end, or ", kFix)));
}

RunFolders::Lock::~Lock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RunFolders::Lock::Lock(Lock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

RunFolders::RunFolders(const config::RunConfig& config) {
  std::vector<fs::path> folders;
  for (const fs::path& named : {fs::path(config.train.out), save_folder(config)}) {
    make_folder(named, kFix);
    folders.push_back(fs::canonical(named));
  }
  if (folders[0] == folders[1]) folders.pop_back();
  for (const fs::path& folder : folders) locks_.emplace_back(folder);
  if (const fs::path trace = config.log.trace; !trace.empty()) {
    constexpr const char* kTraceFix = "name another: --log.trace";
    make_folder(trace.parent_path(), kTraceFix);
    if (fs::is_directory(trace))
      throw ConfigError(rule_got_fix("log.trace must name a file.", trace.string() + ", a folder", kTraceFix));
  }
}

}  // namespace megatron::train
