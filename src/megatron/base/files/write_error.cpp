#include "megatron/base/files/write_error.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron {
namespace {

/// How many files the process may have open.
rlim_t open_files() {
  struct rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::clamp<rlim_t>(limit.rlim_cur, 512, 1 << 20) : 4096;
}

}  // namespace

std::string write_error(const std::filesystem::path& path, const std::string& action, int error) {
  const std::string rule = concat(path.string(), ": ", action, "."), got = std::strerror(error);
  const std::filesystem::path folder = path.parent_path();
  const bool named = !folder.empty() && !folder.string().starts_with("/proc/self/fd");
  const std::string disk = named ? concat("the disk of ", folder.string()) : "its disk";
  switch (error) {
    case ENOSPC:
      return rule_got_fix(rule, got, concat("free space on ", disk, ", or write to another"));
    case EDQUOT:
      return rule_got_fix(rule, got, concat("free space in your quota on ", disk, ", or write to another"));
    case EFBIG:
      return rule_got_fix(rule, concat(got, ", more than the limit on the size of files (ulimit -f)"),
                          "raise the limit before the command: ulimit -f unlimited");
    case EMFILE:
      return rule_got_fix(rule, concat(got, ", more than the limit of the process (ulimit -n)"),
                          concat("raise the limit before the command: ulimit -n ", 2 * open_files()));
    case ENFILE:
      return rule_got_fix(rule, got, "raise the system's limit: sysctl fs.file-max");
    case EIO:
      return rule_got_fix(rule, got, "check the disk, or the program that reads the pipe");
    default:
      return rule_got_fix(rule, got);
  }
}

void let_large_writes_fail() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace megatron
