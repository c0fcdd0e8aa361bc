#pragma once
#include <exception>
#include <filesystem>
#include <system_error>
#include <vector>

#include "megatron/base/files/file.h"

namespace megatron::app {

/// Makes a folder; where its job then fails, what was made is gone again, unless something lies in it.
class MadeFolder {
 public:
  explicit MadeFolder(const std::filesystem::path& path) {
    for (auto part = path.lexically_normal(); !part.empty() && !std::filesystem::exists(part);
         part = part.parent_path())
      made_.push_back(part);
    make_folder(path);
  }
  ~MadeFolder() {
    std::error_code not_empty;
    if (std::uncaught_exceptions() > exceptions_)
      for (const auto& part : made_) std::filesystem::remove(part, not_empty);
  }
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;

 private:
  std::vector<std::filesystem::path> made_;  ///< the innermost first
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace megatron::app
