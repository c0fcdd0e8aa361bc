#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Files that follow from a dataset and its settings: computed once, by whichever process needs them first, and mapped
// by all. Every rank of a run calls build_once() before it opens them, outside of any collective, so that no time-out
// of a group bounds how long a build may take.
namespace megatron::data {

/// Names for one group of such files in a cache folder: FOLDER/<hash of the description>-KIND-NAME. What differs in
/// anything that decides the contents has other names, so files never become stale.
class CacheEntry {
 public:
  /// `kind` is for those who read the folder, e.g. "GPTDataset-train". `description`: all that decides the contents, as
  /// text; it is kept beside the files.
  CacheEntry(std::filesystem::path folder, std::string kind, std::string description);

  /// Path of one of its files, e.g. file("sample_index.npy").
  std::string file(std::string_view name) const { return stem_ + std::string(name); }
  const std::string& description() const { return description_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::string stem_, description_;
};

/// Where a process says that it waits for another one. Nothing: it waits in silence.
using WaitMessage = std::function<void(const std::string&)>;

/// Sees to it that all files `names` of `entry` are there: returns at once where they are, else calls `build`, which
/// must give each its name whole (AtomicFile, NpyWriter), while holding a lock. Others who call this for the same entry
/// meanwhile, threads or processes of any machine, wait until the files are there, and tell `say` after a second and
/// then every 30 s what they wait for, whom, and for how long.
///
/// The lock is flock() on an open file (NAME "lock"), which the system lets go however its holder ends: the next one in
/// line then builds. On a network folder that holds where the file system passes locks on to its server (NFS and GPFS
/// do, Lustre when mounted with -o flock); where there are no locks, several may build at once, each the same files,
/// which appear whole either way.
///
/// Returns whether this call has built. Throws what `build` throws, ConfigError where the folder cannot be written.
bool build_once(const CacheEntry& entry, const std::vector<std::string>& names, const std::function<void()>& build,
                const WaitMessage& say = {});

}  // namespace megatron::data
