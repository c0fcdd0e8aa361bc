#include "megatron/comm/threads/local_world.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "megatron/base/error.h"

namespace megatron::comm {
namespace {

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += concat(i ? ", " : "", ranks[i]);
  return text;
}

/// Holds the mutex; tries for a while first, because it is held for some 100 ns and sleeping costs 30 us.
class BriefLock {
 public:
  explicit BriefLock(std::mutex& mutex) : mutex_(mutex) {
    for (int i = 0; i < 200; ++i)
      if (mutex_.try_lock()) return;
    mutex_.lock();
  }
  ~BriefLock() { mutex_.unlock(); }
  BriefLock(const BriefLock&) = delete;
  BriefLock& operator=(const BriefLock&) = delete;

 private:
  std::mutex& mutex_;
};

}  // namespace

void UnwaitedOps::add(LocalRoom& room, std::shared_ptr<LocalOp> op) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({&room, std::move(op)});
}

void UnwaitedOps::remove(const LocalOp& op) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.op.get() == &op; });
  if (found != entries_.end()) entries_.erase(found);
}

std::int64_t UnwaitedOps::work(Entry& entry, std::int64_t limit) const {
  if (limit <= 0 || !entry.op->ready()) return 0;
  const std::int64_t done = entry.op->work(limit);
  if (done > 0 && entry.op->done()) entry.room->notify();
  return done;
}

void UnwaitedOps::do_share() {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_)
    if (entry.op->ready()) entry.done += work(entry, entry.op->share() - entry.done);
}

bool UnwaitedOps::do_piece() {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](Entry& entry) { return work(entry, 1) > 0; });
}

LocalWorld::LocalWorld(int size, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      own_core_(static_cast<unsigned>(size) <= std::thread::hardware_concurrency()),
      unwaited_(static_cast<std::size_t>(size)),
      states_(static_cast<std::size_t>(size), State::Running) {}

void LocalWorld::change_state(int rank, State state, const std::string& reason) {
  std::vector<std::shared_ptr<LocalRoom>> rooms;
  {
    const std::lock_guard lock(mutex_);
    State& current = states_[static_cast<std::size_t>(rank)];
    if (current != State::Running) return;
    current = state;
    if (state == State::Failed && first_failed_ < 0) {
      first_failed_ = rank;
      first_reason_ = reason;
    }
    for (const auto& [key, room] : rooms_) rooms.push_back(room);
    troubled_.store(true, std::memory_order_release);
  }
  for (const auto& room : rooms) room->notify();
}

void LocalWorld::rank_ended(int rank) { change_state(rank, State::Ended, ""); }
void LocalWorld::rank_failed(int rank, const std::string& reason) { change_state(rank, State::Failed, reason); }

std::string LocalWorld::obstacle(const std::vector<int>& missing) const {
  const std::lock_guard lock(mutex_);
  if (first_failed_ >= 0) return concat("rank ", first_failed_, " failed: ", first_reason_);
  std::vector<int> ended;
  for (const int r : missing)
    if (states_[static_cast<std::size_t>(r)] == State::Ended) ended.push_back(r);
  return ended.empty() ? "" : list_ranks(ended) + " ended without taking part";
}

std::shared_ptr<LocalRoom> LocalWorld::room(std::uint64_t parent, std::uint64_t sequence,
                                            const std::vector<int>& world_ranks) {
  const std::lock_guard lock(mutex_);
  auto& room = rooms_[{parent, sequence, world_ranks.front()}];
  if (!room) room = std::make_shared<LocalRoom>(*this, next_room_id_++, world_ranks);
  if (room->world_ranks() != world_ranks)
    throw std::invalid_argument(
        rule_got_fix("Every rank must split a group into the same sets.",
                     list_ranks(room->world_ranks()) + " on one, " + list_ranks(world_ranks) + " on another"));
  return room;
}

LocalRoom::LocalRoom(LocalWorld& world, std::uint64_t id, std::vector<int> world_ranks)
    : world_(world), id_(id), world_ranks_(std::move(world_ranks)), wake_(world.own_core()) {}

std::shared_ptr<LocalOp> LocalRoom::post(int rank, std::uint64_t sequence, OpCall call) {
  std::shared_ptr<LocalOp> op;
  {
    const BriefLock lock(mutex_);
    const auto index = static_cast<std::size_t>(sequence - first_open_);
    if (open_.size() <= index) open_.resize(index + 1);
    Entry& entry = open_[index];
    if (!entry.op) entry.op = std::make_shared<LocalOp>(concat(to_string(call.kind), " #", sequence), size());
    op = entry.op;
    ++entry.num_posted;
    while (!open_.empty() && open_.front().num_posted == size()) {
      open_.pop_front();
      ++first_open_;
    }
  }
  if (op->arrive(rank, std::move(call))) wake_.notify();
  unwaited(rank).add(*this, op);
  unwaited(rank).do_share();
  return op;
}

std::shared_ptr<LocalOp> LocalRoom::match(bool is_send, int source, int destination, int tag, at::Tensor tensor) {
  std::shared_ptr<LocalOp> op;
  {
    const BriefLock lock(mutex_);
    Mailbox& box = mailboxes_[{source, destination, tag}];
    if (!box.waiting.empty() && box.holds_sends != is_send) {
      op = box.waiting.front();
      box.waiting.pop_front();
    } else {
      op = std::make_shared<LocalOp>(
          concat("send/recv from rank ", world_ranks_[static_cast<std::size_t>(source)], " to rank ",
                 world_ranks_[static_cast<std::size_t>(destination)], ", tag ", tag),
          2);
      box.waiting.push_back(op);
      box.holds_sends = is_send;
    }
  }
  OpCall call{OpKind::SendRecv, ReduceOp::Sum, 0, {}, {}};
  (is_send ? call.in : call.out) = std::move(tensor);
  if (op->arrive(is_send ? 0 : 1, std::move(call))) wake_.notify();
  UnwaitedOps& mine = unwaited(is_send ? source : destination);
  mine.add(*this, op);
  mine.do_share();
  return op;
}

std::shared_ptr<LocalOp> LocalRoom::post_send(int source, int destination, int tag, at::Tensor tensor) {
  return match(true, source, destination, tag, std::move(tensor));
}

std::shared_ptr<LocalOp> LocalRoom::post_recv(int source, int destination, int tag, at::Tensor tensor) {
  return match(false, source, destination, tag, std::move(tensor));
}

std::vector<int> LocalRoom::missing(const LocalOp& op, const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!op.arrived(static_cast<int>(i))) ranks.push_back(world_ranks_[static_cast<std::size_t>(members[i])]);
  return ranks;
}

void LocalRoom::fail(LocalOp& op, const std::string& why) const {
  throw PeerError(concat(op.name(), " of ", list_ranks(world_ranks_), ": ", why));
}

void LocalRoom::leave(LocalOp& op, const std::vector<int>& members, int participant) {
  if (op.abandon(participant)) {
    unwaited(members[static_cast<std::size_t>(participant)]).remove(op);
  } else {
    finish(op, members, participant);
  }
}

void LocalRoom::finish(LocalOp& op, const std::vector<int>& members, int participant) {
  UnwaitedOps& mine = unwaited(members[static_cast<std::size_t>(participant)]);
  mine.remove(op);
  const auto deadline = Wake::Clock::now() + world_.timeout();
  std::string obstacle;
  const auto settled = [&] {
    do {
      if (op.ready()) return true;
    } while (mine.do_piece());
    if (world_.troubled()) obstacle = world_.obstacle(missing(op, members));
    return !obstacle.empty();
  };
  const bool in_time = op.ready() || wake_.wait_until(settled, deadline);
  if (!op.ready()) {
    const std::vector<int> late = missing(op, members);
    if (op.give_up()) {
      if (!in_time) {
        const double waited = std::chrono::duration<double>(world_.timeout()).count();
        obstacle = late.empty() ? "the other ranks have given up"
                                : concat(list_ranks(late), " did not arrive within ", waited, " s");
      }
      fail(op, obstacle);
    }
  }
  if (op.work() > 0 && op.done()) wake_.notify();
  if (!op.done() && !wake_.wait_until([&] { return op.done(); }, deadline))
    fail(op, concat("a rank stopped in the middle of it; waited ",
                    std::chrono::duration<double>(world_.timeout()).count(), " s"));
  op.release(participant);
  if (!op.mismatch().empty()) throw std::invalid_argument(op.mismatch());
}

}  // namespace megatron::comm
