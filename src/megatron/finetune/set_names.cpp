#include "megatron/finetune/set_names.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "megatron/base/error.h"

namespace megatron::finetune {
namespace {

std::string plain_name(const std::string& text) {
  constexpr std::size_t kMaxName = 60;
  constexpr std::string_view kKept = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
  std::string name = text.substr(0, kMaxName);
  for (char& c : name)
    if (kKept.find(c) == std::string_view::npos) c = '_';
  if (name.empty()) name = "set";
  if (name.front() == '.') name.front() = '_';
  return name;
}

}  // namespace

std::vector<std::string> set_names(const std::vector<std::string>& paths) {
  std::vector<std::string> stems, names;
  for (const std::string& path : paths)
    stems.push_back(plain_name((std::filesystem::path(path) / "").lexically_normal().parent_path().stem().string()));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto folder =
        (std::filesystem::path(paths[i]) / "").lexically_normal().parent_path().parent_path().filename().string();
    names.push_back(std::ranges::count(stems, stems[i]) > 1 && !folder.empty()
                        ? concat(plain_name(folder), '_', stems[i])
                        : stems[i]);
  }
  std::set<std::string> taken;
  for (std::string& name : names) {
    const std::string first = name;
    for (int number = 2; !taken.insert(name).second; ++number) name = concat(first, '_', number);
  }
  return names;
}

}  // namespace megatron::finetune
