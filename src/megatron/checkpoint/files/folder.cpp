#include "megatron/checkpoint/files/folder.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/named_path.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/descriptors.h"
#include "megatron/checkpoint/files/files.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kLatest = "latest";
constexpr const char* kTemporary = ".tmp-";
constexpr const char* kAside = ".old-";      // what replace_by_renaming() puts aside
constexpr const char* kDamaged = "damaged";  // in an iter_ folder: what mark_damaged() says

bool is_iteration_name(const std::string& name) {
  return name.starts_with("iter_") && name.size() >= 12 && name.find_first_not_of("0123456789", 5) == std::string::npos;
}

/// Whether save() has made this name: a folder of other programs may begin alike.
bool is_temporary_name(const std::string& name) {
  return name.starts_with(kTemporary) && is_iteration_name(name.substr(std::strlen(kTemporary)));
}

/// The number in a name of iteration_name(); -1 for other names.
std::int64_t iteration_of(const std::string& name) {
  std::int64_t iteration = -1;
  if (!is_iteration_name(name)) return -1;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), iteration);
  return error == std::errc() && iteration_name(iteration) == name ? iteration : -1;
}

/// Without the slash at its end, which hides the name.
fs::path without_slash(const fs::path& folder) { return folder.has_filename() ? folder : folder.parent_path(); }

/// "a/b" of "a/b/iter_0000001", "." of "iter_0000001".
fs::path parent_of(const fs::path& iteration_folder) {
  const fs::path parent = without_slash(iteration_folder).parent_path();
  return parent.empty() ? "." : parent;
}

/// Throws Damage where there is no such file, std::runtime_error where the system fails.
std::string read_whole(const fs::path& path, std::uint64_t limit) {
  ::close(open_to_read(path));
  try {
    return read_file(path, limit);
  } catch (const ConfigError& e) {
    throw Damage(e.what());
  }
}

Manifest manifest_in(const fs::path& iteration_folder) {
  const fs::path path = iteration_folder / kManifest;
  if (!fs::exists(path))
    throw Damage(rule_got_fix(concat(path.string(), ": a checkpoint must have its manifest."), "no such file",
                              concat("copy the whole checkpoint again; or ", kLoadAnother)));
  return parse_manifest(read_whole(path, kMaxManifestBytes), path.string());
}

/// check_structure(), which looks at no other checkpoint.
void look_at(const fs::path& iteration_folder) {
  const Manifest manifest = manifest_in(iteration_folder);
  check_whole(iteration_folder, manifest);
  for (const FileRecord& file : manifest.files) CheckedReader(iteration_folder, file);
}

/// The whole checkpoints in `folder`, as a fix; empty: there are none.
std::string whole_ones(const fs::path& folder) {
  std::string names;
  for (const std::int64_t iteration : iterations_in(folder)) {
    try {
      look_at(folder / iteration_name(iteration));
    } catch (const std::exception&) {
      continue;
    }
    names += (names.empty() ? "" : ", ") + (folder / iteration_name(iteration)).string();
  }
  return names.empty() ? "" : "name one that is whole: " + names;
}

std::string folder_rule() {
  return concat("a folder must be named: a run's, that of its checkpoints (with ", kLatest,
                ") or one checkpoint (with ", kManifest, ").");
}

/// What to name instead of `folder`, which has no checkpoint.
std::string another_folder(const fs::path& folder) {
  if (const std::string near = nearest_beside(folder); !fs::exists(folder) && !near.empty()) return near;
  if (fs::is_regular_file(folder / "config.json"))
    return concat("megatron checkpoint import --from ", folder.string(), " --output FOLDER makes a checkpoint of it");
  return "the folder that megatron train has written, its --train.out";
}

/// What `folder`/latest says.
std::string latest_name(const fs::path& folder) {
  std::string name = read_whole(folder / kLatest, 4096);
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back()))) name.pop_back();
  if (iteration_of(name) < 0)
    throw Damage(rule_got_fix(
        concat((folder / kLatest).string(), ": must name a checkpoint in the same folder, like iter_0000100."),
        concat("\"", printable(name), "\""), whole_ones(folder)));
  return name;
}

bool is_whole(const fs::path& iteration_folder) {
  try {
    look_at(iteration_folder);
  } catch (const Unreadable&) {
    return false;
  }
  return !is_marked_damaged(iteration_folder);
}

/// Of a whole one.
bool ends_in_nonfinite_steps(const fs::path& iteration_folder) {
  return manifest_in(iteration_folder).metadata.contains(kNonfiniteSteps);
}

bool is_newer(const fs::path& iteration_folder) {
  try {
    manifest_in(iteration_folder);
  } catch (const NewerVersion&) {
    return true;
  } catch (const Damage&) {
  }
  return false;
}

void remove_leftovers(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool replaced = name.starts_with(kAside) && iteration_of(name.substr(std::strlen(kAside))) >= 0 &&
                          fs::exists(folder / name.substr(std::strlen(kAside)));
    if (entry.symlink_status().type() == fs::file_type::directory && (replaced || is_temporary_name(name)))
      leftovers.push_back(entry.path());
  }
  for (const fs::path& leftover : leftovers) fs::remove_all(leftover);
}

/// Renames `temporary` to `final`; where a folder of that name exists, the two change places in one operation, if the
/// file system has it.
void exchange(const fs::path& temporary, const fs::path& final) {
  if (!fs::exists(final)) return fs::rename(temporary, final);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    throw std::runtime_error(concat("cannot replace ", final.string(), ": ", std::strerror(errno)));
  replace_by_renaming(temporary, final);
}

}  // namespace

std::string iteration_name(std::int64_t iteration) {
  const std::string digits = std::to_string(iteration);
  return "iter_" + std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
}

void check_whole(const fs::path& iteration_folder, const Manifest& manifest) {
  const auto damaged = [&](const std::string& rule, const std::string& got) {
    throw Damage(rule_got_fix(concat((iteration_folder / kManifest).string(), ": ", rule), got, kLoadAnother));
  };
  const std::int64_t named = iteration_of(without_slash(iteration_folder).filename());
  if (named >= 0 && named != manifest.iteration)
    damaged("must be of the iteration that its folder's name says.", concat("iteration ", manifest.iteration));
  if (manifest.tensors.empty()) damaged("a checkpoint must hold tensors.", "none");
}

bool is_iteration_folder(const fs::path& folder) {
  return is_iteration_name(without_slash(folder).filename()) && fs::is_directory(folder);
}

bool has_latest(const fs::path& folder) { return fs::exists(folder / kLatest); }

bool has_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifest)) return true;
  for (const fs::path& place : {folder, folder / "checkpoints"})
    if (fs::exists(place / kLatest) || !iterations_in(place).empty()) return true;
  return false;
}

fs::path find_checkpoint(const fs::path& folder) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw ConfigError(
        rule_got_fix(concat(folder.string(), ": ", folder_rule()), "a file",
                     has_checkpoint(parent_of(folder)) ? parent_of(folder).string() : another_folder(folder)));
  if (fs::exists(folder / kManifest)) return without_slash(folder);
  if (is_iteration_folder(folder)) read_manifest(folder);  // says that it has none
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    if (!fs::exists(place / kLatest)) continue;
    std::string name = latest_name(place);
    while (!fs::exists(place / name / kManifest)) {
      const std::string now = latest_name(place);
      if (now == name)
        throw Damage(rule_got_fix(concat((place / kLatest).string(), ": must name a checkpoint in the same folder."),
                                  concat(name, ", which is not there or has no ", kManifest), whole_ones(place)));
      name = now;  // a run under way has saved a newer one and removed this meanwhile
    }
    return place / name;
  }
  std::string fix;
  for (const fs::path& place : {folder, folder / "checkpoints"}) fix += fix.empty() ? whole_ones(place) : "";
  throw Damage(rule_got_fix(folder_rule(), place_text(folder), fix.empty() ? another_folder(folder) : fix));
}

std::vector<fs::path> candidates(const fs::path& folder) {
  if (fs::exists(folder / kManifest) || is_iteration_name(without_slash(folder).filename()))
    return {without_slash(folder)};
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    const std::vector<std::int64_t> iterations = iterations_in(place);
    if (!fs::exists(place / kLatest) && iterations.empty()) continue;
    std::vector<fs::path> found;
    std::int64_t before = std::numeric_limits<std::int64_t>::max();
    try {
      const std::string latest = latest_name(place);
      found.push_back(place / latest);
      if (fs::exists(found[0]))
        before = iteration_of(latest);
      else if (fs::exists(place / (kAside + latest)))
        found.push_back(place / (kAside + latest));
    } catch (const Damage&) {  // it is missing or damaged
    }
    for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration)
      if (*iteration < before) found.push_back(place / iteration_name(*iteration));
    if (!found.empty()) return found;
  }
  return {folder};
}

fs::path checkpoints_folder(const fs::path& folder) {
  if (fs::exists(folder / kManifest) || is_iteration_name(without_slash(folder).filename()))
    throw ConfigError(rule_got_fix("The folder of a run or of its checkpoints must be named.",
                                   concat(folder.string(), ", one checkpoint"), parent_of(folder).string()));
  for (const fs::path& place : {folder, folder / "checkpoints"})
    if (fs::exists(place / kLatest) || !iterations_in(place).empty()) return place;
  throw ConfigError(
      rule_got_fix(concat("The folder of a run or of its checkpoints (with ", kLatest, ") must be named."),
                   place_text(folder), another_folder(folder)));
}

void check_new_folder(const fs::path& folder, const std::string& job) {
  const auto refuse = [&](const std::string& got) {
    throw ConfigError(rule_got_fix(concat(job, ": the folder written must not hold checkpoints, nor lie in one."), got,
                                   "name a folder that does not exist"));
  };
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(fs::absolute(folder), ignored);
  for (fs::path place = without_slash(whole); place.has_relative_path(); place = place.parent_path())
    if (fs::exists(place / kManifest, ignored) || is_iteration_folder(place))
      refuse(place == without_slash(whole) ? folder.string() + ", a checkpoint"
                                           : concat(folder.string(), ", in the checkpoint ", place.string()));
  if (has_checkpoint(folder)) refuse(place_text(folder));
}

Manifest read_manifest(const fs::path& iteration_folder) {
  try {
    return manifest_in(iteration_folder);
  } catch (const Damage& damage) {
    throw with_another(damage, iteration_folder);
  }
}

Damage with_another(const Damage& damage, const fs::path& iteration_folder) {
  const std::string text = damage.what();
  if (!text.ends_with(kLoadAnother)) return damage;
  try {
    const fs::path folder = parent_of(iteration_folder);
    const std::vector<std::int64_t> iterations = iterations_in(folder);
    for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration)
      if (const fs::path other = folder / iteration_name(*iteration);
          other.filename() != without_slash(iteration_folder).filename() && is_whole(other))
        return Damage(concat(text, ": ", other.string()));
  } catch (const std::exception&) {  // what the system cannot tell now
  }
  return damage;
}

std::string fingerprint(const fs::path& iteration_folder) {
  std::string text;
  try {
    text = read_whole(iteration_folder / kManifest, kMaxManifestBytes);
  } catch (const Damage&) {
    return fs::exists(iteration_folder) ? "no manifest" : "no such folder";
  }
  return concat("a manifest of ", text.size(), " bytes, XXH3 ", std::hex, XXH3_64bits(text.data(), text.size()));
}

void mark_damaged(const fs::path& iteration_folder, const std::string& problem) {
  try {
    if (fs::exists(iteration_folder)) write_file(iteration_folder / kDamaged, problem + "\n");
  } catch (const std::exception&) {  // a folder that may not be written is not pruned either
  }
}

bool is_marked_damaged(const fs::path& iteration_folder) { return fs::exists(iteration_folder / kDamaged); }

void remove_mark(const fs::path& iteration_folder) {
  std::error_code ignored;
  fs::remove(iteration_folder / kDamaged, ignored);
}

// A folder that cannot be read is an error: a run that took it for an empty one would start over.
std::vector<std::int64_t> iterations_in(const fs::path& folder) {
  std::vector<std::int64_t> iterations;
  if (!fs::is_directory(folder)) return iterations;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (const std::int64_t iteration = iteration_of(entry.path().filename()); iteration >= 0 && entry.is_directory())
      iterations.push_back(iteration);
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

std::vector<std::int64_t> newer_iterations(const fs::path& folder) {
  std::vector<std::int64_t> newer = iterations_in(folder);
  std::erase_if(newer, [&](std::int64_t iteration) { return !is_newer(folder / iteration_name(iteration)); });
  return newer;
}

void check_structure(const fs::path& iteration_folder) {
  try {
    look_at(iteration_folder);
  } catch (const Damage& damage) {
    throw with_another(damage, iteration_folder);
  }
}

std::vector<std::string> missing_files(const fs::path& iteration_folder, const Manifest& manifest) {
  std::vector<std::string> missing;
  for (const FileRecord& file : manifest.files) {
    try {
      CheckedReader(iteration_folder, file);
    } catch (const Damage& damage) {
      missing.emplace_back(damage.what());
    }
  }
  return missing;
}

fs::path temporary_folder(const fs::path& folder, const std::string& name) { return folder / (kTemporary + name); }

void prepare_folder(const fs::path& folder) {
  fs::create_directories(folder);
  remove_leftovers(folder);
}

void replace_by_renaming(const fs::path& temporary, const fs::path& final) {
  const fs::path aside = parent_of(final) / (kAside + final.filename().string());
  fs::remove_all(aside);
  fs::rename(final, aside);
  fs::rename(temporary, final);
  fsync_folder(parent_of(final));  // the new one stays, whatever happens now
  fs::remove_all(aside);
}

void publish(const fs::path& folder, const fs::path& temporary, const std::string& name) {
  const fs::path final = folder / name;
  if (is_newer(final))
    throw NewerVersion(rule_got_fix("A checkpoint of a newer version is not replaced.", final.string(),
                                    "name another folder: --train.out, --checkpoint.save"));
  AtomicFile latest(folder / kLatest);
  latest.write(name + "\n");
  latest.flush();  // on a full disk this fails, before anything has changed
  fsync_folder(temporary);
  exchange(temporary, final);
  try {
    fsync_folder(folder);
    latest.commit();
  } catch (const std::exception& e) {
    throw std::runtime_error(concat(final.string(), " is whole, but is not known as the latest: ", message_of(e)));
  }
  std::error_code error;
  fs::remove_all(temporary, error);  // what had the name before
  if (error) write_line(stderr, concat("warning: ", temporary.string(), " is not removed: ", error.message()));
}

void mend_latest(const fs::path& iteration_folder) {
  const fs::path folder = parent_of(iteration_folder);
  const std::string name = without_slash(iteration_folder).filename();
  if (iteration_of(name) < 0) return;
  try {
    if (fs::exists(folder / latest_name(folder) / kManifest)) return;  // what is damaged in it may be repaired
  } catch (const std::exception&) {                                    // it is missing or damaged
  }
  try {
    write_file(folder / kLatest, name + "\n");
  } catch (const std::exception&) {
  }
}

std::vector<fs::path> superfluous(const fs::path& folder, const RetentionPolicy& keep) {
  if (keep.last <= 0) return {};
  const std::vector<std::int64_t> iterations = iterations_in(folder);
  const std::int64_t latest = iteration_of(latest_name(folder));
  const bool latest_is_whole = is_whole(folder / iteration_name(latest));
  std::vector<fs::path> found;
  std::int64_t whole = 0, others = 0;
  std::vector<fs::path> nonfinite;
  for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration) {
    const fs::path path = folder / iteration_name(*iteration);
    const bool is_kept = keep.every > 0 && *iteration % keep.every == 0;
    if (*iteration > latest) {  // set aside by falling back, or by somebody who wrote `latest`
      if (latest_is_whole && !is_newer(path) && !is_whole(path)) found.push_back(path);
    } else if (whole >= keep.last) {
      if (!is_kept && !is_newer(path)) found.push_back(path);
    } else if (*iteration == latest ? latest_is_whole : is_whole(path)) {
      const bool counts = !ends_in_nonfinite_steps(path);
      ++(counts ? whole : others);
      if (!counts && *iteration != latest && !is_kept) nonfinite.push_back(path);
    }
  }
  // The oldest of them, which are last, as many as are more than enough.
  const auto excess = static_cast<std::size_t>(std::max<std::int64_t>(0, whole + others - keep.last));
  if (latest_is_whole)
    found.insert(found.end(), nonfinite.end() - static_cast<std::ptrdiff_t>(std::min(excess, nonfinite.size())),
                 nonfinite.end());
  std::ranges::sort(found, {}, [](const fs::path& path) { return iteration_of(path.filename()); });
  return found;
}

void remove_checkpoint(const fs::path& iteration_folder) {
  const fs::path doomed = temporary_folder(parent_of(iteration_folder), without_slash(iteration_folder).filename());
  fs::remove_all(doomed);
  fs::rename(iteration_folder, doomed);
  fs::remove_all(doomed);
}

}  // namespace megatron::checkpoint
