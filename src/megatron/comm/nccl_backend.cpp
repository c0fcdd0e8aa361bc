#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/comm/cuda_plugin.h"
#include "megatron/comm/processes/c10d_run_store.h"
#include "megatron/comm/processes/c10d_store.h"
#include "megatron/comm/processes/peer_watch.h"
#include "megatron/comm/processes/refusal.h"
#include "megatron/comm/threads/unwinding.h"

// Part of the CUDA plugin: NCCL behind our interface. See cuda_plugin.h.
namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using NcclGroup = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

/// What all groups of one rank share. A thread looks after the collectives under way: the host does not wait for them,
/// so somebody else must notice that one never ends.
class NcclWorld {
 public:
  NcclWorld(c10::intrusive_ptr<c10d::Store> store, const LaunchedRank& place, int gpu, milliseconds timeout,
            const PeerCheck& check)
      : store_(std::move(store)),
        timeout_(timeout),
        device_(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)),
        watch_(std::make_shared<C10dKeys>(store_->clone()), place.rank, place.world_size,
               place.rank == 0 && !place.store_is_kept) {
    watch_.meet("1", timeout, check);
    thread_ = std::thread([this] { look_after(); });
  }
  ~NcclWorld() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stop_changed_.notify_all();
    thread_.join();
  }
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  milliseconds timeout() const { return timeout_; }
  at::Device device() const { return device_; }
  PeerWatch& watch() { return watch_; }

  void add(const NcclGroup& group) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(group);
  }
  void started(std::string name, std::size_t group, std::uint64_t sequence, c10::intrusive_ptr<c10d::Work> work) {
    const std::lock_guard lock(mutex_);
    under_way_.push_back({std::move(name), group, sequence, std::move(work), Clock::now()});
  }
  void throw_if_failed() {
    if (!failed_.load()) return;
    const std::lock_guard lock(mutex_);
    throw PeerError(failure_);
  }
  void abort(const std::string& reason) {
    watch_.fail(reason);
    give_up("this rank gave up: " + reason);
  }
  /// An exception ends the owner of a handle of this work: the GPU must not keep waiting for peers.
  void leave(c10d::Work& work) {
    if (!work.isCompleted()) give_up("this rank has left work under way");
  }

 private:
  struct UnderWay {
    std::string name;
    std::size_t group;
    std::uint64_t sequence;
    c10::intrusive_ptr<c10d::Work> work;
    Clock::time_point start;
  };

  void look_after() {
    std::unique_lock lock(mutex_);
    while (!stop_changed_.wait_for(lock, milliseconds(100), [&] { return stop_; })) {
      std::erase_if(under_way_, [](const UnderWay& u) { return u.work->isCompleted(); });
      if (failed_) continue;
      const bool late = !under_way_.empty() && Clock::now() - under_way_.front().start > timeout_;
      if (!late && !watch_.troubled()) continue;
      const UnderWay stuck = under_way_.empty() ? UnderWay{"", 0, 0, {}, Clock::now()} : under_way_.front();
      lock.unlock();
      const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - stuck.start);
      give_up(concat(stuck.name.empty() ? "communication" : stuck.name, " failed: ",
                     watch_.troubled() ? watch_.trouble() : watch_.explain(stuck.group, stuck.sequence, waited)));
      lock.lock();
    }
  }

  /// Ends everything under way on the GPU: a host that waits for its stream continues, and then meets throw_if_failed.
  void give_up(const std::string& why) {
    std::vector<NcclGroup> groups;
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      failure_ = why;
      failed_ = true;
      groups = groups_;
    }
    for (const NcclGroup& group : groups) group->abort();
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const milliseconds timeout_;
  const at::Device device_;
  PeerWatch watch_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::deque<UnderWay> under_way_;
  std::vector<NcclGroup> groups_;
  std::string failure_;
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclWorld> world, c10::intrusive_ptr<c10d::Work> work, std::function<void()> finally)
      : world_(std::move(world)), work_(std::move(work)), finally_(std::move(finally)) {}
  ~NcclWork() override {
    try {
      if (unwinding_ && work_) {
        world_->leave(*work_);
      } else {
        wait();
      }
    } catch (...) {  // nobody asked: the next call says it again
    }
  }
  void wait() override {
    world_->throw_if_failed();
    const auto work = std::exchange(work_, nullptr);
    if (!work) return;
    work->wait();
    world_->throw_if_failed();
    if (finally_) finally_();
  }

 private:
  std::shared_ptr<NcclWorld> world_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::function<void()> finally_;
  Unwinding unwinding_;
};

class Done final : public Work {
 public:
  void wait() override {}
};

at::Tensor as_bytes(const at::Tensor& t) { return t.detach().view(-1).view(at::kByte); }

class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<NcclWorld> world, std::string id, std::vector<int> world_ranks)
      : world_(std::move(world)), id_(std::move(id)), world_ranks_(std::move(world_ranks)) {
    const auto mine = std::find(world_ranks_.begin(), world_ranks_.end(), world_->watch().rank());
    rank_ = static_cast<int>(mine - world_ranks_.begin());
    watched_ = world_->watch().add_group(id_, world_ranks_);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = world_->timeout();
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>(id_, world_->store()),
                                                         rank_, size(), std::move(options));
    world_->add(group_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  std::string name() const override { return "nccl"; }
  at::Device device() const override { return world_->device(); }

  WorkHandle all_reduce(at::Tensor inout, ReduceOp op) override {
    if (inout.numel() == 0) return std::make_shared<Done>();
    const bool widen = inout.scalar_type() == at::kShort || inout.scalar_type() == at::kBool;
    std::vector<at::Tensor> tensors{widen ? inout.detach().to(at::kInt) : inout.detach()};
    std::function<void()> finally;
    if (widen) finally = [inout = inout.detach(), sum = tensors[0]] { inout.copy_(sum); };
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    return start(
        "all_reduce", [&] { return group_->allreduce(tensors, options); }, std::move(finally));
  }
  WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    if (in.numel() == 0) return std::make_shared<Done>();
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    return start("all_gather", [&] { return group_->_allgather_base(to, from); });
  }
  WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    if (in.numel() == 0) return std::make_shared<Done>();
    const bool widen = in.scalar_type() == at::kShort || in.scalar_type() == at::kBool;
    at::Tensor from = widen ? in.detach().to(at::kInt).view(-1) : in.detach().view(-1);
    at::Tensor to = widen ? at::empty({out.numel()}, from.options()) : out.detach().view(-1);
    std::function<void()> finally;
    if (widen) finally = [out = out.detach(), to] { out.view(-1).copy_(to); };
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op);
    return start(
        "reduce_scatter", [&] { return group_->_reduce_scatter_base(to, from, options); }, std::move(finally));
  }
  WorkHandle broadcast(at::Tensor inout, int root) override {
    if (inout.numel() == 0) return std::make_shared<Done>();
    std::vector<at::Tensor> tensors{as_bytes(inout)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return start("broadcast", [&] { return group_->broadcast(tensors, options); });
  }
  WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    if (in.numel() == 0) return std::make_shared<Done>();
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    std::vector<std::int64_t> to_parts, from_parts;  // empty: equal parts
    return start("all_to_all", [&] { return group_->alltoall_base(to, from, to_parts, from_parts); });
  }
  WorkHandle barrier() override {
    c10d::BarrierOptions options;
    options.device_ids = {device().index()};
    return start("barrier", [&] { return group_->barrier(options); });
  }
  // NCCL matches messages of a pair by their order: the tag travels nowhere.
  WorkHandle send(at::Tensor tensor, int destination, int tag) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return start("send", [&] { return group_->send(tensors, destination, tag); });
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return start("recv", [&] { return group_->recv(tensors, source, tag); });
  }

  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override {
    const std::uint64_t sequence = num_splits_++;
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
    std::vector<int> members;
    for (const int r : ranks) members.push_back(world_ranks_[static_cast<std::size_t>(r)]);
    return std::make_shared<NcclBackend>(world_, concat(id_, ".", sequence), std::move(members));
  }

  void abort(const std::string& reason) override { world_->abort(reason); }

 private:
  static c10d::ReduceOp to_c10d(ReduceOp op) {
    return op == ReduceOp::Sum ? c10d::ReduceOp(c10d::ReduceOp::SUM) : c10d::ReduceOp(c10d::ReduceOp::MAX);
  }
  template <class Start>
  WorkHandle start(const char* operation, const Start& run, std::function<void()> finally = {}) {
    world_->throw_if_failed();
    const std::uint64_t sequence = world_->watch().enter(watched_);
    c10::intrusive_ptr<c10d::Work> work = run();
    world_->started(concat(operation, " #", sequence, " of group ", id_), watched_, sequence, work);
    return std::make_shared<NcclWork>(world_, std::move(work), std::move(finally));
  }

  std::shared_ptr<NcclWorld> world_;
  const std::string id_;
  const std::vector<int> world_ranks_;
  int rank_ = 0;
  std::size_t watched_ = 0;
  NcclGroup group_;
  std::uint64_t num_splits_ = 0;
};

}  // namespace
}  // namespace megatron::comm

/// The plugin's entry for join_nccl(). The caller owns the result. Throws PeerError, std::runtime_error.
extern "C" __attribute__((visibility("default"))) megatron::comm::Backend* megatron_make_nccl_backend(
    const megatron::comm::LaunchedRank* place, int gpu, std::int64_t timeout_ms,
    const megatron::comm::PeerCheck* check) {
  using namespace megatron::comm;
  // c10d's own watchdog answers a late collective by ending the process, before anybody has said which rank is missing.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
  const std::chrono::milliseconds timeout(timeout_ms);
  const auto store = connect_store(*place, timeout, *check);
  return as_part_of_meeting([&]() -> Backend* {
    auto world = std::make_shared<NcclWorld>(store, *place, gpu, timeout, *check);
    std::vector<int> everybody(static_cast<std::size_t>(place->world_size));
    std::iota(everybody.begin(), everybody.end(), 0);
    return new NcclBackend(std::move(world), "world", std::move(everybody));
  });
}
