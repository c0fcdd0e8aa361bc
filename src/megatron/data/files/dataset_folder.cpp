#include "megatron/data/files/dataset_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"

namespace megatron::data {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 27;
constexpr std::size_t kMaxDepth = 32;

json read_json(const std::filesystem::path& path) {
  try {
    json value = parse_json(read_file(path, kMaxFile), kMaxDepth);
    if (value.is_object()) return value;
  } catch (const JsonError&) {
  }
  throw ConfigError(rule_got_fix(concat(path.string(), " must be a JSON object."), "another text",
                                 "save the dataset again: save_to_disk"));
}

/// Names in state.json of one key, each of a file in the folder.
std::vector<std::string> files_of(const json& state, const char* key, const std::filesystem::path& folder) {
  std::vector<std::string> files;
  const auto found = state.find(key);
  if (found == state.end() || found->is_null()) return files;
  const auto wrong = [&](const std::string& got) {
    throw ConfigError(
        rule_got_fix(concat((folder / "state.json").string(), ": ", key, " must name files of the folder."), got,
                     "save the dataset again: save_to_disk"));
  };
  if (!found->is_array()) wrong("no list");
  for (const json& entry : *found) {
    if (!entry.is_object() || !entry.contains("filename") || !entry["filename"].is_string()) wrong("an entry without");
    const std::string name = entry["filename"];
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      wrong(printable(name));
    files.push_back((folder / name).string());
  }
  return files;
}

std::vector<std::string> dataset_files(const std::filesystem::path& folder) {
  const json state = read_json(folder / "state.json");
  if (!files_of(state, "_indices_data_files", folder).empty())
    throw ConfigError(rule_got_fix(concat(folder.string(), " must have its rows in the order of its files."),
                                   "reordered ones", "flatten_indices() before save_to_disk"));
  std::vector<std::string> files = files_of(state, "_data_files", folder);
  if (files.empty())
    throw ConfigError(rule_got_fix(concat(folder.string(), " must have data files."), "none in its state.json",
                                   "save the dataset again: save_to_disk"));
  return files;
}

}  // namespace

std::vector<std::string> with_dataset_files(const std::vector<std::string>& inputs) {
  namespace fs = std::filesystem;
  std::vector<std::string> result;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::path folder(input);
    if (input == "-" || !fs::is_directory(folder, error)) {
      result.push_back(input);
    } else if (fs::is_regular_file(folder / "state.json", error)) {
      for (std::string& file : dataset_files(folder)) result.push_back(std::move(file));
    } else if (fs::is_regular_file(folder / "dataset_dict.json", error)) {
      std::string splits;
      const json dict = read_json(folder / "dataset_dict.json");
      if (dict.contains("splits") && dict["splits"].is_array())
        for (const json& split : dict["splits"])
          if (split.is_string())
            splits += concat(splits.empty() ? "" : " ", (folder / printable(split.get<std::string>())).string());
      throw ConfigError(rule_got_fix("a dataset of several splits must be read by its splits.", input,
                                     "--input " + (splits.empty() ? concat(input, "/SPLIT") : splits)));
    } else {
      result.push_back(input);
    }
  }
  return result;
}

}  // namespace megatron::data
