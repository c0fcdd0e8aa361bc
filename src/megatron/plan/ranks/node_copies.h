#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

// Checkpoints in the memory of nodes (checkpoint.memory_interval): who keeps a copy of whose file, and who gives whom
// what a node has lost.
namespace megatron::plan {

/// The ranks of each node, ascending; nodes by their first rank. A node is whoever sees one folder.
using Nodes = std::vector<std::vector<int>>;

/// `lowest[r]`: the lowest rank that sees the folder which rank r sees. Throws std::logic_error where ranks that see
/// one folder do not agree on that.
Nodes nodes_of(const std::vector<int>& lowest);

/// The index in `nodes` of the node of `rank`.
std::size_t node_of(const Nodes& nodes, int rank);

/// The file of rank `from` is also kept by rank `to`, of another node.
struct FileCopy {
  int from = 0, to = 0;
  bool operator==(const FileCopy&) const = default;
};

/// Every file that has bytes is kept once more by the node after that of its rank, the last one's by the first; none
/// with one node. The ranks of a node share what it keeps: each file, the largest first, goes to the one that has the
/// fewest bytes so far. In the order of `from`. `bytes`: of each rank's file.
std::vector<FileCopy> neighbour_copies(const Nodes& nodes, const std::vector<std::uint64_t>& bytes);

/// Blocks [first, end) of file number `file`.
struct FileBlocks {
  std::size_t file = 0;
  std::uint64_t first = 0, end = 0;
  bool operator==(const FileBlocks&) const = default;
};

struct BlockTransfer {
  int from = 0, to = 0;
  FileBlocks blocks;
  bool operator==(const BlockTransfer&) const = default;
};

/// How ranks get the blocks that their nodes do not have, at most `most` at a time, and each node a block once. Each
/// rank goes through the list and does those that name it, in this order: then no two wait for each other. Ranks take
/// turns, so that none waits long for its next; so do the ranks of a node that holds a file. `holders`: of each file
/// the indices of the nodes that hold it; `wanted`: of each rank. Throws std::logic_error for a file that its own node
/// holds, or none.
std::vector<BlockTransfer> plan_transfers(const Nodes& nodes, const std::vector<std::vector<std::size_t>>& holders,
                                          const std::vector<std::vector<FileBlocks>>& wanted, std::uint64_t most);

}  // namespace megatron::plan
