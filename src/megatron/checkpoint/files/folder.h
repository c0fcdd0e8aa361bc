#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/manifest.h"

// The folder of a run's checkpoints: iter_0000100/, iter_0000200/, latest. No torch here.
namespace megatron::checkpoint {

/// "iter_0000100".
std::string iteration_name(std::int64_t iteration);

/// The iter_ folder meant by `folder`: itself, or what the `latest` in it (or in its `checkpoints`) names. Throws
/// Damage where there is none, which names the whole checkpoints that are there; ConfigError for a file.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder);

/// Whether `folder` is there and named like a checkpoint, whatever it holds.
bool is_iteration_folder(const std::filesystem::path& folder);

/// Whether `folder` has the file that says which of its checkpoints is the last: this program has saved there.
bool has_latest(const std::filesystem::path& folder);

/// Whether `folder`, or its `checkpoints`, has checkpoints, or is one. Damage is for the loading to report: a run that
/// took a damaged checkpoint for none would begin again from nothing.
bool has_checkpoint(const std::filesystem::path& folder);

/// What to resume from, best first: what find_checkpoint() finds, then the earlier iterations beside it, the newest
/// first; where `latest` is damaged or names what is missing, all that exist. Of one iter_ folder: itself
/// alone. Never empty, and nothing is looked into.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& folder);

/// The folder that holds the iter_ folders: `folder` or its `checkpoints`. Throws ConfigError where there are none, and
/// for one checkpoint.
std::filesystem::path checkpoints_folder(const std::filesystem::path& folder);

/// The manifest of an iter_ folder. Throws Damage, which names a checkpoint that may serve instead, NewerVersion, and
/// std::runtime_error where the system fails: the checkpoint may be whole.
Manifest read_manifest(const std::filesystem::path& iteration_folder);

/// Throws Damage for a manifest that is whole but cannot be that of a checkpoint in this folder: one without tensors,
/// or of another iteration than the folder's name says.
void check_whole(const std::filesystem::path& iteration_folder, const Manifest& manifest);

/// Throws ConfigError, which begins with `job`, where `folder` has checkpoints, is one or lies in one: what is written
/// new (reshard, import) must not mix with what is there. Looks alone.
void check_new_folder(const std::filesystem::path& folder, const std::string& job);

/// `damage` of a checkpoint, said with the newest whole one (as superfluous() knows them), if there is one.
Damage with_another(const Damage& damage, const std::filesystem::path& iteration_folder);

/// What two ranks that see the same checkpoint both get: a text of the manifest's size and hash, or that there is none.
std::string fingerprint(const std::filesystem::path& iteration_folder);

/// Notes in an iter_ folder why a run has passed it over, so that it never counts among those that superfluous() keeps.
/// A folder that cannot be written stays as it is.
void mark_damaged(const std::filesystem::path& iteration_folder, const std::string& problem);
bool is_marked_damaged(const std::filesystem::path& iteration_folder);
/// Takes the mark away, of a checkpoint that is whole again. A folder that cannot be written stays as it is.
void remove_mark(const std::filesystem::path& iteration_folder);

/// Throws Damage, as read_manifest(), where the manifest of an iter_ folder is not whole, or one of its files is
/// missing or of another size; NewerVersion; std::runtime_error where the system fails. Reads no data.
void check_structure(const std::filesystem::path& iteration_folder);
/// The files of a checkpoint that are missing or of another size, one message each. Reads no data.
std::vector<std::string> missing_files(const std::filesystem::path& iteration_folder, const Manifest& manifest);

/// The iterations of the iter_ folders in `folder`, ascending, whatever those hold; none where it is no folder. Throws
/// where it cannot be read.
std::vector<std::int64_t> iterations_in(const std::filesystem::path& folder);

/// The iterations in `folder` that are of a newer version, ascending. publish() does not replace them.
std::vector<std::int64_t> newer_iterations(const std::filesystem::path& folder);

/// Makes the folder where it is not there, and removes what killed programs left in it.
void prepare_folder(const std::filesystem::path& folder);

/// Where iteration `name` of `folder` is written until publish().
std::filesystem::path temporary_folder(const std::filesystem::path& folder, const std::string& name);

/// Gives the finished temporary folder its name, durably, then makes `latest` say it. At every moment `latest`, if it
/// exists, names a whole checkpoint. Throws NewerVersion, having changed nothing, where the name is that of a
/// checkpoint of a newer version. A std::runtime_error may leave the new checkpoint whole under its name with `latest`
/// as it was: it says so. What had the name before is removed; where that fails a warning on stderr says so.
void publish(const std::filesystem::path& folder, const std::filesystem::path& temporary, const std::string& name);

/// Lets `latest` name this iter_ folder where it names none that is there, or cannot be read. A folder that cannot be
/// written stays as it is.
void mend_latest(const std::filesystem::path& iteration_folder);

/// Puts `temporary` in the place of the folder `final` where the two cannot change places in one operation: `final` is
/// first renamed to .old- and its name. A program killed between the two renames leaves that for candidates().
void replace_by_renaming(const std::filesystem::path& temporary, const std::filesystem::path& final);

/// In the metadata of a run's checkpoint: how many of its last steps, in a row, had a loss or gradient that is not
/// finite; not there for none. Such weights may be of no use.
inline constexpr const char* kNonfiniteSteps = "nonfinite_steps";

/// Which iterations stay: the newest `last` (0: all) whole ones up to the one that `latest` names, what lies between
/// them, and those that `every` divides (0: none because of that). Those with kNonfiniteSteps do not count: where
/// there are more than `last`, the oldest of them go first, but for the one that `latest` names.
struct RetentionPolicy {
  std::int64_t last = 0, every = 0;
};

/// The iter_ folders in `folder` that `keep` does not keep, the oldest first; none of a newer version. Damaged ones
/// after `latest`, which a run has skipped, go too, if `latest` names a whole one; whole ones stay until they are
/// written again. Whole: check_structure() finds nothing and mark_damaged() was not called; so the last whole one
/// always stays. Throws Damage where `latest` is damaged.
std::vector<std::filesystem::path> superfluous(const std::filesystem::path& folder, const RetentionPolicy& keep);

/// Removes one of them; half a folder never looks like a checkpoint.
void remove_checkpoint(const std::filesystem::path& iteration_folder);

}  // namespace megatron::checkpoint
