#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "megatron/base/error.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/comm/processes/c10d_run_store.h"
#include "megatron/comm/processes/gloo_backend.h"

// Whoever reaches the port of a run's store, and is no rank of it.
namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr seconds kTimeout{20};

LaunchedRank place_of(int rank, int size, int port, const std::string& secret) {
  LaunchedRank place;
  place.rank = rank;
  place.world_size = size;
  place.port = port;
  place.store_is_kept = true;
  place.secret = secret;
  return place;
}

/// A connection of somebody who knows c10d's protocol, and not the secret.
c10::intrusive_ptr<c10d::TCPStore> stranger(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Runs `body` on two ranks that meet at `port`; what each threw.
std::vector<std::string> run_two(int port, const std::string& secret, const std::function<void(const Group&)>& body) {
  std::vector<std::string> said(2);
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        body(join_gloo(place_of(r, 2, port, secret), kTimeout));
      } catch (const std::exception& e) {
        said[static_cast<std::size_t>(r)] = e.what();
      }
    });
  threads.clear();
  return said;
}

TEST(Stranger, CannotEndARunByWritingIntoItsStore) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // two ranks in one process: see run_gloo_ranks
  const StoreServer store;
  const auto enemy = stranger(store.port());
  const std::vector<std::string> guesses = {"megatron/megatron/failure", "megatron/failure", "megatron/world/0/0",
                                            "megatron/world/0", "megatron/megatron/here/0"};
  for (const std::string& key : guesses) enemy->set(key, bytes_of("a stranger's reason"));
  std::promise<void> ranks_are_there, keys_are_changed;
  std::atomic<int> there{0};
  const std::shared_future<void> changed = keys_are_changed.get_future().share();
  auto ranks = std::async(std::launch::async, [&] {
    return run_two(store.port(), random_secret(), [&](const Group& world) {
      const at::Tensor t = at::ones({1000});
      world.all_reduce(t);
      if (++there == 2) ranks_are_there.set_value();
      changed.wait();
      for (int i = 0; i < 5; ++i) {
        std::this_thread::sleep_for(milliseconds(200));  // the watch looks five times a second
        world.all_reduce(t);
      }
    });
  });
  ASSERT_EQ(ranks_are_there.get_future().wait_for(kTimeout), std::future_status::ready);
  for (std::string key : enemy->listKeys()) {
    if (key.starts_with('/')) key.erase(0, 1);
    enemy->set(key, std::vector<std::uint8_t>(64, 0xff));
  }
  for (const std::string& key : guesses) enemy->set(key, bytes_of("a stranger's reason"));
  keys_are_changed.set_value();
  EXPECT_THAT(ranks.get(), testing::Each(""));
}

TEST(Stranger, IsNotTakenForARank) {
  const StoreServer store;
  const LaunchedRank place = place_of(0, 2, store.port(), random_secret());
  auto rank = std::async(std::launch::async, [&] {
    try {
      join_gloo(place, seconds(2));
    } catch (const PeerError& e) {
      return std::string(e.what());
    }
    return std::string();
  });
  // Another secret, all else as a rank has it.
  try {
    join_gloo(place_of(1, 2, store.port(), random_secret()), seconds(2));
    ADD_FAILURE() << "a rank of another run was let in";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("rank 0 did not arrive"));
  }
  EXPECT_THAT(rank.get(), HasSubstr("rank 1 did not arrive"));
}

// The store has let it in, as one who reads what ranks say there could place an address of his own.
TEST(Stranger, WhoAnswersInARanksPlaceWithoutTheSecretIsRefused) {
  const std::string secret = random_secret();
  std::atomic<int> let_in{0};
  LocalOptions options;
  options.timeout = kTimeout;
  try {
    run_gloo_ranks_of(
        {secret, secret, random_secret()}, [&](const Group&) { ++let_in; }, options);
    ADD_FAILURE() << "a rank of another run was let in";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("does not know the secret of this run"));
  }
  EXPECT_EQ(let_in, 0);
  run_gloo_ranks_of(
      {secret, secret, secret}, [&](const Group&) { ++let_in; }, options);
  EXPECT_EQ(let_in, 3);
}

/// The local addresses on which this network namespace listens at `port`, as /proc/net/tcp{,6} writes them.
std::set<std::string> listening_on(int port) {
  std::set<std::string> addresses;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    std::string line, slot, local, remote, state;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream(line) >> slot >> local >> remote >> state;
      const std::size_t colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        addresses.insert(local.substr(0, colon));
    }
  }
  return addresses;
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

TEST(Stranger, OfAnotherHostDoesNotReachTheStoreOfALocalRun) {
  const std::set<std::string> loopback{"0100007F"};
  const StoreServer store;
  EXPECT_EQ(listening_on(store.port()), loopback);
  LaunchedRank place = place_of(0, 2, free_port(), "");
  place.store_is_kept = false;
  const auto kept = connect_store(place, kTimeout);
  EXPECT_EQ(listening_on(place.port), loopback);
}

// A socket that nobody accepts from: the kernel answers the connection, and nobody a question.
class Silence {
 public:
  Silence() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    listen(fd_, 16);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Silence() { close(fd_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
  int port() const { return port_; }

 private:
  int fd_, port_ = 0;
};

TEST(Deadline, AListenerThatNeverAnswersEndsTheRendezvousByTheTimeout) {
  const Silence silence;
  const auto start = std::chrono::steady_clock::now();
  try {
    join_gloo(place_of(1, 2, silence.port(), ""), seconds(1));
    FAIL() << "there is no store";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("cannot reach the store"), HasSubstr("does not answer")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(11));
}

// The store answers, then is silent: what is asked meanwhile throws in time, and at once from the second time on; when
// it answers again, so do we.
TEST(Deadline, AStoreThatFallsSilentIsWaitedForOnce) {
  class Gate final : public c10d::Store {
   public:
    explicit Gate(std::shared_future<void> open) : open_(std::move(open)) {}
    c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<Gate>(open_); }
    void set(const std::string&, const std::vector<std::uint8_t>&) override { open_.wait(); }
    std::vector<std::uint8_t> get(const std::string&) override { return {}; }
    std::int64_t add(const std::string&, std::int64_t) override { return 0; }
    bool deleteKey(const std::string&) override { return false; }
    bool check(const std::vector<std::string>&) override { return false; }
    std::int64_t getNumKeys() override { return 7; }
    void wait(const std::vector<std::string>&) override {}
    void wait(const std::vector<std::string>&, const milliseconds&) override {}

   private:
    std::shared_future<void> open_;
  };
  std::promise<void> open;
  const std::shared_future<void> opened = open.get_future().share();
  const RunStore::Connect connect = [opened] { return c10::make_intrusive<Gate>(opened); };
  const auto store = c10::make_intrusive<RunStore>(connect, connect, RunKey("secret"), "host:1", milliseconds(500));
  EXPECT_EQ(store->getNumKeys(), 7);
  EXPECT_THAT([&] { store->set("key", std::vector<std::uint8_t>{1}); },
              testing::ThrowsMessage<PeerError>(HasSubstr("host:1 does not answer")));
  EXPECT_THROW(store->getNumKeys(), PeerError) << "the call before it hangs";
  open.set_value();
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  std::int64_t keys = 0;
  while (keys == 0 && std::chrono::steady_clock::now() < end) {
    try {
      keys = store->getNumKeys();
    } catch (const PeerError&) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(keys, 7);
}

}  // namespace
}  // namespace megatron::comm
