#include "megatron/base/files/path_error.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/files/write_error.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

/// "cannot rename" of "filesystem error: cannot rename: Directory not empty [a] [b]".
std::string action_of(const fs::filesystem_error& error) {
  constexpr std::string_view kPrefix = "filesystem error: ";
  std::string_view text = error.what();
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  return std::string(text.substr(0, text.find(": ")));
}

bool changes_something(const std::string& action) {
  constexpr std::array kChanges = {"rename", "remove", "create", "copy", "resize", "set "};
  return std::ranges::any_of(kChanges, [&](const char* word) { return action.find(word) != std::string::npos; });
}

/// The path as a fix names it, cut to its beginning: it may have 4096 bytes. In `got` rule_got_fix() shortens it.
std::string shown(const fs::path& path) {
  constexpr std::size_t kShown = 300;
  const std::string text = path.string();
  return text.size() <= kShown ? text : concat(text.substr(0, kShown), "… (", text.size(), " bytes)");
}

/// The first folder on the way to `path` that this user may not enter; empty: none.
fs::path closed_folder(const fs::path& path) {
  fs::path folder;
  for (const fs::path& part : path.parent_path()) {
    folder /= part;
    if (access(folder.c_str(), X_OK) != 0) return errno == EACCES ? folder : fs::path();
  }
  return {};
}

std::string permission_denied(const fs::filesystem_error& error, const std::string& got) {
  fs::path closed = closed_folder(error.path1());
  if (closed.empty() && !error.path2().empty()) closed = closed_folder(error.path2());
  const std::string whose = closed.empty() ? shown(error.path1()) : shown(closed);
  return rule_got_fix(
      "A path must be open to the user who runs the job.",
      closed.empty() || closed == error.path1() ? got : concat(got, " (", closed.string(), " may not be entered)"),
      concat("let this user into ", whose, " (chmod, setfacl), or name another path"));
}

}  // namespace

std::string path_error(const fs::filesystem_error& error) {
  if (error.path1().empty()) return error.what();
  const std::string action = action_of(error), reason = error.code().message(), path = error.path1().string();
  const bool changes = changes_something(action);
  const std::string got =
      changes ? concat(action, " ", path, error.path2().empty() ? "" : " to " + error.path2().string(), ": ", reason)
              : concat(path, ": ", reason);
  switch (error.code().value()) {
    case EACCES:
    case EPERM:
      return permission_denied(error, got);
    case ELOOP:
      return rule_got_fix("A path must end at a file or a folder.", got,
                          "remove the link that leads back to itself (ls -l shows it), or name another path");
    case ENAMETOOLONG:
      return rule_got_fix("A path must have at most 255 bytes between two slashes, and 4095 in all.", got,
                          "name a shorter one");
    case ENOTDIR:
      return rule_got_fix("Before a slash of a path there must be a folder.", got, "name a path through folders");
    case ENOENT:
      return rule_got_fix("A file that a job uses must be there until its end.", got,
                          "name one that is there, and let nothing remove it meanwhile");
    case EROFS:
      return rule_got_fix("What a job writes must be on a disk that may be written.", got,
                          "name a folder on another disk");
    default:
      break;
  }
  return write_error(error.path1(), changes ? action : "cannot be looked at", error.code().value());
}

bool is_wrong_path(const fs::filesystem_error& error) {
  constexpr std::array kWrong = {EACCES, EPERM, ELOOP, ENAMETOOLONG, ENOTDIR};
  return !changes_something(action_of(error)) && std::ranges::find(kWrong, error.code().value()) != kWrong.end();
}

}  // namespace megatron
