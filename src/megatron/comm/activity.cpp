#include "megatron/comm/activity.h"

#include <map>
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

int Activity::add_group(std::string name, std::string ranks) {
  const std::lock_guard lock(mutex_);
  state_.groups.push_back({.name = std::move(name), .ranks = std::move(ranks), .collective = ""});
  return static_cast<int>(state_.groups.size()) - 1;
}

void Activity::name_group(int group, std::string name) {
  const std::lock_guard lock(mutex_);
  state_.groups.at(static_cast<std::size_t>(group)).name = std::move(name);
}

void Activity::begin_collective(int group, const char* name) {
  const std::lock_guard lock(mutex_);
  GroupState& state = state_.groups.at(static_cast<std::size_t>(group));
  state.collective = name;
  ++state.number;
  state_.last_group = group;
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
  ObservedBackend(std::shared_ptr<Backend> inner, Activity& activity, std::string name, std::vector<int> world_ranks)
      : inner_(std::move(inner)), activity_(activity), name_(std::move(name)), world_ranks_(std::move(world_ranks)) {
    std::string ranks;
    for (const int rank : world_ranks_) ranks += (ranks.empty() ? "" : " ") + std::to_string(rank);
    group_ = activity_.add_group(name_, std::move(ranks));
  }

  void set_name(const std::string& name) {
    name_ = name;
    activity_.name_group(group_, name);
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
    activity_.begin_collective(messages(rank(), destination), "send");
    return observe(inner_->send(std::move(tensor), destination, tag));
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    activity_.begin_collective(messages(source, rank()), "recv");
    return observe(inner_->recv(std::move(tensor), source, tag));
  }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override {
    auto part = inner_->split(ranks);
    if (!part) return nullptr;
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(world_ranks_.at(static_cast<std::size_t>(rank)));
    return std::make_shared<ObservedBackend>(std::move(part), activity_, "part of " + name_, std::move(members));
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  template <class Begin>
  WorkHandle begun(const char* name, const Begin& begin) {
    activity_.begin_collective(group_, name);
    return observe(begin());
  }
  WorkHandle observe(WorkHandle inner) const { return std::make_shared<ObservedWork>(std::move(inner), activity_); }
  /// Those from one rank of the group to another are counted by themselves, as both of them do.
  int messages(int from, int to) {
    const auto [found, is_new] = messages_.try_emplace({from, to}, 0);
    if (is_new)
      found->second = activity_.add_group(name_, concat(world_ranks_.at(static_cast<std::size_t>(from)), " to ",
                                                        world_ranks_.at(static_cast<std::size_t>(to))));
    return found->second;
  }

  std::shared_ptr<Backend> inner_;
  Activity& activity_;
  std::string name_;
  std::vector<int> world_ranks_;
  int group_ = -1;                               // in the activity
  std::map<std::pair<int, int>, int> messages_;  // likewise, by source and destination
};

}  // namespace

Group observed(const Group& world, Activity& activity) {
  if (!world.backend()) return world;
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(std::make_shared<ObservedBackend>(world.backend(), activity, "world", std::move(ranks)));
}

void name_observed(const Group& group, const std::string& name) {
  if (auto* const observed = dynamic_cast<ObservedBackend*>(group.backend().get())) observed->set_name(name);
}

}  // namespace megatron::comm
