#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/node_folder.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/plan/ranks/node_copies.h"
#include "megatron/train/engine.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::train {

/// Whether a node keeps a checkpoint that an earlier start of the run has left. Collective over the world.
bool memory_is_left(const config::RunConfig& config, const comm::Group& world);
/// What nodes keep of the run, among them those that are away, is of a time before this start, which does not resume
/// from it. Collective over the world.
void leave_memory_behind(const config::RunConfig& config, const comm::Group& world);

/// The checkpoints that the run would find in the memory of this node alone, the newest first: those of which it has
/// every file. Not collective.
std::vector<std::filesystem::path> whole_in_memory(const config::RunConfig& config);

/// A run's checkpoints in the memory of its nodes (checkpoint.memory_interval): each node keeps its ranks' files of the
/// newest one in a folder that outlives them, and those of the node before it. Calls are collective over the world but
/// for those that say so.
class MemoryCopies {
 public:
  /// Makes this node's folder, finds out which ranks see the same one, and what nodes kept when the run ended. Throws,
  /// the same on every rank, comm::AgreedError where a folder cannot be had. Keeps references.
  MemoryCopies(const plan::ResolvedRun& run, const Engine& engine);

  /// Not collective, as the next: whether a checkpoint is due after `iteration`.
  bool is_due(std::int64_t iteration) const;
  /// Before anything changes what is being saved.
  void before_change();
  /// Starts to save. One that cannot be saved here is no reason to end the run: rank 0 says so on stderr, and no more
  /// are. `recipe`, `inputs`: run_metadata().
  void save(const RunState& state, const std::string& recipe, const std::string& inputs);
  /// Once a step.
  void poll();
  /// Forgets all checkpoints: the run begins elsewhere, or was rolled back.
  void clear();
  /// Removes what nodes keep of the run with other recipes. For a start that has succeeded: one that is refused loses
  /// nothing.
  void remove_others();
  /// Removes the folder: the run has ended and is saved.
  void remove();

  /// Iterations that were found and of which nodes have every file between them, the newest first; none that is as old
  /// as the newest on disk was, if somebody has set that back since. The same on every rank.
  std::vector<std::int64_t> iterations() const;
  /// What the user is told of such a one. Not collective.
  std::filesystem::path place(std::int64_t iteration) const;
  /// A folder from which this rank can load its part of it, in any layout, until close(): what its node does not have
  /// has come from others. Throws the same on every rank.
  std::filesystem::path open(std::int64_t iteration);
  /// Bytes that have come from other nodes, on all ranks, at the last open(). Not collective.
  std::uint64_t fetched_bytes() const { return fetched_bytes_; }
  /// When no rank of the node reads there any more. Not collective.
  void close();

 private:
  int rank() const { return engine_.context.world().rank(); }
  std::size_t node() const { return plan::node_of(nodes_, rank()); }
  bool leads() const { return nodes_[node()].front() == rank(); }
  void together(const std::function<void()>& work) const;
  void on_node(const std::function<void()>& work) const;
  void find_nodes(const std::string& nonce);
  void look();
  std::int64_t newest_on_disk() const;
  std::string from(int giver, const std::string& text) const;
  std::vector<plan::BlockTransfer> transfers(const checkpoint::Manifest& manifest,
                                             const std::vector<std::vector<std::size_t>>& holders) const;
  std::string fetch(const checkpoint::Manifest& manifest, const std::vector<plan::BlockTransfer>& transfers,
                    const std::filesystem::path& own, const std::filesystem::path& opened) const;
  void guarded(const std::function<void()>& work);

  const plan::ResolvedRun& run_;
  const Engine& engine_;
  std::chrono::milliseconds beat_;
  std::string owner_, time_;  // together checkpoint::kMemoryOf
  std::filesystem::path folder_;
  plan::Nodes nodes_;
  std::vector<std::vector<checkpoint::NodeCheckpoint>> kept_;  // by node, when the run began
  std::vector<checkpoint::SharedCheckpoint> whole_;
  std::uint64_t fetched_bytes_ = 0;
  std::optional<checkpoint::Saver> saver_;
  bool works_ = true;
};

}  // namespace megatron::train
