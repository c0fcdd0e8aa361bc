#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::data {

inline std::string shared_folder() { return unpacked_folder(); }

/// What megatron-core wrote: a little of it, and all of it, which not every machine has.
inline const std::string kOwnGolden = unpacked_folder() + "/samples/";
inline const std::string kSharedGolden = shared_folder() + "/golden/megatron/";

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::span<const std::byte> as_bytes(std::string_view bytes) { return std::as_bytes(std::span(bytes)); }

/// A new folder, in memory where the system has that: the files are synced, which a busy disk makes slow.
class TemporaryFolder {
 public:
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  static std::filesystem::path parent() {
    const std::filesystem::path memory = "/dev/shm";
    return ::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
  }

  megatron::TemporaryFolder folder_{parent()};
  std::string path_ = folder_.path().string();
};

}  // namespace megatron::data
