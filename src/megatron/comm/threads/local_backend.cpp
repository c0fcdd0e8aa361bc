#include "megatron/comm/threads/local_backend.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "megatron/comm/threads/local_world.h"
#include "megatron/comm/threads/rank_threads.h"
#include "megatron/comm/threads/unwinding.h"

namespace megatron::comm {
namespace {

class LocalWork final : public Work {
 public:
  LocalWork(std::shared_ptr<LocalRoom> room, std::shared_ptr<LocalOp> op, std::vector<int> members, int participant)
      : room_(std::move(room)), op_(std::move(op)), members_(std::move(members)), participant_(participant) {}
  ~LocalWork() override {
    try {
      if (unwinding_ && op_) {
        room_->leave(*op_, members_, participant_);
      } else {
        wait();
      }
    } catch (...) {  // nobody asked: the group's next collective says it again
    }
  }
  void wait() override {
    if (error_) std::rethrow_exception(error_);
    const auto op = std::exchange(op_, nullptr);
    if (!op) return;
    try {
      room_->finish(*op, members_, participant_);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  std::shared_ptr<LocalRoom> room_;
  std::shared_ptr<LocalOp> op_;  ///< null once waited for
  std::vector<int> members_;
  int participant_;
  Unwinding unwinding_;
  std::exception_ptr error_;
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalRoom> room, int rank)
      : world_(std::move(world)), room_(std::move(room)), rank_(rank), everybody_(static_cast<std::size_t>(size())) {
    std::iota(everybody_.begin(), everybody_.end(), 0);
  }

  int rank() const override { return rank_; }
  int size() const override { return room_->size(); }
  std::string name() const override { return "local"; }

  WorkHandle all_reduce(at::Tensor inout, ReduceOp op) override {
    return post({OpKind::AllReduce, op, 0, inout, inout});
  }
  WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    return post({OpKind::AllGather, ReduceOp::Sum, 0, std::move(in), std::move(out)});
  }
  WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return post({OpKind::ReduceScatter, op, 0, std::move(in), std::move(out)});
  }
  WorkHandle broadcast(at::Tensor inout, int root) override {
    return post({OpKind::Broadcast, ReduceOp::Sum, root, inout, inout});
  }
  WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    return post({OpKind::AllToAll, ReduceOp::Sum, 0, std::move(in), std::move(out)});
  }
  WorkHandle barrier() override { return post({OpKind::Barrier, ReduceOp::Sum, 0, {}, {}}); }

  WorkHandle send(at::Tensor tensor, int destination, int tag) override {
    auto op = room_->post_send(rank_, destination, tag, std::move(tensor));
    return std::make_shared<LocalWork>(room_, std::move(op), std::vector<int>{rank_, destination}, 0);
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    auto op = room_->post_recv(source, rank_, tag, std::move(tensor));
    return std::make_shared<LocalWork>(room_, std::move(op), std::vector<int>{source, rank_}, 1);
  }

  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override {
    const std::uint64_t sequence = next_split_++;
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) return nullptr;
    std::vector<int> world_ranks;
    for (const int r : ranks) world_ranks.push_back(room_->world_ranks()[static_cast<std::size_t>(r)]);
    return std::make_shared<LocalBackend>(world_, world_->room(room_->id() + 1, sequence, world_ranks),
                                          static_cast<int>(mine - ranks.begin()));
  }

  void abort(const std::string& reason) override {
    world_->rank_failed(room_->world_ranks()[static_cast<std::size_t>(rank_)], reason);
  }

 private:
  WorkHandle post(OpCall call) {
    return std::make_shared<LocalWork>(room_, room_->post(rank_, next_collective_++, std::move(call)), everybody_,
                                       rank_);
  }

  std::shared_ptr<LocalWorld> world_;  ///< outlives its rooms
  std::shared_ptr<LocalRoom> room_;
  const int rank_;
  std::vector<int> everybody_;
  std::uint64_t next_collective_ = 0, next_split_ = 0;
};

}  // namespace

void run_ranks(int size, const std::function<void(Group)>& body, const LocalOptions& options) {
  const auto world = std::make_shared<LocalWorld>(size, options.timeout);
  std::vector<int> everybody(static_cast<std::size_t>(std::max(size, 1)));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto room = world->room(0, 0, everybody);
  run_rank_threads(
      size, [&](int rank) { body(Group(std::make_shared<LocalBackend>(world, room, rank))); },
      [&](int rank, const std::exception_ptr& error) {
        error ? world->rank_failed(rank, message_of(error)) : world->rank_ended(rank);
      },
      options.timeout, options.on_stuck);
}

void run_ranks(int size, const std::function<void(Group)>& body, std::chrono::milliseconds timeout) {
  run_ranks(size, body, LocalOptions{.timeout = timeout});
}

}  // namespace megatron::comm
