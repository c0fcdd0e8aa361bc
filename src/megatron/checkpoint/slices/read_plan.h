#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "megatron/checkpoint/files/manifest.h"
#include "megatron/checkpoint/slices/slices.h"

// Which bytes of a checkpoint's files a rank reads. No torch here.
namespace megatron::checkpoint {

/// A slice of a stored tensor that is wanted; it lies inside of the tensor.
struct WantedSlice {
  const TensorRecord* tensor = nullptr;
  Box box;
};

/// Blocks [first, end) of a file.
struct BlockRange {
  std::size_t file = 0;  ///< index into Manifest::files
  std::uint64_t first = 0, end = 0;

  auto operator<=>(const BlockRange&) const = default;
};

struct ReadPlan {
  /// Indices of the wanted slices, by where their first bytes lie: small tensors that share a block are read one after
  /// the other, and the block once.
  std::vector<std::size_t> order;
  /// What is read, in this order. A byte counts only once its block has been compared with its checksum, so whole
  /// blocks are read: of a slice whose rows are shorter than a block every block that a row touches.
  std::vector<BlockRange> blocks;
  std::uint64_t needed_bytes = 0;  ///< of the wanted slices, as they are stored
  std::uint64_t read_bytes = 0;    ///< of `blocks`
};

/// Pure: the same on every machine, from the manifest alone.
ReadPlan plan_reads(const Manifest& manifest, const std::vector<WantedSlice>& wanted);

/// The bytes of block `block` of a file: all blocks but the last are whole.
std::uint64_t block_bytes(const FileRecord& file, std::uint64_t block);

}  // namespace megatron::checkpoint
