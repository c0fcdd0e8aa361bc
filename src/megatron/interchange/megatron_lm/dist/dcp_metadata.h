#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "megatron/checkpoint/slices/slices.h"

// The index of a folder of torch.distributed.checkpoint: the pickle in its file ".metadata". No torch here.
namespace megatron::interchange {

/// Bytes of a file of the folder; an archive of torch.save each.
struct DcpPlace {
  std::string file;  ///< a plain name, without folders
  std::uint64_t offset = 0, size = 0;
};

struct DcpChunk {
  checkpoint::Box box;  ///< which part of its tensor
  DcpPlace place;
};

struct DcpTensor {
  std::string dtype;  ///< safetensors' name; Python's where that has none
  std::vector<std::int64_t> shape;
  std::vector<DcpChunk> chunks = {};  ///< disjoint, together the whole tensor
};

struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpPlace> objects;  ///< what is no tensor
};

/// Checks that every size is one, that the chunks of a tensor cover it once, and that each has its place in a file
/// whose name cannot leave the folder; that the file is as long is for the caller to check. Throws ConfigError naming
/// `file` for anything else.
DcpMetadata read_dcp_metadata(std::span<const std::byte> bytes, const std::string& file);

}  // namespace megatron::interchange
