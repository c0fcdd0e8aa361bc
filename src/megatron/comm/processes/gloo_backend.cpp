#define USE_C10D_GLOO  // c10d shows its Gloo classes
#include "megatron/comm/processes/gloo_backend.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/base/stack_frames.h"
#include "megatron/comm/processes/c10d_run_store.h"
#include "megatron/comm/processes/c10d_store.h"
#include "megatron/comm/processes/gloo_address.h"
#include "megatron/comm/processes/peer_watch.h"
#include "megatron/comm/processes/refusal.h"
#include "megatron/comm/threads/rank_threads.h"
#include "megatron/comm/threads/unwinding.h"

namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// c10d's group, which can also be closed under work that is still under way: its peers and its own threads then end.
class GlooGroup final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    if (closed_.exchange(true)) return;
    for (const auto& context : contexts_) context->closeConnections();
  }
  bool is_closed() const { return closed_; }

 private:
  std::atomic<bool> closed_{false};
};

/// The store as Gloo sees it: what peers have written there is looked at first.
class CheckedStore final : public c10d::PrefixStore {
 public:
  CheckedStore(const std::string& id, const c10::intrusive_ptr<c10d::Store>& store, int num_ranks, milliseconds timeout)
      : PrefixStore(id, store), num_ranks_(num_ranks), timeout_(timeout) {}
  using PrefixStore::get;
  using PrefixStore::wait;
  /// A peer may come to the store as late as to any collective; what Gloo passes is its patience with one connection.
  void wait(const std::vector<std::string>& keys, const milliseconds& /*connection*/) override {
    PrefixStore::wait(keys, timeout_);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    std::vector<std::uint8_t> value = PrefixStore::get(key);
    require_gloo_address(value, num_ranks_);
    return value;
  }
  bool hasExtendedApi() const override { return false; }  // every value comes through get()

 private:
  int num_ranks_;
  milliseconds timeout_;
};

/// What all groups of one rank share.
struct GlooWorld {
  explicit GlooWorld(RunKey run_key) : key(std::move(run_key)) {}
  RunKey key;
  std::vector<std::string> nonces;  ///< of each rank
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<::gloo::transport::Device> device;
  milliseconds timeout;
  std::unique_ptr<PeerWatch> watch;
};

/// One group of one rank.
struct GlooMember {
  std::shared_ptr<GlooWorld> world;
  c10::intrusive_ptr<GlooGroup> group;
  std::string id;
  std::vector<int> world_ranks;
  int rank = 0;
  std::size_t watched = 0;  ///< the group's number at the watch

  GlooMember() = default;
  GlooMember(const GlooMember&) = delete;
  GlooMember& operator=(const GlooMember&) = delete;
  /// Work that began after the connections were closed waits for its timeout, and c10d's destructor waits for the work:
  /// nobody here waits for that.
  ~GlooMember() {
    if (group && group->is_closed()) std::thread([last = std::move(group)]() mutable { last.reset(); }).detach();
  }

  /// An exception ends the owner of a handle of this work: the group cannot be used further, and must end at once
  /// although the work waits for peers.
  void leave(c10d::Work& work) const {
    if (!work.isCompleted()) group->close();
  }

  std::string ranks() const {
    std::string text;
    for (const int r : world_ranks) text += concat(text.empty() ? "" : ", ", r);
    return text;
  }
};

/// One or more c10d works, and what is left to do here once they are done.
class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<GlooMember> member, const char* name, std::uint64_t sequence,
           c10::intrusive_ptr<c10d::Work> work, std::function<void()> finally)
      : member_(std::move(member)),
        name_(name),
        sequence_(sequence),
        work_(std::move(work)),
        finally_(std::move(finally)) {}
  ~GlooWork() override {
    try {
      if (unwinding_ && work_) {
        member_->leave(*work_);
      } else {
        wait();
      }
    } catch (...) {  // nobody asked: the group's next collective says it again
    }
  }

  void wait() override {
    if (error_) std::rethrow_exception(error_);
    const auto work = std::exchange(work_, nullptr);
    if (!work) return;
    try {
      wait_for(*work);
      if (finally_) finally_();
    } catch (const PeerError&) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  /// Looks up now and then: another rank may have given up.
  void wait_for(c10d::Work& work) const {
    PeerWatch& watch = *member_->world->watch;
    const auto start = Clock::now();
    std::string what;
    while (true) {
      const bool ended = work.isCompleted();  // then what wait() throws is the work's own error, and not our patience
      try {
        work.wait(milliseconds(250));
        return;
      } catch (const std::exception& e) {
        what = e.what();
      }
      const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
      if (!ended && !watch.troubled() && waited < member_->world->timeout) continue;
      const std::string why = watch.troubled() ? watch.trouble() : watch.explain(member_->watched, sequence_, waited);
      const double seconds = std::chrono::duration<double>(waited).count();
      throw PeerError(concat(name_, " #", sequence_, " of ranks ", member_->ranks(), " failed after ", seconds,
                             " s: ", why, ended ? concat("\n  transport: ", first_line_of(what)) : ""));
    }
  }

  std::shared_ptr<GlooMember> member_;
  const char* name_;
  std::uint64_t sequence_;
  c10::intrusive_ptr<c10d::Work> work_;  ///< null once waited for
  std::function<void()> finally_;
  Unwinding unwinding_;
  std::exception_ptr error_;
};

/// A send or a receive: Gloo's own timeout ends it, because a shorter wait would break the connection.
class GlooPeerWork final : public Work {
 public:
  GlooPeerWork(std::shared_ptr<GlooMember> member, std::string name, int peer, c10::intrusive_ptr<c10d::Work> work,
               at::Tensor tensor)
      : member_(std::move(member)),
        name_(std::move(name)),
        peer_(peer),
        work_(std::move(work)),
        tensor_(std::move(tensor)) {}
  ~GlooPeerWork() override {
    try {
      if (unwinding_ && work_) {
        member_->leave(*work_);
      } else {
        wait();
      }
    } catch (...) {
    }
  }

  void wait() override {
    if (error_) std::rethrow_exception(error_);
    const auto work = std::exchange(work_, nullptr);
    if (!work) return;
    const auto start = Clock::now();
    try {
      work->wait(member_->world->timeout);
    } catch (const std::exception& e) {
      const std::string what = e.what();
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      const std::string why = member_->world->watch->explain_message(member_->watched, peer_);
      error_ = std::make_exception_ptr(
          PeerError(concat(name_, " failed after ", waited, " s: ", why, "\n  transport: ", first_line_of(what))));
      std::rethrow_exception(error_);
    }
  }

 private:
  std::shared_ptr<GlooMember> member_;
  std::string name_;
  int peer_;  ///< world rank
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor tensor_;
  Unwinding unwinding_;
  std::exception_ptr error_;
};

class Done final : public Work {
 public:
  void wait() override {}
};

/// The tensor's bytes: what is only moved needs no type.
at::Tensor as_bytes(const at::Tensor& t) { return t.detach().view(-1).view(at::kByte); }

c10d::ReduceOp to_c10d(ReduceOp op) {
  return op == ReduceOp::Sum ? c10d::ReduceOp(c10d::ReduceOp::SUM) : c10d::ReduceOp(c10d::ReduceOp::MAX);
}

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(std::shared_ptr<GlooMember> member) : m_(std::move(member)) {}

  int rank() const override { return m_->rank; }
  int size() const override { return static_cast<int>(m_->world_ranks.size()); }
  std::string name() const override { return "gloo"; }

  WorkHandle all_reduce(at::Tensor inout, ReduceOp op) override {
    if (inout.numel() == 0) return std::make_shared<Done>();
    const at::ScalarType dtype = inout.scalar_type();
    at::Tensor sum = inout.detach();
    std::function<void()> finally;
    if (dtype == at::kShort || dtype == at::kBool) {  // types that c10d's Gloo does not know
      sum = sum.to(at::kInt);
      finally = [inout = inout.detach(), sum] { inout.copy_(sum); };
    }
    return start_reduce(std::move(sum), op, "all_reduce", std::move(finally));
  }

  WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    if (in.numel() == 0) return std::make_shared<Done>();
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    return start("all_gather", m_->group->_allgather_base(to, from));
  }

  WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    if (in.numel() == 0) return std::make_shared<Done>();
    const bool widen = in.scalar_type() == at::kShort || in.scalar_type() == at::kBool;
    // Where the result belongs into `in` itself, that may be overwritten: nothing has to be copied.
    if (!widen && out.is_alias_of(in)) return start_reduce(in.detach(), op, "reduce_scatter", {});
    const at::Tensor sum = widen ? in.detach().to(at::kInt) : in.detach().clone();  // c10d's own does the same
    return start_reduce(sum, op, "reduce_scatter", [out = out.detach(), sum, rank = rank()] {
      out.view(-1).copy_(sum.view(-1).narrow(0, rank * out.numel(), out.numel()));
    });
  }

  WorkHandle broadcast(at::Tensor inout, int root) override {
    if (inout.numel() == 0) return std::make_shared<Done>();
    std::vector<at::Tensor> tensors{as_bytes(inout)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return start("broadcast", m_->group->broadcast(tensors, options));
  }

  WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    if (in.numel() == 0) return std::make_shared<Done>();
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    std::vector<std::int64_t> equal_parts;
    return start("all_to_all", m_->group->alltoall_base(to, from, equal_parts, equal_parts));
  }

  WorkHandle barrier() override { return start("barrier", m_->group->barrier()); }

  WorkHandle send(at::Tensor tensor, int destination, int tag) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return start_peer(
        "send to", destination, tag, [&] { return m_->group->send(tensors, destination, tag); }, tensors[0]);
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return start_peer(
        "recv from", source, tag, [&] { return m_->group->recv(tensors, source, tag); }, tensors[0]);
  }

  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override;

  void abort(const std::string& reason) override {
    m_->world->watch->fail(reason);
    m_->group->close();
  }

 private:
  WorkHandle start(const char* name, c10::intrusive_ptr<c10d::Work> work, std::function<void()> finally = {}) {
    const std::uint64_t sequence = m_->world->watch->enter(m_->watched);
    return std::make_shared<GlooWork>(m_, name, sequence, std::move(work), std::move(finally));
  }
  WorkHandle start_reduce(at::Tensor sum, ReduceOp op, const char* name, std::function<void()> finally) {
    std::vector<at::Tensor> tensors{std::move(sum)};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    return start(name, m_->group->allreduce(tensors, options), std::move(finally));
  }
  template <class Post>
  WorkHandle start_peer(const char* verb, int peer, int tag, const Post& post, at::Tensor tensor) {
    const int world_rank = m_->world_ranks[static_cast<std::size_t>(peer)];
    const std::string name = concat(verb, " rank ", world_rank, ", tag ", tag);
    try {
      return std::make_shared<GlooPeerWork>(m_, name, world_rank, post(), std::move(tensor));
    } catch (const std::exception& e) {  // the connection is gone before the message begins
      const std::string what = e.what();
      const PeerWatch& watch = *m_->world->watch;
      throw PeerError(concat(name,
                             " failed: ", watch.troubled() ? watch.trouble() : concat("rank ", world_rank, " is gone"),
                             "\n  transport: ", first_line_of(what)));
    }
  }

  std::shared_ptr<GlooMember> m_;
  std::uint64_t num_splits_ = 0;
};

/// Whoever connects to a port of Gloo's in time is taken for the peer: here each end of every connection shows the
/// other that it knows the run's secret, in words that no other run and no other connection has used.
void recognise_peers(const GlooMember& m) {
  const auto word = [&](int from, int to) {
    const auto f = static_cast<std::size_t>(m.world_ranks[static_cast<std::size_t>(from)]);
    const auto t = static_cast<std::size_t>(m.world_ranks[static_cast<std::size_t>(to)]);
    return m.world->key.seal(
        concat("connection ", m.id, " from ", f, " ", m.world->nonces[f], " to ", t, " ", m.world->nonces[t]), {});
  };
  const int size = static_cast<int>(m.world_ranks.size());
  const auto bytes = static_cast<std::int64_t>(word(0, 0).size());
  at::Tensor said = at::empty({size, bytes}, at::kByte), heard = at::zeros({size, bytes}, at::kByte);
  for (int r = 0; r < size; ++r) {
    const RunKey::Bytes mine = word(m.rank, r);
    std::copy(mine.begin(), mine.end(), said[r].data_ptr<std::uint8_t>());
  }
  std::vector<std::int64_t> equal_parts;
  m.group->alltoall_base(heard, said, equal_parts, equal_parts)->wait(m.world->timeout);
  for (int r = 0; r < size; ++r) {
    const RunKey::Bytes expected = word(r, m.rank);
    if (!std::equal(expected.begin(), expected.end(), heard[r].const_data_ptr<std::uint8_t>()))
      throw std::runtime_error(concat("who answers for rank ", m.world_ranks[static_cast<std::size_t>(r)],
                                      " does not know the secret of this run"));
  }
}

/// How long Gloo waits for one connection: it tries five times, and no rank shall live timeout + 10 s after a fault.
milliseconds connection_timeout(milliseconds timeout) { return (timeout + std::chrono::seconds(5)) / 5; }

std::shared_ptr<Backend> make_member(std::shared_ptr<GlooWorld> world, const std::string& id,
                                     std::vector<int> world_ranks) {
  auto member = std::make_shared<GlooMember>();
  member->world = std::move(world);
  member->id = id;
  member->world_ranks = std::move(world_ranks);
  const auto& ranks = member->world_ranks;
  member->rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), member->world->watch->rank()) - ranks.begin());
  member->watched = member->world->watch->add_group(id, ranks);
  auto options = c10d::ProcessGroupGloo::Options::create(connection_timeout(member->world->timeout));
  options->devices = {member->world->device};
  try {
    const int size = static_cast<int>(ranks.size());
    auto store = c10::make_intrusive<CheckedStore>(id, member->world->store, size, member->world->timeout);
    member->group = c10::make_intrusive<GlooGroup>(std::move(store), member->rank, size, std::move(options));
    member->group->setTimeout(member->world->timeout);
    recognise_peers(*member);
  } catch (const std::exception& e) {
    const std::string what = e.what();
    if (member->group) member->group->close();
    throw PeerError(concat("connecting ranks ", member->ranks(), " failed: ", first_line_of(what),
                           "\n  Ranks connect to each other on ports that the system picks; a firewall must let them "
                           "through.\n  ",
                           member->world->watch->explain(member->watched, 0, milliseconds(0))));
  }
  return std::make_shared<GlooBackend>(std::move(member));
}

std::shared_ptr<Backend> GlooBackend::split(const std::vector<int>& ranks) {
  const std::uint64_t sequence = num_splits_++;
  if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) return nullptr;
  std::vector<int> world_ranks;
  for (const int r : ranks) world_ranks.push_back(m_->world_ranks[static_cast<std::size_t>(r)]);
  return make_member(m_->world, concat(m_->id, ".", sequence), std::move(world_ranks));
}

/// The local address from which packets to `host` leave: where peers that reach it can reach this host.
std::string address_towards(const std::string& host, int port) {
  const HostAddress peer = peer_addresses(host, port).at(0);
  const int fd = socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw std::runtime_error("socket: cannot open one to find the network interface");
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  char text[NI_MAXHOST] = {};
  const bool ok = connect(fd, peer.get(), peer.size) == 0 &&  // a datagram socket: nothing is sent
                  getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
                  getnameinfo(reinterpret_cast<const sockaddr*>(&local), length, text, sizeof text, nullptr, 0,
                              NI_NUMERICHOST) == 0;
  close(fd);
  if (!ok)
    throw PeerError(rule_got_fix("This host must have a route to the rendezvous host.", host,
                                 "set MASTER_ADDR to an address that every host reaches"));
  return text;
}

Group join_world(c10::intrusive_ptr<c10d::Store> store, const RunKey& key,
                 std::shared_ptr<::gloo::transport::Device> device, int rank, int size, bool keeps_store,
                 milliseconds timeout, const PeerCheck& check = {}) {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to a peer that is gone: that shall be an error, not the end
  auto world = std::make_shared<GlooWorld>(key);
  world->watch = std::make_unique<PeerWatch>(std::make_shared<C10dKeys>(store->clone()), rank, size, keeps_store);
  world->store = std::move(store);
  world->device = std::move(device);
  world->timeout = timeout;
  world->nonces = world->watch->meet(random_secret(), timeout, check);
  std::vector<int> everybody(static_cast<std::size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return Group(make_member(std::move(world), "world", std::move(everybody)));
}

}  // namespace

Group join_gloo(const LaunchedRank& place, milliseconds timeout, const PeerCheck& check) {
  if (place.world_size == 1) return Group();
  const auto device = place.interface.empty()
                          ? c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(place.address, place.port))
                          : c10d::ProcessGroupGloo::createDeviceForInterface(place.interface);
  const RunKey key(secret_of(place));
  const auto store = connect_store(place, timeout, check);
  return as_part_of_meeting([&] {
    return join_world(store, key, device, place.rank, place.world_size, place.rank == 0 && !place.store_is_kept,
                      timeout, check);
  });
}

void run_gloo_ranks(int size, const std::function<void(Group)>& body, const LocalOptions& options) {
  run_gloo_ranks_of(std::vector(static_cast<std::size_t>(std::max(size, 0)), random_secret()), body, options);
}

void run_gloo_ranks_of(const std::vector<std::string>& secrets, const std::function<void(Group)>& body,
                       const LocalOptions& options) {
  const int size = static_cast<int>(secrets.size());
  if (size == 1)
    return run_rank_threads(
        1, [&](int) { body(Group()); }, [](int, const std::exception_ptr&) {}, options.timeout, options.on_stuck);
  // c10d's record of the last collectives is one of the whole process, and adds groups to it without a lock: two ranks
  // that are threads can break it. Read when the process makes its first group.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Group> worlds(secrets.size());
  run_rank_threads(
      size,
      [&](int rank) {
        Group& world = worlds[static_cast<std::size_t>(rank)];
        const RunKey key(secrets[static_cast<std::size_t>(rank)]);
        world = join_world(store, key, c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"), rank, size, false,
                           options.timeout);
        body(world);
      },
      [&](int rank, const std::exception_ptr& error) {
        Group& world = worlds[static_cast<std::size_t>(rank)];
        if (error) world.abort(message_of(error));
        world = Group();  // closes this rank's connections
      },
      options.timeout, options.on_stuck);
}

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer() : impl_(std::make_unique<Impl>()) {
  impl_->store = keep_store("127.0.0.1", 0, c10d::Store::kDefaultTimeout);
}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return impl_->store->getPort(); }

std::string StoreServer::told_failure(const LaunchedRank& place) const {
  try {
    const auto store = newest_start_in_store(place, milliseconds(1000));
    if (!store) return "";
    C10dKeys keys(store);
    return comm::told_failure(keys).value_or("");
  } catch (const std::exception&) {  // who failed first is then judged by who ended first
    return "";
  }
}

bool StoreServer::all_have_come(const LaunchedRank& place) const {
  try {
    return static_cast<bool>(newest_start_in_store(place, milliseconds(1000)));
  } catch (const std::exception&) {  // those that have get the time that they need
    return true;
  }
}

}  // namespace megatron::comm
