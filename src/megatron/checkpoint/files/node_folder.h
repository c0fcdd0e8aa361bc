#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/manifest.h"

// A folder of checkpoints that one node sees (checkpoint.memory_interval): each iter_ folder there has the whole
// manifest, and those of its files that this node keeps. No torch here.
namespace megatron::checkpoint {

/// In the metadata: the run and the recipe that such a checkpoint is of; and which iteration `latest` of the run's
/// folder of checkpoints named when it was saved, -1 for none. Where that names an older one later, somebody has set
/// the run back.
inline constexpr const char *kMemoryOf = "memory_of", *kMemoryAfter = "memory_after";

/// As publish(), of iteration `name` in a node's folder: `files` alone of the manifest's are there. Throws Damage where
/// one of them is missing or of another size.
void publish_on_node(const std::filesystem::path& folder, const std::string& name, const std::string& manifest,
                     const std::set<std::string>& files);

/// Removes every iteration of a node's folder but `name`.
void keep_only(const std::filesystem::path& folder, const std::string& name);

/// What a node has of a checkpoint.
struct NodeCheckpoint {
  std::int64_t iteration = 0;
  std::string fingerprint;                 ///< of its manifest
  std::int64_t after = -1;                 ///< kMemoryAfter
  std::vector<std::string> held, missing;  ///< its files; held: of the size that the manifest says
};

/// Those in the node's folder that say kMemoryOf `owner`. `problems`: gets a line for each that cannot be read.
std::vector<NodeCheckpoint> checkpoints_of_node(const std::filesystem::path& folder, const std::string& owner,
                                                std::vector<std::string>& problems);

std::string to_text(const std::vector<NodeCheckpoint>& checkpoints);
std::vector<NodeCheckpoint> node_checkpoints(const std::string& text);

/// A checkpoint of which nodes have every file between them.
struct SharedCheckpoint {
  std::int64_t iteration = 0, after = -1;
  std::string fingerprint;
  std::vector<std::size_t> nodes;  ///< that have its manifest
};

/// The newest first. `by_node`: what each node has.
std::vector<SharedCheckpoint> shared_checkpoints(const std::vector<std::vector<NodeCheckpoint>>& by_node);

/// Of each of the manifest's files the indices of the nodes that hold it.
std::vector<std::vector<std::size_t>> holders_of(const SharedCheckpoint& checkpoint, const Manifest& manifest,
                                                 const std::vector<std::vector<NodeCheckpoint>>& by_node);

/// A new file of `size` bytes that takes no memory yet: zeros. Throws std::runtime_error, as the two below.
void make_empty_file(const std::filesystem::path& path, std::uint64_t size);
void write_bytes(const std::filesystem::path& path, std::uint64_t offset, std::span<const std::byte> bytes);
/// Fills `bytes`; also throws where the file ends before.
void read_bytes(const std::filesystem::path& path, std::uint64_t offset, std::span<std::byte> bytes);

}  // namespace megatron::checkpoint
