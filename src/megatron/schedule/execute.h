#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/schedule/program.h"
#include "megatron/schedule/simulate.h"

// The virtual machine beneath validate(), simulate() and insert_communication(); not for other folders.
namespace megatron::schedule {

/// The message of an op: what crosses the boundary above a stage, activations in one direction, gradients in the other.
/// -1: the op has none, or its stage is at the end of the model.
class Messages {
 public:
  explicit Messages(const Program& program)
      : num_stages_(program.placement.num_stages()), num_microbatches_(program.num_microbatches) {}

  std::int64_t count() const { return 2 * static_cast<std::int64_t>(num_stages_) * num_microbatches_; }
  std::int64_t activation(int boundary, int microbatch) const {
    return static_cast<std::int64_t>(boundary) * num_microbatches_ + microbatch;
  }
  std::int64_t gradient(int boundary, int microbatch) const {
    return static_cast<std::int64_t>(num_stages_ + boundary) * num_microbatches_ + microbatch;
  }

  /// What a computation takes from its neighbour stage.
  std::int64_t needed_by(const Op& op) const {
    if (op.kind == Kind::Forward) return op.stage == 0 ? -1 : activation(op.stage - 1, op.microbatch);
    if (op.kind == Kind::BackwardWeight || op.stage + 1 == num_stages_) return -1;
    return gradient(op.stage, op.microbatch);
  }
  /// What a computation gives to its neighbour stage.
  std::int64_t made_by(const Op& op) const {
    if (op.kind == Kind::Forward) return op.stage + 1 == num_stages_ ? -1 : activation(op.stage, op.microbatch);
    return op.kind == Kind::BackwardWeight || op.stage == 0 ? -1 : gradient(op.stage - 1, op.microbatch);
  }
  /// What a post or wait moves.
  std::int64_t moved_by(const Op& op) const {
    switch (is_wait(op.kind) ? post_of(op.kind) : op.kind) {
      case Kind::SendActivation:
        return activation(op.stage, op.microbatch);
      case Kind::RecvActivation:
        return activation(op.stage - 1, op.microbatch);
      case Kind::SendGradient:
        return gradient(op.stage - 1, op.microbatch);
      default:
        return gradient(op.stage, op.microbatch);
    }
  }
  bool is_gradient(std::int64_t message) const { return message >= activation(num_stages_, 0); }
  int boundary(std::int64_t message) const { return static_cast<int>(message / num_microbatches_) % num_stages_; }
  int microbatch(std::int64_t message) const { return static_cast<int>(message % num_microbatches_); }

  /// The op that posts it at either end.
  Op send(std::int64_t message) const {
    if (is_gradient(message)) return {Kind::SendGradient, boundary(message) + 1, microbatch(message)};
    return {Kind::SendActivation, boundary(message), microbatch(message)};
  }
  Op recv(std::int64_t message) const {
    if (is_gradient(message)) return {Kind::RecvGradient, boundary(message), microbatch(message)};
    return {Kind::RecvActivation, boundary(message) + 1, microbatch(message)};
  }

 private:
  int num_stages_, num_microbatches_;
};

/// The ordered pairs of ranks between which messages travel, numbered.
class Links {
 public:
  explicit Links(const Placement& placement);

  int count() const { return count_; }
  /// Of the messages over a boundary; -1 where both stages are on one rank.
  int of(int boundary, bool gradient) const { return (gradient ? down_ : up_)[static_cast<std::size_t>(boundary)]; }

 private:
  int count_ = 0;
  std::vector<int> up_, down_;  ///< by boundary: of activations, of gradients
};

/// Runs every rank's ops in order, each as soon as what it waits for is there. A message travels once both of its ends
/// are posted, and a link carries one after the other. Where a program has no communication, a dependency across ranks
/// is a message posted when it is made. What is to be done before what on one rank is not checked: see validate().
class Execution {
 public:
  /// `lag`: without communication, from a gradient's arrival to the backward that needs it where a forward comes before
  /// that backward.
  Execution(const Program& program, const Costs& costs, double lag = 0);

  /// visit(rank, op, start, end) for every op, in order on each rank. False: some rank cannot continue.
  template <class Visit>
  bool run(Visit&& visit);

  /// By rank: the number of ops done.
  const std::vector<std::size_t>& position() const { return position_; }

 private:
  /// When the message is there, or -1 after noting that the rank waits for it.
  double arrival(int rank, std::int64_t message);
  void deliver(std::int64_t message, double time);
  void post(std::int64_t message, double time);
  double duration(const Op& op) const;

  const Program& program_;
  const Messages messages_;
  const Links links_;
  const bool lowered_;
  double message_time_, lag_;
  std::vector<double> cost_[4], partial_cost_[4];  ///< by kind and stage
  std::vector<std::size_t> position_;
  std::vector<double> clock_, link_free_, posted_, ready_;  ///< by rank; link; message; message
  std::vector<int> waiting_, runnable_;                     ///< by message: the rank, or -1; ranks
};

inline double Execution::duration(const Op& op) const {
  if (!is_computation(op.kind)) return 0;
  return (op.partial ? partial_cost_ : cost_)[static_cast<int>(op.kind)][static_cast<std::size_t>(op.stage)];
}

inline double Execution::arrival(int rank, std::int64_t message) {
  const double ready = ready_[static_cast<std::size_t>(message)];
  if (ready < 0) waiting_[static_cast<std::size_t>(message)] = rank;
  return ready;
}

inline void Execution::deliver(std::int64_t message, double time) {
  const int link = links_.of(messages_.boundary(message), messages_.is_gradient(message));
  if (link >= 0) {
    double& free = link_free_[static_cast<std::size_t>(link)];
    free = time = (time > free ? time : free) + message_time_;
  }
  ready_[static_cast<std::size_t>(message)] = time;
  int& waiting = waiting_[static_cast<std::size_t>(message)];
  if (waiting >= 0) runnable_.push_back(waiting);
  waiting = -1;
}

inline void Execution::post(std::int64_t message, double time) {
  double& posted = posted_[static_cast<std::size_t>(message)];
  if (posted < 0)
    posted = time;
  else
    deliver(message, time > posted ? time : posted);
}

template <class Visit>
bool Execution::run(Visit&& visit) {
  for (int rank = static_cast<int>(program_.ranks.size()) - 1; rank >= 0; --rank) runnable_.push_back(rank);
  std::size_t finished = 0;
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    const std::vector<Op>& ops = program_.ranks[static_cast<std::size_t>(rank)];
    std::size_t& position = position_[static_cast<std::size_t>(rank)];
    double& clock = clock_[static_cast<std::size_t>(rank)];
    for (; position < ops.size(); ++position) {
      const Op& op = ops[position];
      double start = clock, end = clock;
      if (is_computation(op.kind)) {
        const std::int64_t needed = lowered_ ? -1 : messages_.needed_by(op);
        double ready = needed < 0 ? 0 : arrival(rank, needed);
        if (ready < 0) break;
        if (needed >= 0 && op.kind != Kind::Forward && position > 0 && ops[position - 1].kind == Kind::Forward)
          ready += lag_;
        start = ready > start ? ready : start;
        end = start + duration(op);
        const std::int64_t made = lowered_ ? -1 : messages_.made_by(op);
        if (made >= 0) deliver(made, end);
      } else if (is_wait(op.kind)) {
        const double ready = arrival(rank, messages_.moved_by(op));
        if (ready < 0) break;
        end = ready > end ? ready : end;
      } else if (is_post(op.kind)) {
        post(messages_.moved_by(op), clock);
      }
      visit(rank, op, start, end);
      clock = end;
    }
    if (position == ops.size()) ++finished;
  }
  return finished == program_.ranks.size();
}

}  // namespace megatron::schedule
