#include "megatron/comm/processes/c10d_run_store.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"
#include "megatron/base/stack_frames.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/c10d_store.h"
#include "megatron/comm/processes/start_name.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Long for a busy host, short enough that a rank which the network has cut off still ends in time.
constexpr milliseconds kAnswerLimit{5000};

constexpr milliseconds kCheckInterval{50};

double seconds_of(milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

/// The thread that talks to the store, and what it is to do. Outlives the RunStore where the thread hangs.
struct RunStore::Worker {
  c10::intrusive_ptr<c10d::Store> store;  ///< of the thread alone
  std::mutex mutex;                       // guards what follows
  std::condition_variable changed;
  std::deque<std::function<void()>> calls;
  bool stop = false;
  bool hangs = false;  ///< nobody waits any longer for the call that the thread is in
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stop || !calls.empty(); });
      if (stop) break;
      std::function<void()> call = std::move(calls.front());
      calls.pop_front();
      lock.unlock();
      call();
      call = nullptr;
      lock.lock();
      hangs = false;
    }
    lock.unlock();
    store.reset();
  }
  void end() {
    std::unique_lock lock(mutex);
    stop = true;
    const bool leave = hangs;
    lock.unlock();
    changed.notify_one();
    leave ? thread.detach() : thread.join();
  }

  /// A handle whose last copy ends the thread, or leaves it where it hangs.
  static std::shared_ptr<Worker> start() {
    const auto worker = std::make_shared<Worker>();
    worker->thread = std::thread([worker] { worker->run(); });
    return {worker.get(), [worker](Worker*) { worker->end(); }};
  }
};

template <class Call>
auto RunStore::ask(milliseconds limit, Call call, const PeerCheck& check) const {
  using Result = decltype(call(*worker_));
  auto task = std::make_shared<std::packaged_task<Result()>>(
      [worker = worker_.get(), call = std::move(call)] { return call(*worker); });
  std::future<Result> result = task->get_future();
  const auto silent = [&] {
    return PeerError(concat("the rendezvous store at ", where_, " does not answer (waited ", seconds_of(limit), " s)"));
  };
  {
    const std::lock_guard lock(worker_->mutex);
    if (worker_->hangs) throw silent();
    worker_->calls.emplace_back([task] { (*task)(); });
  }
  worker_->changed.notify_one();
  const auto deadline = Clock::now() + limit;
  while (check && result.wait_for(kCheckInterval) != std::future_status::ready && Clock::now() < deadline) {
    try {
      check();
    } catch (const PeerError&) {
      const std::lock_guard lock(worker_->mutex);
      worker_->hangs = true;
      throw;
    }
  }
  if (result.wait_until(deadline) != std::future_status::ready) {
    const std::lock_guard lock(worker_->mutex);
    if (result.wait_for(milliseconds(0)) != std::future_status::ready) {
      worker_->hangs = true;
      throw silent();
    }
  }
  try {
    return result.get();
  } catch (const std::exception& e) {
    throw PeerError(concat("the rendezvous store at ", where_, ": ", without_stack_frames(e.what())));
  }
}

RunStore::RunStore(const Connect& connect, Connect again, RunKey key, std::string where, milliseconds timeout,
                   const PeerCheck& check)
    : Store(timeout),
      again_(std::move(again)),
      key_(std::move(key)),
      where_(std::move(where)),
      answer_limit_(std::min(timeout, kAnswerLimit)),
      worker_(Worker::start()) {
  ask(
      timeout,
      [connect](Worker& worker) {
        worker.store = connect();
        return true;
      },
      check);
}

RunStore::~RunStore() = default;

c10::intrusive_ptr<c10d::Store> RunStore::clone() {
  return c10::make_intrusive<RunStore>(again_, again_, key_, where_, timeout_);
}

void RunStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  ask(answer_limit_, [name = key_.name(key), sealed = key_.seal(key, value)](Worker& worker) {
    worker.store->set(name, sealed);
    return true;
  });
}

std::vector<std::uint8_t> RunStore::compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                               const std::vector<std::uint8_t>& desired) {
  const RunKey::Bytes before = expected.empty() ? expected : key_.seal(key, expected);
  const RunKey::Bytes now =
      ask(answer_limit_, [name = key_.name(key), before, after = key_.seal(key, desired)](Worker& worker) {
        return worker.store->compareSet(name, before, after);
      });
  return key_.open(key, now).value_or(RunKey::Bytes{});
}

std::optional<RunKey::Bytes> RunStore::look(const std::string& key) const {
  const std::optional<RunKey::Bytes> sealed =
      ask(answer_limit_, [name = key_.name(key)](Worker& worker) -> std::optional<RunKey::Bytes> {
        if (!worker.store->check({name})) return std::nullopt;
        return worker.store->get(name);
      });
  return sealed ? key_.open(key, *sealed) : std::nullopt;
}

RunKey::Bytes RunStore::wait_for(const std::string& key, milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(50))) {
    if (std::optional<RunKey::Bytes> value = look(key)) return std::move(*value);
    if (Clock::now() >= deadline)
      throw PeerError(concat("the rendezvous store at ", where_, ": a peer has not said where it is within ",
                             seconds_of(timeout), " s"));
    std::this_thread::sleep_for(pause);
  }
}

std::vector<std::uint8_t> RunStore::get(const std::string& key) { return wait_for(key, timeout_); }

bool RunStore::check(const std::vector<std::string>& keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return look(key).has_value(); });
}

void RunStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void RunStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  for (const std::string& key : keys) wait_for(key, timeout);
}

std::int64_t RunStore::add(const std::string& key, std::int64_t value) {
  return ask(answer_limit_, [name = key_.name(key), value](Worker& worker) { return worker.store->add(name, value); });
}

bool RunStore::deleteKey(const std::string& key) {
  return ask(answer_limit_, [name = key_.name(key)](Worker& worker) { return worker.store->deleteKey(name); });
}

std::int64_t RunStore::getNumKeys() {
  return ask(answer_limit_, [](Worker& worker) { return worker.store->getNumKeys(); });
}

namespace {

/// What c10d prints of its own accord shows stack frames, and says what our errors say. A level that somebody has asked
/// for (TORCH_CPP_LOG_LEVEL) stays.
void quieten_c10d() {
  constexpr int kWarnings = 1, kFatal = 3;  // the first is libtorch's own choice
  if (FLAGS_caffe2_log_level == kWarnings) FLAGS_caffe2_log_level = kFatal;
}

c10::intrusive_ptr<c10d::Store> client_of(const std::string& address, int port, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

}  // namespace

c10::intrusive_ptr<c10d::TCPStore> keep_store(const std::string& address, int port, milliseconds timeout) {
  quieten_c10d();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.masterListenFd = bound_socket(address, port);  // c10d's own listens on every interface
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

std::vector<HostAddress> peer_addresses(const std::string& host, int port) {
  try {
    return addresses_of(host, port);
  } catch (const HostError& e) {
    throw PeerError(e.what());
  }
}

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchedRank& place, milliseconds timeout, const PeerCheck& check) {
  if (check) check();
  RunKey key(secret_of(place));
  peer_addresses(place.address, place.port);  // c10d's own look-up of the name would wait as long as the system does
  quieten_c10d();
  const auto again = [address = place.address, port = place.port, timeout] {
    return client_of(address, port, timeout);
  };
  const bool keeps = place.rank == 0 && !place.store_is_kept, opens = keeps && !place.store_is_open;
  const auto first = [=, address = place.address, port = place.port] {
    return opens ? c10::intrusive_ptr<c10d::Store>(keep_store(address, port, timeout)) : again();
  };
  c10::intrusive_ptr<c10d::Store> prefixed;
  try {
    auto store = c10::make_intrusive<RunStore>(first, again, std::move(key), concat(place.address, ":", place.port),
                                               timeout, check);
    prefixed = c10::make_intrusive<c10d::PrefixStore>(place.store_prefix, std::move(store));
  } catch (const PeerError& e) {
    if (check) check();
    throw PeerError(rule_got_fix(concat("rendezvous: rank ", place.rank, " cannot reach the store at ", place.address,
                                        ":", place.port, keeps ? " (which it keeps itself)." : " (kept by rank 0)."),
                                 e.what(), "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs"));
  }
  if (!place.store_is_kept) return prefixed;
  C10dKeys keys(prefixed);
  return c10::make_intrusive<c10d::PrefixStore>(name_of_start(keys, place.rank, place.world_size, timeout), prefixed);
}

c10::intrusive_ptr<c10d::Store> store_client(const LaunchedRank& place, milliseconds timeout) {
  quieten_c10d();
  const auto connect = [address = place.address, port = place.port, timeout] {
    return client_of(address, port, timeout);
  };
  auto store = c10::make_intrusive<RunStore>(connect, connect, RunKey(secret_of(place)),
                                             concat(place.address, ":", place.port), timeout);
  return c10::make_intrusive<c10d::PrefixStore>(place.store_prefix, std::move(store));
}

c10::intrusive_ptr<c10d::Store> newest_start_in_store(const LaunchedRank& place, milliseconds timeout) {
  const auto prefixed = store_client(place, timeout);
  C10dKeys keys(prefixed);
  const auto name = newest_start(keys);
  if (!name) return {};
  return c10::make_intrusive<c10d::PrefixStore>(*name, prefixed);
}

}  // namespace megatron::comm
