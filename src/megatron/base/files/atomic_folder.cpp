#include "megatron/base/files/atomic_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/write_error.h"

namespace megatron {
namespace fs = std::filesystem;
namespace {

/// Whether `name` is what an AtomicFolder calls the folder until it is whole: `start`PID-ATTEMPT.
bool is_temporary(std::string_view name, std::string_view start) {
  if (!name.starts_with(start)) return false;
  name.remove_prefix(start.size());
  const std::size_t dash = name.find('-');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  return dash != std::string_view::npos && is_number(name.substr(0, dash)) && is_number(name.substr(dash + 1));
}

[[noreturn]] void cannot_write(const fs::path& folder, const std::error_code& error) {
  throw ConfigError(rule_got_fix("An output's folder must be writable.", concat(folder.string(), ": ", error.message()),
                                 "name another --output"));
}

}  // namespace

AtomicFolder::Lock::Lock(fs::path path, const fs::path& whose) : path_(std::move(path)) {
  while (true) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) cannot_write(whose, {errno, std::generic_category()});
    held_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (!held_ && errno != EWOULDBLOCK) return;  // some file systems have no locks
    if (!held_) {
      ::close(descriptor_);
      throw ConfigError(rule_got_fix("Only one job at a time may write a folder.",
                                     concat(whose.string(), ", which another job writes"),
                                     "wait for its end, or name another --output"));
    }
    // Whoever held it before has removed the file meanwhile: a lock on that keeps nobody out.
    struct stat own {
    }, named{};
    if (::fstat(descriptor_, &own) == 0 && ::stat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
        own.st_ino == named.st_ino)
      return;
    ::close(descriptor_);
  }
}

std::string AtomicFolder::Lock::left() const {
  std::string text(512, '\0');  // longer than a name can be
  const ssize_t got = held_ ? ::pread(descriptor_, text.data(), text.size(), 0) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

void AtomicFolder::Lock::remember(const std::string& name) const {
  // Where this fails, the folder stays if this program is killed.
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, name.data(), name.size(), 0) < 0) return;
}

AtomicFolder::Lock::~Lock() {
  std::error_code ignored;
  fs::remove(path_, ignored);
  ::close(descriptor_);
}

void AtomicFolder::check(const fs::path& path) {
  if (!fs::exists(path) || (fs::is_directory(path) && fs::is_empty(path))) return;
  throw ConfigError(
      rule_got_fix("The output folder must not exist, or be empty.", path.string(), "name another --output"));
}

AtomicFolder::AtomicFolder(const fs::path& path) {
  check(path);
  const fs::path whole = fs::absolute(path).lexically_normal();
  final_ = whole.has_filename() ? whole : whole.parent_path();
  const fs::path parent = final_.parent_path();
  make_folder(parent);
  const std::string start = concat(".tmp-", final_.filename().string(), "-");
  lock_ = std::make_unique<Lock>(parent / (start + "lock"), final_);
  check(path);  // who held the lock may have written it
  // What a killed program has left, if that is its own: anybody may have a folder of such a name.
  std::error_code ignored;
  if (const std::string left = lock_->left(); is_temporary(left, start)) fs::remove_all(parent / left, ignored);
  for (int attempt = 0; temporary_.empty(); ++attempt) {
    const fs::path name = parent / concat(start, ::getpid(), "-", attempt);
    std::error_code error;
    if (fs::create_directory(name, error)) temporary_ = name;
    if (error) cannot_write(final_, error);
  }
  lock_->remember(temporary_.filename().string());
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  std::error_code error;
  fs::rename(temporary_, final_, error);
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists || error == std::errc::not_a_directory)
    throw std::runtime_error(rule_got_fix("The output folder must not exist, or be empty, until all of it is written.",
                                          concat(final_.string(), ": ", error.message()),
                                          "name another --output, or remove what is there"));
  if (error) throw std::runtime_error(write_error(final_, "cannot be renamed to", error.value()));
  temporary_.clear();
  fsync_folder(final_.parent_path());
}

}  // namespace megatron
