#include "megatron/checkpoint/folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/file.h"

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

/// What `folder`/latest says.
std::string latest_name(const fs::path& folder) {
  std::string name = read_file(folder / kLatest, 4096);
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back()))) name.pop_back();
  if (!is_iteration_name(name))
    throw ConfigError(
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
  return fs::exists(folder / kManifest) || fs::exists(folder / kLatest) || fs::exists(folder / "checkpoints" / kLatest);
}

fs::path find_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifest)) return folder;
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    if (!fs::exists(place / kLatest)) continue;
    fs::path found = place / latest_name(place);
    if (!fs::exists(found / kManifest))
      throw ConfigError(rule_got_fix(concat((place / kLatest).string(), ": must name a checkpoint beside it."),
                                     concat(found.filename().string(), ", which is not there or has no ", kManifest)));
    return found;
  }
  throw ConfigError(
      rule_got_fix(concat(folder.string(), ": must be a folder of checkpoints or one checkpoint."),
                   concat(fs::exists(folder) ? "a folder" : "nothing", " with neither ", kLatest, " nor ", kManifest)));
}

Manifest read_manifest(const fs::path& iteration_folder) {
  const fs::path path = iteration_folder / kManifest;
  return parse_manifest(read_file(path, kMaxManifestBytes), path.string());
}

fs::path begin_writing(const fs::path& folder, const std::string& name) {
  fs::create_directories(folder);
  remove_leftovers(folder);
  fs::path temporary = folder / (kTemporary + name);
  fs::create_directory(temporary);
  return temporary;
}

void publish(const fs::path& folder, const fs::path& temporary, const std::string& name) {
  fsync_folder(temporary);
  exchange(temporary, folder / name);
  fsync_folder(folder);
  write_file(folder / kLatest, name + "\n");
  fs::remove_all(temporary);  // what had the name before
}

void remove_old(const fs::path& folder, int keep_last) {
  if (keep_last <= 0) return;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_iteration_name(entry.path().filename().string())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return std::pair(a.size(), a) < std::pair(b.size(), b); });
  const std::string latest = latest_name(folder);
  for (std::size_t k = 0; k + static_cast<std::size_t>(keep_last) < names.size(); ++k) {
    if (names[k] == latest) continue;
    // Under another name first: half a folder must not look like a checkpoint.
    const fs::path doomed = folder / (kTemporary + names[k]);
    fs::remove_all(doomed);
    fs::rename(folder / names[k], doomed);
    fs::remove_all(doomed);
  }
}

}  // namespace megatron::checkpoint
