#include "megatron/plan/ranks/node_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/plan/cost/checkpoint_size.h"

namespace megatron::plan {
namespace {

/// `count` nodes of `size` ranks, one after the other.
Nodes even_nodes(int count, int size) {
  Nodes nodes(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count * size; ++rank) nodes[static_cast<std::size_t>(rank / size)].push_back(rank);
  return nodes;
}

TEST(NodeCopies, RanksThatSeeOneFolderAreANode) {
  EXPECT_EQ(nodes_of({0, 0, 0}), (Nodes{{0, 1, 2}}));
  EXPECT_EQ(nodes_of({0, 1, 0, 1, 4}), (Nodes{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(node_of(nodes_of({0, 1, 0, 1, 4}), 3), 1u);
  EXPECT_THROW(nodes_of({0, 0, 1}), std::logic_error) << "rank 1 sees another folder than rank 2 says";
  EXPECT_THROW(nodes_of({1, 1}), std::logic_error);
  EXPECT_THROW(node_of({{0, 2}}, 1), std::logic_error);
}

TEST(NodeCopies, EveryFileIsOnTwoNodesAndTheBytesAreBalanced) {
  for (const int count : {2, 3, 5, 8}) {
    for (const int size : {1, 3, 4}) {
      const Nodes nodes = even_nodes(count, size);
      std::vector<std::uint64_t> bytes;
      for (int rank = 0; rank < count * size; ++rank)
        bytes.push_back(
            random_word(7, static_cast<std::uint64_t>(count * 100 + size), static_cast<std::uint64_t>(rank)) % 1000);
      bytes[1] = 0;
      const std::vector<FileCopy> copies = neighbour_copies(nodes, bytes);
      std::set<int> copied;
      std::vector<std::uint64_t> kept(bytes.size(), 0);
      for (const FileCopy& copy : copies) {
        EXPECT_TRUE(copied.insert(copy.from).second) << "rank " << copy.from << " sends twice";
        EXPECT_EQ(node_of(nodes, copy.to), (node_of(nodes, copy.from) + 1) % nodes.size());
        EXPECT_GT(bytes[static_cast<std::size_t>(copy.from)], 0u);
        kept[static_cast<std::size_t>(copy.to)] += bytes[static_cast<std::size_t>(copy.from)];
      }
      EXPECT_EQ(copied.size(), bytes.size() - static_cast<std::size_t>(std::ranges::count(bytes, 0u)));
      const std::uint64_t largest = std::ranges::max(bytes);
      for (const std::vector<int>& node : nodes) {
        std::vector<std::uint64_t> loads;
        for (const int rank : node) loads.push_back(kept[static_cast<std::size_t>(rank)]);
        EXPECT_LE(std::ranges::max(loads) - std::ranges::min(loads), largest) << count << " nodes of " << size;
      }
    }
  }
}

TEST(NodeCopies, OneNodeCopiesNothingAndUnevenOnesShareOut) {
  EXPECT_EQ(neighbour_copies({{0, 1}}, {5, 5}), std::vector<FileCopy>{});
  EXPECT_EQ(neighbour_copies({{0, 1, 2}, {3}}, {5, 7, 1, 9}), (std::vector<FileCopy>{{0, 3}, {1, 3}, {2, 3}, {3, 0}}));
  EXPECT_EQ(neighbour_copies({{0}, {1, 2, 3}}, {5, 7, 1, 9}), (std::vector<FileCopy>{{0, 1}, {1, 0}, {2, 0}, {3, 0}}));
}

TEST(NodeCopies, TransfersGiveEachNodeWhatItAsksForOnceFromOneThatHasIt) {
  // File f is of rank f, on its node and the next; node 1 has lost everything.
  const Nodes nodes = even_nodes(3, 2);
  std::vector<std::vector<std::size_t>> holders = {{0}, {0}, {2}, {2}, {0, 2}, {0, 2}};
  std::vector<std::vector<FileBlocks>> wanted(6);
  for (const int rank : {2, 3})
    for (std::size_t file = 0; file < 6; ++file) wanted[static_cast<std::size_t>(rank)].push_back({file, 0, 20});
  wanted[4] = {{0, 3, 5}, {1, 0, 1}};
  const std::vector<BlockTransfer> transfers = plan_transfers(nodes, holders, wanted, 8);
  std::map<std::size_t, std::set<std::pair<std::size_t, std::uint64_t>>> arrived;  // by node
  std::map<int, int> sent;
  for (const BlockTransfer& transfer : transfers) {
    EXPECT_NE(transfer.from, transfer.to);
    EXPECT_LE(transfer.blocks.end - transfer.blocks.first, 8u);
    const std::size_t from = node_of(nodes, transfer.from), to = node_of(nodes, transfer.to);
    EXPECT_EQ(std::ranges::count(holders[transfer.blocks.file], from), 1);
    for (std::uint64_t block = transfer.blocks.first; block < transfer.blocks.end; ++block)
      EXPECT_TRUE(arrived[to].emplace(transfer.blocks.file, block).second) << "twice";
    ++sent[transfer.from];
  }
  EXPECT_EQ(arrived[1].size(), 6u * 20u);
  EXPECT_EQ(arrived[2], (std::set<std::pair<std::size_t, std::uint64_t>>{{0, 3}, {0, 4}, {1, 0}}));
  for (const int rank : {0, 1, 4, 5}) EXPECT_GT(sent[rank], 2) << "ranks of a node take turns";
  EXPECT_EQ(plan_transfers(nodes, holders, std::vector<std::vector<FileBlocks>>(6), 8), std::vector<BlockTransfer>{});
  wanted[0] = {{0, 0, 1}};
  EXPECT_THROW(plan_transfers(nodes, holders, wanted, 8), std::logic_error) << "its own node has it";
  wanted[0].clear();
  holders[3].clear();
  EXPECT_THROW(plan_transfers(nodes, holders, wanted, 8), std::logic_error) << "nobody has it";
}

TEST(NodeCopies, NodesKeepTwoCheckpointsOrFour) {
  config::CheckpointConfig checkpoint;
  EXPECT_EQ(checkpoints_in_memory(checkpoint, true), 0);
  checkpoint.memory_interval = 10;
  EXPECT_EQ(checkpoints_in_memory(checkpoint, false), 2);
  EXPECT_EQ(checkpoints_in_memory(checkpoint, true), 4);
  checkpoint.memory_neighbours = false;
  EXPECT_EQ(checkpoints_in_memory(checkpoint, true), 2);
}

}  // namespace
}  // namespace megatron::plan
