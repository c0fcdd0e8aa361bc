#include "megatron/data/index/index_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"
#include "megatron/base/timer.h"

namespace megatron::data {
namespace {

constexpr std::chrono::milliseconds kFirstPause{10}, kMaxPause{1000};
constexpr double kFirstMessage_s = 1, kMessageEvery_s = 30;

/// A lock file, open; released when it is closed, by us or by the end of the process.
class LockFile {
 public:
  explicit LockFile(const std::string& path) : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0)
      throw ConfigError(rule_got_fix("the folder of the index cache must be writable.",
                                     concat(path, ": ", std::strerror(errno)), "name another: --data-cache-path"));
  }
  ~LockFile() { ::close(descriptor_); }
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  /// False: another one holds it. True also where the file system has no locks.
  bool take() {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
      sign();
      return true;
    }
    return errno != EWOULDBLOCK && errno != EINTR;
  }

  /// Who holds it, as that one has written.
  std::string holder() const {
    std::array<char, 256> text{};
    const ssize_t size = ::pread(descriptor_, text.data(), text.size(), 0);
    return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "another process";
  }

 private:
  void sign() {
    std::array<char, 128> host{};
    ::gethostname(host.data(), host.size() - 1);
    const std::string text = concat("process ", ::getpid(), " on ", host.data());
    // For messages alone: an empty lock file locks all the same.
    if (::ftruncate(descriptor_, 0) != 0) return;
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, text.data(), text.size(), 0);
  }

  int descriptor_;
};

}  // namespace

CacheEntry::CacheEntry(std::filesystem::path folder, std::string kind, std::string description)
    : folder_(std::move(folder)), description_(std::move(description)) {
  const XXH128_hash_t hash = XXH3_128bits(description_.data(), description_.size());
  stem_ = (folder_ / fmt::format("{:016x}{:016x}-{}-", hash.high64, hash.low64, kind)).string();
}

bool build_once(const CacheEntry& entry, const std::vector<std::string>& names, const std::function<void()>& build,
                const WaitMessage& say) {
  const auto are_there = [&] {
    return std::ranges::all_of(names,
                               [&](const std::string& name) { return std::filesystem::exists(entry.file(name)); });
  };
  if (are_there()) return false;
  make_folder(entry.folder(), "name another: --data-cache-path");
  LockFile lock(entry.file("lock"));
  const Stopwatch waiting;
  double next_message_s = kFirstMessage_s;
  for (auto pause = kFirstPause; !lock.take(); pause = std::min(2 * pause, kMaxPause)) {
    std::this_thread::sleep_for(pause);
    if (!say || waiting.seconds() < next_message_s) continue;
    say(concat("waiting for ", entry.file(names.at(0)), ", which ", lock.holder(), " builds; waited ",
               human_duration(waiting.seconds())));
    next_message_s = waiting.seconds() + kMessageEvery_s;
  }
  if (are_there()) return false;
  write_file(entry.file("description.txt"), entry.description());
  build();
  return true;
}

}  // namespace megatron::data
