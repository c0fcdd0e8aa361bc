#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/checkpoint/slices/slices.h"

// manifest.json: what a checkpoint holds and where. No torch here.
namespace megatron::checkpoint {

/// A checkpoint that cannot be read: another one may do. Other ConfigErrors say that a whole checkpoint does not fit
/// what is asked for.
struct Unreadable : ConfigError {
  using ConfigError::ConfigError;
};
/// Its files are not what its manifest says, or the manifest is not whole.
struct Damage : Unreadable {
  using Unreadable::Unreadable;
};
/// A newer megatron wrote it, which may read it: it is never marked as damaged, replaced or removed.
struct NewerVersion : Unreadable {
  using Unreadable::Unreadable;
};

/// How what is wrong with a checkpoint ends: with_another() (folder.h) adds which.
inline constexpr const char* kLoadAnother = "load another checkpoint of the run";

/// Reading takes some 20 times as much memory, whatever the text holds. Checkpoints of some TiB have as long ones.
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 27;

/// Files are checksummed in blocks of this size, so that a rank that needs a part can check just that part.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

struct FileRecord {
  std::string name;  ///< in the checkpoint's folder
  std::uint64_t size = 0;
  std::vector<std::uint64_t> block_hashes;  ///< XXH3-64 of each block, the last one shorter
};

/// One stored slice of a tensor.
struct SliceRecord {
  Box box;
  std::size_t file = 0;     ///< index into Manifest::files
  std::uint64_t begin = 0;  ///< bytes from the start of the file
};

struct TensorRecord {
  std::string dtype;  ///< safetensors' name, "F32"
  std::vector<std::int64_t> shape;
  std::vector<SliceRecord> slices;  ///< disjoint, together the whole tensor
};

struct Manifest {
  std::int64_t iteration = 0;
  std::map<std::string, std::string> metadata;
  std::vector<FileRecord> files;
  std::map<std::string, TensorRecord> tensors;  ///< by name
};

/// The text of manifest.json: {"format", "version", "xxh3": of the body's text, "body"}.
std::string manifest_text(const Manifest& manifest);

/// Reads it back and checks everything that can be checked without the files: the checksum, that names stay in the
/// folder, that slices lie in their tensors and files, make up each tensor exactly once and share no bytes. Throws
/// Damage or NewerVersion naming `file`.
Manifest parse_manifest(std::string_view text, const std::string& file);

}  // namespace megatron::checkpoint
