#include "megatron/checkpoint/folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/checkpoint/files.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kLatest = "latest";
constexpr const char* kTemporary = ".tmp-";
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

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

/// Of the iter_ folders in `folder`, ascending.
std::vector<std::int64_t> iterations_in(const fs::path& folder) {
  std::vector<std::int64_t> iterations;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
    if (const std::int64_t iteration = iteration_of(entry.path().filename()); iteration >= 0 && entry.is_directory())
      iterations.push_back(iteration);
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

/// What `folder`/latest says.
std::string latest_name(const fs::path& folder) {
  std::string name = read_file(folder / kLatest, 4096);
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back()))) name.pop_back();
  if (!is_iteration_name(name))
    throw Damage(
        rule_got_fix(concat((folder / kLatest).string(), ": must name a checkpoint beside it, like iter_0000100."),
                     concat("\"", name, "\"")));
  return name;
}

void remove_leftovers(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.symlink_status().type() == fs::file_type::directory && is_temporary_name(entry.path().filename()))
      leftovers.push_back(entry.path());
  for (const fs::path& leftover : leftovers) fs::remove_all(leftover);
}

/// Renames `temporary` to `final`; where a folder of that name exists, the two change places in one operation.
void exchange(const fs::path& temporary, const fs::path& final) {
  if (!fs::exists(final)) {
    fs::rename(temporary, final);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) != 0) {
    throw std::runtime_error(concat("cannot replace ", final.string(), ": ", std::strerror(errno)));
  }
}

}  // namespace

std::string iteration_name(std::int64_t iteration) {
  const std::string digits = std::to_string(iteration);
  return "iter_" + std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
}

bool has_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifest)) return true;
  for (const fs::path& place : {folder, folder / "checkpoints"})
    if (fs::exists(place / kLatest) || !iterations_in(place).empty()) return true;
  return false;
}

fs::path find_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifest)) return folder;
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    if (!fs::exists(place / kLatest)) continue;
    fs::path found = place / latest_name(place);
    if (!fs::exists(found / kManifest))
      throw Damage(rule_got_fix(concat((place / kLatest).string(), ": must name a checkpoint beside it."),
                                concat(found.filename().string(), ", which is not there or has no ", kManifest)));
    return found;
  }
  throw Damage(
      rule_got_fix(concat(folder.string(), ": must be a folder of checkpoints or one checkpoint."),
                   concat(fs::exists(folder) ? "a folder" : "nothing", " with neither ", kLatest, " nor ", kManifest)));
}

std::vector<fs::path> candidates(const fs::path& folder) {
  if (fs::exists(folder / kManifest) || is_iteration_name(folder.filename())) return {folder};
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    std::vector<std::int64_t> iterations = iterations_in(place);
    if (!fs::exists(place / kLatest) && iterations.empty()) continue;
    std::vector<fs::path> found;
    std::int64_t before = std::numeric_limits<std::int64_t>::max();
    try {
      const std::string latest = latest_name(place);
      found.push_back(place / latest);
      before = iteration_of(latest);
    } catch (const ConfigError&) {  // it is not there or says nothing
    }
    for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration)
      if (*iteration < before) found.push_back(place / iteration_name(*iteration));
    if (!found.empty()) return found;
  }
  return {folder};
}

Manifest read_manifest(const fs::path& iteration_folder) {
  const fs::path path = iteration_folder / kManifest;
  std::string text;
  try {
    text = read_file(path, kMaxManifestBytes);
  } catch (const ConfigError& e) {
    throw Damage(e.what());
  }
  return parse_manifest(text, path.string());
}

void check_structure(const fs::path& iteration_folder) {
  for (const FileRecord& file : read_manifest(iteration_folder).files) CheckedReader(iteration_folder, file);
}

fs::path temporary_folder(const fs::path& folder, const std::string& name) { return folder / (kTemporary + name); }

void prepare_folder(const fs::path& folder) {
  fs::create_directories(folder);
  remove_leftovers(folder);
}

void publish(const fs::path& folder, const fs::path& temporary, const std::string& name) {
  fsync_folder(temporary);
  exchange(temporary, folder / name);
  fsync_folder(folder);
  write_file(folder / kLatest, name + "\n");
  fs::remove_all(temporary);  // what had the name before
}

std::vector<fs::path> superfluous(const fs::path& folder, const Keep& keep) {
  if (keep.last <= 0) return {};
  const std::vector<std::int64_t> iterations = iterations_in(folder);
  const std::int64_t latest = iteration_of(latest_name(folder));
  std::vector<fs::path> found;
  for (std::size_t k = 0; k + static_cast<std::size_t>(keep.last) < iterations.size(); ++k)
    if (iterations[k] != latest && (keep.every <= 0 || iterations[k] % keep.every != 0))
      found.push_back(folder / iteration_name(iterations[k]));
  return found;
}

void remove_checkpoint(const fs::path& iteration_folder) {
  const fs::path doomed = temporary_folder(iteration_folder.parent_path(), iteration_folder.filename());
  fs::remove_all(doomed);
  fs::rename(iteration_folder, doomed);
  fs::remove_all(doomed);
}

}  // namespace megatron::checkpoint
