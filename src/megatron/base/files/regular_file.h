#pragma once
#include <cstdint>
#include <filesystem>

namespace megatron {

/// What open_regular() found.
struct OpenedFile {
  int descriptor = -1;     ///< to read; the caller closes it. -1: the file is not open
  std::uint64_t size = 0;  ///< bytes
  int error = 0;           ///< errno where the system did not open it
  bool is_other = false;   ///< it is there, but is a folder, a pipe, a socket or a device
};

/// Opens `path` for reading if it is a regular file. Never waits: a named pipe that nobody writes to would hold a
/// program forever. Every file that must have a size and positions is opened here; input text, which may come through a
/// pipe, by data::ByteStream.
OpenedFile open_regular(const std::filesystem::path& path);

/// Throws ConfigError where `path` cannot be opened so: for files that are read by other means.
void check_regular(const std::filesystem::path& path);

}  // namespace megatron
