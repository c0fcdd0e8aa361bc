#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

enum class OpKind : std::uint8_t { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, SendRecv, Barrier };
const char* to_string(OpKind kind);

/// What one rank brings to a collective. `in` is read, `out` is written; they may be one tensor.
struct OpCall {
  OpKind kind = OpKind::Barrier;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
  at::Tensor in, out;
};

/// One collective among threads. Each participant brings its arguments (`arrive`); the last to arrive checks that they
/// fit together and cuts the work into pieces. Whoever has the time then takes pieces until none is left (`work`): no
/// piece depends on who does it, so results are the same bits however the ranks are scheduled, a rank that continues
/// computing costs its peers nothing, and a single waiter can finish everything by itself.
class LocalOp {
 public:
  LocalOp(std::string name, int participants);

  const std::string& name() const { return name_; }
  /// Returns true for the last participant, after which ready() holds unless the operation was given up.
  bool arrive(int participant, OpCall call);
  bool arrived(int participant) const { return present_[static_cast<std::size_t>(participant)].load(); }
  bool ready() const { return state_.load(std::memory_order_acquire) == State::Ready; }
  /// A participant that stops waiting: later arrivals must not touch its tensors. False when all had arrived already.
  bool give_up();
  /// give_up() of a participant that will not come back: its peers find it missing.
  bool abandon(int participant);

  /// Does pieces, at most `limit`, until none is left to take. Call when ready(); returns how many it did.
  std::int64_t work(std::int64_t limit = std::numeric_limits<std::int64_t>::max());
  /// One participant's equal part of the pieces. Valid when ready().
  std::int64_t share() const;
  bool done() const { return pieces_done_.load(std::memory_order_acquire) == num_pieces_; }
  /// Lets go of what the participant brought: its own thread frees it, whoever waits last. Call when done().
  void release(int participant);
  /// Why the arguments do not fit together; empty: they do. Valid when ready().
  const std::string& mismatch() const { return mismatch_; }

 private:
  enum class State : std::uint8_t { Gathering, Ready, GivenUp };

  void check_arguments();
  void plan();
  void run_piece(std::int64_t piece) const;
  void reduce_row(std::int64_t row, std::int64_t begin, std::int64_t end) const;
  void copy_row(std::int64_t row, std::int64_t begin, std::int64_t end) const;

  const std::string name_;
  std::vector<OpCall> calls_;
  std::vector<std::atomic<bool>> present_;
  std::string mismatch_;
  std::vector<const void*> in_;  ///< data of each participant's tensors; null where it brought none
  std::vector<void*> out_;
  // The work: `rows` ranges of `row_length` elements (bytes where nothing is summed), each cut into pieces.
  std::int64_t row_length_ = 0, piece_length_ = 1, pieces_per_row_ = 0, num_pieces_ = 0;
  std::atomic<int> num_arrived_{0};
  std::atomic<State> state_{State::Gathering};
  alignas(64) std::atomic<std::int64_t> next_piece_{0};
  alignas(64) std::atomic<std::int64_t> pieces_done_{0};
};

}  // namespace megatron::comm
