#include "megatron/supervise/memory_folder.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/supervise/run_files.h"

namespace megatron::supervise {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFile = ".memory_run";  // in the folder of checkpoints
constexpr std::size_t kDigits = 16;

bool are_digits(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// What the names of this user's folders of a run begin with.
std::string name_of_run(const std::string& run) { return concat("megatron-", ::geteuid(), "-", run, "-"); }

/// This user's folders of the run.
std::vector<fs::path> folders_of(const fs::path& parent, const std::string& run) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (auto entry = fs::directory_iterator(parent, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    struct stat found = {};
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with(name_of_run(run)) && ::lstat(path.c_str(), &found) == 0 &&
        S_ISDIR(found.st_mode) && found.st_uid == ::geteuid())
      folders.push_back(path);
  }
  return folders;
}

/// Survives a folder's new name, and no copy has it.
std::string inode_of(const fs::path& folder) {
  struct stat found = {};
  return ::stat(folder.c_str(), &found) == 0 ? std::to_string(found.st_ino) : "";
}

MemoryRun write_run(const fs::path& checkpoints, const std::string& run) {
  MemoryRun written{.run = run, .time = random_digits()};
  write_file(checkpoints / kRunFile, concat(written.run, " ", written.time, " ", inode_of(checkpoints), "\n"));
  return written;
}

}  // namespace

std::string random_digits() {
  std::random_device device;
  std::string digits;
  while (digits.size() < kDigits) digits += "0123456789abcdef"[device() % 16];
  return digits;
}

std::optional<MemoryRun> memory_run(const fs::path& checkpoints) {
  const auto text = small_file(checkpoints / kRunFile);
  if (!text) return std::nullopt;
  std::istringstream words(*text);
  MemoryRun found;
  std::string inode;
  words >> found.run >> found.time >> inode;
  if (!are_digits(found.run) || !are_digits(found.time) || inode != inode_of(checkpoints)) return std::nullopt;
  return found;
}

MemoryRun make_memory_run(const fs::path& checkpoints) {
  if (const auto found = memory_run(checkpoints)) return *found;
  make_folder(checkpoints, "name another: --checkpoint.save");
  return write_run(checkpoints, random_digits());
}

std::string begin_memory_time(const fs::path& checkpoints) {
  return write_run(checkpoints, make_memory_run(checkpoints).run).time;
}

fs::path memory_folder(const fs::path& parent, const std::string& run, const std::string& recipe) {
  return parent / (name_of_run(run) + recipe);
}

void make_memory_folder(const fs::path& folder) {
  const auto need = [&](bool holds, const std::string& got) {
    if (!holds)
      throw ConfigError(rule_got_fix(
          concat("The run must have a folder in checkpoint.memory_folder that is its user's alone: ", folder.string(),
                 "."),
          got, "remove it if it is yours, or name another place: --checkpoint.memory_folder FOLDER"));
  };
  const bool there = ::mkdir(folder.c_str(), S_IRWXU) == 0 || errno == EEXIST;
  need(there, std::strerror(errno));
  struct stat found = {};
  const bool seen = ::lstat(folder.c_str(), &found) == 0;
  need(seen, std::strerror(errno));
  need(S_ISDIR(found.st_mode), S_ISLNK(found.st_mode) ? "a link" : "no folder");
  need(found.st_uid == ::geteuid(), concat("a folder of user ", found.st_uid));
  need((found.st_mode & (S_IRWXG | S_IRWXO)) == 0, "a folder that others may enter");
}

void remove_other_recipes(const fs::path& folder) {
  const std::string name = folder.filename();
  const std::string run = name.substr(0, name.rfind('-'));
  for (const fs::path& other : folders_of(folder.parent_path(), run.substr(run.rfind('-') + 1))) {
    std::error_code ignored;
    if (other.filename() != folder.filename()) fs::remove_all(other, ignored);
  }
}

std::optional<std::int64_t> newest_in_memory(const fs::path& parent, const fs::path& checkpoints) {
  const auto run = memory_run(checkpoints);
  if (!run) return std::nullopt;
  std::optional<std::int64_t> newest;
  for (const fs::path& folder : folders_of(parent, run->run)) newest = std::max(newest, newest_checkpoint(folder));
  return newest;
}

std::uint64_t bytes_in_memory(const fs::path& parent, const fs::path& checkpoints) {
  const auto run = memory_run(checkpoints);
  std::uint64_t bytes = 0;
  if (!run) return bytes;
  for (const fs::path& folder : folders_of(parent, run->run)) {
    std::error_code error;
    for (auto entry = fs::recursive_directory_iterator(folder, error);
         !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      std::error_code gone;
      const std::uintmax_t size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
      if (!gone) bytes += size;
    }
  }
  return bytes;
}

bool is_memory(const fs::path& folder) {
  struct statfs found = {};
  return ::statfs(folder.c_str(), &found) == 0 && (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
}

}  // namespace megatron::supervise
