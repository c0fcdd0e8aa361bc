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

namespace megatron::data {

inline std::string shared_folder() { return MEGATRON_SHARED_FOLDER; }

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

/// A new folder that is removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    // In memory where the system has that: the files are synced, which a busy disk makes slow.
    const auto memory = std::filesystem::path("/dev/shm");
    const bool in_memory = ::access(memory.c_str(), W_OK) == 0;
    std::string name =
        ((in_memory ? memory : std::filesystem::temp_directory_path()) / "megatron-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace megatron::data
