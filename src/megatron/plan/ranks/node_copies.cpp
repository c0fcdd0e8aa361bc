#include "megatron/plan/ranks/node_copies.h"

#include <algorithm>
#include <functional>
#include <set>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::plan {

Nodes nodes_of(const std::vector<int>& lowest) {
  Nodes nodes;
  for (int rank = 0; rank < std::ssize(lowest); ++rank) {
    const int first = lowest[static_cast<std::size_t>(rank)];
    if (first < 0 || first > rank || lowest[static_cast<std::size_t>(first)] != first)
      throw std::logic_error(concat("rank ", rank, " and rank ", first, " do not agree on which ranks see one folder"));
    if (first == rank) {
      nodes.push_back({rank});
      continue;
    }
    std::ranges::find(nodes, first, [](const std::vector<int>& node) { return node.front(); })->push_back(rank);
  }
  return nodes;
}

std::size_t node_of(const Nodes& nodes, int rank) {
  const auto node = std::ranges::find_if(
      nodes, [&](const std::vector<int>& ranks) { return std::ranges::binary_search(ranks, rank); });
  if (node == nodes.end()) throw std::logic_error(concat("rank ", rank, " is on no node"));
  return static_cast<std::size_t>(node - nodes.begin());
}

std::vector<FileCopy> neighbour_copies(const Nodes& nodes, const std::vector<std::uint64_t>& bytes) {
  std::vector<FileCopy> copies;
  if (nodes.size() < 2) return copies;
  const auto bytes_of = [&](int rank) { return bytes.at(static_cast<std::size_t>(rank)); };
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    std::vector<int> largest_first = nodes[n];
    std::ranges::stable_sort(largest_first, std::ranges::greater(), bytes_of);
    const std::vector<int>& keepers = nodes[(n + 1) % nodes.size()];
    std::vector<std::uint64_t> load(keepers.size(), 0);
    for (const int rank : largest_first) {
      if (bytes_of(rank) == 0) continue;
      const auto least = static_cast<std::size_t>(std::ranges::min_element(load) - load.begin());
      copies.push_back({rank, keepers[least]});
      load[least] += bytes_of(rank);
    }
  }
  std::ranges::sort(copies, {}, &FileCopy::from);
  return copies;
}

namespace {

/// What each rank asks for, at most `most` blocks at a time, without what a rank of its node before it asks for.
std::vector<std::vector<FileBlocks>> pieces_of(const Nodes& nodes, const std::vector<std::vector<FileBlocks>>& wanted,
                                               std::uint64_t most) {
  std::vector<std::vector<FileBlocks>> pieces(wanted.size());
  for (const std::vector<int>& node : nodes) {
    std::set<std::pair<std::size_t, std::uint64_t>> asked_for;
    for (const int rank : node) {
      std::vector<FileBlocks>& own = pieces.at(static_cast<std::size_t>(rank));
      for (const FileBlocks& blocks : wanted.at(static_cast<std::size_t>(rank))) {
        for (std::uint64_t block = blocks.first; block < blocks.end; ++block) {
          if (!asked_for.emplace(blocks.file, block).second) continue;
          if (!own.empty() && own.back().file == blocks.file && own.back().end == block &&
              block - own.back().first < most)
            ++own.back().end;
          else
            own.push_back({blocks.file, block, block + 1});
        }
      }
    }
  }
  return pieces;
}

}  // namespace

std::vector<BlockTransfer> plan_transfers(const Nodes& nodes, const std::vector<std::vector<std::size_t>>& holders,
                                          const std::vector<std::vector<FileBlocks>>& wanted, std::uint64_t most) {
  const std::vector<std::vector<FileBlocks>> pieces = pieces_of(nodes, wanted, most);
  std::size_t turns = 0;
  for (const std::vector<FileBlocks>& of_rank : pieces) turns = std::max(turns, of_rank.size());
  std::vector<BlockTransfer> transfers;
  std::vector<std::size_t> sent(nodes.size(), 0);  // by node
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      if (turn >= pieces[rank].size()) continue;
      const FileBlocks& blocks = pieces[rank][turn];
      const std::vector<std::size_t>& holding = holders.at(blocks.file);
      const std::size_t own = node_of(nodes, static_cast<int>(rank));
      if (holding.empty() || std::ranges::find(holding, own) != holding.end())
        throw std::logic_error(concat("rank ", rank, " asks for a file that its node, or no node, holds"));
      const std::size_t node = *std::ranges::min_element(holding, {}, [&](std::size_t n) { return sent.at(n); });
      transfers.push_back({nodes[node][sent[node] % nodes[node].size()], static_cast<int>(rank), blocks});
      ++sent[node];
    }
  }
  return transfers;
}

}  // namespace megatron::plan
