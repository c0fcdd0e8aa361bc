#include "megatron/comm/activity.h"

#include <numeric>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::comm {

void Activity::touch() {
  ++state_.operations;
  state_.since = Clock::now();
}

void Activity::begin_phase(const std::string& phase, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  state_.phase = phase;
  state_.iteration = iteration;
  state_.operation.clear();
  touch();
}

void Activity::begin_operation(std::string operation) {
  const std::lock_guard lock(mutex_);
  state_.operation = std::move(operation);
  touch();
}

void Activity::begin_collective(const char* name, const std::string& group, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  state_.collective = name;
  state_.group = group;
  state_.number = number;
  touch();
}

void Activity::wait(bool begins) {
  const std::lock_guard lock(mutex_);
  state_.waits = begins;
  touch();
}

Activity::State Activity::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Activity::report(const Figures& figures) {
  const std::lock_guard lock(mutex_);
  figures_ = figures;
}

Activity::Figures Activity::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

namespace {

class ObservedWork final : public Work {
 public:
  ObservedWork(WorkHandle inner, Activity& activity) : inner_(std::move(inner)), activity_(activity) {}
  void wait() override {
    activity_.wait(true);
    inner_->wait();
    activity_.wait(false);
  }

 private:
  WorkHandle inner_;
  Activity& activity_;
};

class ObservedBackend final : public Backend {
 public:
  /// `world_ranks`: of the group's members.
  ObservedBackend(std::shared_ptr<Backend> inner, Activity& activity, std::vector<int> world_ranks)
      : inner_(std::move(inner)), activity_(activity), world_ranks_(std::move(world_ranks)) {
    for (const int rank : world_ranks_) name_ += (name_.empty() ? "" : " ") + std::to_string(rank);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  at::Device device() const override { return inner_->device(); }

  WorkHandle all_reduce(at::Tensor inout, ReduceOp op) override {
    return begun("all_reduce", [&] { return inner_->all_reduce(std::move(inout), op); });
  }
  WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    return begun("all_gather", [&] { return inner_->all_gather(std::move(out), std::move(in)); });
  }
  WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return begun("reduce_scatter", [&] { return inner_->reduce_scatter(std::move(out), std::move(in), op); });
  }
  WorkHandle broadcast(at::Tensor inout, int root) override {
    return begun("broadcast", [&] { return inner_->broadcast(std::move(inout), root); });
  }
  WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    return begun("all_to_all", [&] { return inner_->all_to_all(std::move(out), std::move(in)); });
  }
  WorkHandle barrier() override {
    return begun("barrier", [&] { return inner_->barrier(); });
  }
  WorkHandle send(at::Tensor tensor, int destination, int tag) override {
    activity_.begin_collective("send", message(rank(), destination), messages_++);
    return observe(inner_->send(std::move(tensor), destination, tag));
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    activity_.begin_collective("recv", message(source, rank()), messages_++);
    return observe(inner_->recv(std::move(tensor), source, tag));
  }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override {
    auto part = inner_->split(ranks);
    if (!part) return nullptr;
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(world_ranks_.at(static_cast<std::size_t>(rank)));
    return std::make_shared<ObservedBackend>(std::move(part), activity_, std::move(members));
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  template <class Begin>
  WorkHandle begun(const char* name, const Begin& begin) {
    activity_.begin_collective(name, name_, collectives_++);
    return observe(begin());
  }
  WorkHandle observe(WorkHandle inner) const { return std::make_shared<ObservedWork>(std::move(inner), activity_); }
  std::string message(int from, int to) const {
    return concat(world_ranks_.at(static_cast<std::size_t>(from)), " to ",
                  world_ranks_.at(static_cast<std::size_t>(to)));
  }

  std::shared_ptr<Backend> inner_;
  Activity& activity_;
  std::vector<int> world_ranks_;
  std::string name_;
  std::uint64_t collectives_ = 0, messages_ = 0;
};

}  // namespace

Group observed(const Group& group, Activity& activity) {
  if (!group.backend()) return group;
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(std::make_shared<ObservedBackend>(group.backend(), activity, std::move(ranks)));
}

}  // namespace megatron::comm
