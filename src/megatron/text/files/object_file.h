#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/base/files/file.h"
#include "megatron/text/files/hugging_face/json_component.h"
#include "megatron/text/files/token_spellings.h"

namespace megatron::text {

/// Of the files of a tokenizer the largest that is read.
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 28;

/// A JSON object in a file of a tokenizer's folder; an empty one where the file is not there. Throws ConfigError for a
/// file that holds something else.
struct ObjectFile {
  ObjectFile(const std::filesystem::path& folder, const char* name)
      : path((folder / name).string()),
        there(std::filesystem::exists(path)),
        content(there ? parse_json(read_file(path, kMaxFileBytes), path) : nlohmann::json::object()),
        root(content, path + ": ") {}
  ObjectFile(const ObjectFile&) = delete;
  ObjectFile& operator=(const ObjectFile&) = delete;

  /// Its member where that is a text, else an empty one.
  std::string text(const char* key) const { return root.get(key).is_string() ? root.text(key) : std::string(); }

  std::string path;
  bool there;
  nlohmann::json content;
  Component root;
};

}  // namespace megatron::text
