#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

// The safetensors file format: 8 bytes little-endian header length, a JSON header, the tensors' bytes back to back. No
// torch here.
namespace megatron::checkpoint {

/// Fills the span with the bytes of a file from `offset` on, or throws.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", "I64", …
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes, from the start of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< by position in the file
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;

  std::uint64_t file_size() const { return tensors.empty() ? data_begin : tensors.back().end; }
};

/// Bytes of an element, 0 for an unknown name.
std::uint64_t dtype_bytes(const std::string& dtype);

/// Elements of a shape. Throws ConfigError (beginning with `where`) for a negative size or a product above 2^60.
std::uint64_t shape_elements(const std::vector<std::int64_t>& shape, const std::string& where);

/// Places tensors (whose begin and end are ignored) one after the other and gives their final positions; `text` becomes
/// the bytes before data_begin, which is a multiple of 64.
SafetensorsHeader make_safetensors(std::vector<SafetensorsEntry> tensors, std::map<std::string, std::string> metadata,
                                   std::string& text);

/// Reads and checks the header of a file of `file_size` bytes that messages call `file`: every size and offset lies in
/// the file, tensors neither overlap nor leave holes, names are unique, the header is at most 100 MB. Throws
/// ConfigError that names the file and the byte offset.
SafetensorsHeader read_safetensors(const ReadAt& read, std::uint64_t file_size, const std::string& file);

}  // namespace megatron::checkpoint
