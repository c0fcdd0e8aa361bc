#include "megatron/base/files/atomic_folder.h"

#include <unistd.h>

#include <system_error>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"

namespace megatron {
namespace fs = std::filesystem;

void AtomicFolder::check(const fs::path& path) {
  if (!fs::exists(path) || (fs::is_directory(path) && fs::is_empty(path))) return;
  throw ConfigError(
      rule_got_fix("The output folder must not exist, or be empty.", path.string(), "name another --output"));
}

AtomicFolder::AtomicFolder(const fs::path& path) {
  check(path);
  const fs::path whole = fs::absolute(path).lexically_normal();
  final_ = whole.has_filename() ? whole : whole.parent_path();
  make_folder(final_.parent_path());
  for (int attempt = 0; temporary_.empty(); ++attempt) {
    const fs::path name =
        final_.parent_path() / concat(".tmp-", final_.filename().string(), "-", ::getpid(), "-", attempt);
    std::error_code error;
    if (fs::create_directory(name, error)) temporary_ = name;
    if (error)
      throw ConfigError(rule_got_fix("An output's folder must be writable.",
                                     concat(final_.string(), ": ", error.message()), "name another --output"));
  }
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  fs::rename(temporary_, final_);
  temporary_.clear();
  fsync_folder(final_.parent_path());
}

}  // namespace megatron
