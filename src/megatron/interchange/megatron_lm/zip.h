#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

// The ZIP archives that torch.save writes: every file in them is stored as it is. No torch here.
namespace megatron::interchange {

/// Where a file of an archive lies in its bytes.
struct ZipEntry {
  std::uint64_t begin = 0, size = 0;
};

/// The files of an archive by name (also one larger than 4 GiB: Zip64). Checks that the directory, every local header
/// and every file lie in `bytes`, that no two files overlap, that none is compressed or encrypted and that no name is
/// there twice. The CRCs of
/// files are not computed. Throws ConfigError naming
/// `file` and the byte offset.
std::map<std::string, ZipEntry> read_zip(std::span<const std::byte> bytes, const std::string& file);

}  // namespace megatron::interchange
