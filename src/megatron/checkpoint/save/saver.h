#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/save/messages.h"
#include "megatron/checkpoint/save/snapshot.h"
#include "megatron/checkpoint/slices/save_plan.h"
#include "megatron/comm/group.h"
#include "megatron/plan/ranks/node_copies.h"

namespace megatron::checkpoint {

class Coordinator;
class PartCopies;

/// A checkpoint is not saved: thrown on every rank alike.
struct SaveError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Saves a run's checkpoints while it trains. A save is: begin(); before_change() before the tensors change;
/// poll() once a step until it is done. At most one is under way: the next begin() waits for it.
///
/// Each rank writes its part in a thread of its own; ranks talk only within calls of theirs, so that collectives never
/// run in two threads of a rank. When a poll() finds every part on the disk, rank 0 publishes the checkpoint, again in
/// a thread; a later poll() finds that done. An error of any rank is thrown by the poll() that hears of it, on every
/// rank: as SaveError "checkpoint not saved: rank 3: …". The folder is then as it was before, or the error says that
/// the new checkpoint is there and `latest` could not be made to name it.
///
/// Where each node has a folder of its own (Options::nodes), poll() first lets files be copied to the next node and
/// then the first rank of each node publish what that has. Once all have, earlier iterations are removed: of the one
/// before, every node keeps its files until every node has the new one.
class Saver {
 public:
  struct Options {
    RetentionPolicy keep = {};
    bool asynchronous = false;  ///< false: begin() ends with finish()
    /// In finish() ranks meet this often while one of them still writes: well below the group's timeout.
    std::chrono::milliseconds beat = std::chrono::seconds(1);
    /// Where `folder` is each node's own: its nodes, which keep the newest checkpoint alone, whatever `keep` says.
    plan::Nodes nodes = {};
    bool neighbours = false;       ///< each node keeps the files of the one before it too (plan::neighbour_copies())
    std::int64_t copy_polls = 1;   ///< calls of poll() over which these are copied,
    std::int64_t copy_rounds = 8;  ///< but so many times 8 MiB of each file at least in a call
    /// Throws where `folder` may no longer be written, having become another's: asked by rank 0 before a save, before
    /// it is published and before old checkpoints are removed, also in threads of its own. Empty: nobody is asked.
    std::function<void()> require_folder = {};
  };
  Saver(std::filesystem::path folder, comm::Group world, Options options);
  /// Gives up what is under way; what was written of it is removed by the next save.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Starts to save. Rank 0's `metadata` is kept. Collective over the world.
  void begin(std::int64_t iteration, std::vector<ShardedTensor> tensors, Metadata metadata);
  /// Before anything changes the tensors of begin(): copies what is not yet on its way. Concerns this rank alone; cheap
  /// where nothing is under way.
  void before_change();
  /// Collective over the world while a save is under way (the ranks agree on that), else nothing.
  void poll();
  /// Waits for the save under way. Collective over the world.
  void finish();
  bool under_way() const { return phase_ != Phase::Idle; }

 private:
  enum class Phase : std::uint8_t { Idle, Writing, Copying, Publishing };
  void agree_on_writes(const std::string& failure, std::vector<HeldSlice> held);
  std::string write_part(const std::filesystem::path& path);
  bool wait_for_own_work(std::chrono::milliseconds time) const;

  // Where nodes have folders of their own (saver_on_nodes.cpp).
  bool by_node() const { return !options_.nodes.empty(); }
  bool leads_node() const;
  void hand_out(const std::vector<std::string>& reports);
  void copy();
  void publish_on_nodes();
  void end_on_nodes();
  void require_all_done(const std::string& own);

  /// Throws SaveError where `answer`, a message that every rank has, says that the save has failed.
  void require_done(const std::string& answer);

  std::filesystem::path folder_;
  comm::Group world_;
  Options options_;
  std::unique_ptr<Coordinator> coordinator_;  ///< of rank 0
  std::unique_ptr<Messages> messages_;
  bool agreed_ = false;
  std::vector<HeldSlice> held_;      ///< by this rank in the save that was agreed on last
  std::vector<std::size_t> writes_;  ///< which of them it writes
  Snapshot snapshot_;
  Phase phase_ = Phase::Idle;
  std::atomic<bool> given_up_ = false;
  std::future<std::string> work_;  ///< this rank's thread: what it came to, as a message
  // Of the save that was begun last, where nodes have folders of their own:
  std::string name_;                       ///< of its iteration
  std::string manifest_;                   ///< on the first rank of each node
  std::vector<std::uint64_t> file_bytes_;  ///< by rank
  std::unique_ptr<PartCopies> copies_;
};

}  // namespace megatron::checkpoint
