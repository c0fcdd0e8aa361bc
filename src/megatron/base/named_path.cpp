#include "megatron/base/named_path.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/base/text/printable.h"

namespace megatron {
namespace fs = std::filesystem;
namespace {

/// What a folder holds, by name; nothing where it is none or cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string place_text(const fs::path& path) {
  constexpr std::size_t kShown = 3;
  std::error_code error;
  const std::string name = path.string();
  if (!fs::exists(path, error)) return name + ", which does not exist";
  if (!fs::is_directory(path, error)) return name + ", a file";
  const std::vector<std::string> names = names_in(path);
  if (names.empty()) return name + ", an empty folder";
  std::string shown;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) shown += (i > 0 ? ", " : "") + printable(names[i]);
  return concat(name, ", which holds ", shown,
                names.size() > kShown ? concat(" and ", names.size() - kShown, " more") : "");
}

std::string nearest_beside(const fs::path& path) {
  const fs::path named = path.has_filename() ? path : path.parent_path();
  const std::string near =
      nearest_name(named.filename().string(), names_in(named.has_parent_path() ? named.parent_path() : fs::path(".")));
  return near.empty() ? "" : (named.parent_path() / near).string();
}

}  // namespace megatron
