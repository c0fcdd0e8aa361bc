#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

// The folder in which a node's memory keeps a run's newest checkpoints (checkpoint.memory_interval). It outlives the
// run's processes, so it must be told from those of other runs.
namespace megatron::supervise {

/// 16 hexadecimal digits, drawn by the system.
std::string random_digits();

/// By what a run knows its checkpoints in memory, 16 hexadecimal digits each.
struct MemoryRun {
  std::string run;   ///< in the names of its folders
  std::string time;  ///< in its checkpoints: another one after each departure from those that nodes keep

  bool operator==(const MemoryRun&) const = default;
};

/// That of a folder of checkpoints: a run that starts over there, after somebody has removed the folder, has another,
/// and so has a copy of the folder. Nothing where there is none.
std::optional<MemoryRun> memory_run(const std::filesystem::path& checkpoints);

/// memory_run(), drawn and written where there is none.
MemoryRun make_memory_run(const std::filesystem::path& checkpoints);

/// From now on none of the checkpoints that nodes keep is the run's, those of nodes that are away among them. Returns
/// the new time.
std::string begin_memory_time(const std::filesystem::path& checkpoints);

/// `parent`/megatron-USER-RUN-RECIPE. `recipe`: a digest of what checkpoints of the run mean.
std::filesystem::path memory_folder(const std::filesystem::path& parent, const std::string& run,
                                    const std::string& recipe);

/// Makes the folder for this user alone, or takes the one that is there. Throws ConfigError where it cannot be made, is
/// a link or no folder, or where it is another user's or others may enter it: what lies there would be theirs.
void make_memory_folder(const std::filesystem::path& folder);

/// Removes this user's folders of the same run beside `folder`, whose recipe was another.
void remove_other_recipes(const std::filesystem::path& folder);

/// The newest iteration that this user's folders of the run name.
std::optional<std::int64_t> newest_in_memory(const std::filesystem::path& parent,
                                             const std::filesystem::path& checkpoints);

/// Bytes of this user's folders of the run.
std::uint64_t bytes_in_memory(const std::filesystem::path& parent, const std::filesystem::path& checkpoints);

/// Whether the file system of `folder` is in memory (tmpfs, ramfs).
bool is_memory(const std::filesystem::path& folder);

}  // namespace megatron::supervise
