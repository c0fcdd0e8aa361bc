#include "megatron/comm/processes/presence.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/c10d_run_store.h"
#include "megatron/comm/processes/c10d_store.h"

namespace megatron::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{200};       // between looks for rank 0
constexpr milliseconds kLookLimit{2000};  // of one of them
constexpr const char* kPort = "presence/port";
constexpr std::size_t kMaxStrangers = 64;  // connections that have not said who they are

/// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// What goes over a connection: a letter and a rank.
struct Word {
  enum Kind : char { kMet = 'm', kGone = 'g' };
  char kind = kMet;
  std::int32_t rank = 0;
};
constexpr std::size_t kWordBytes = 1 + sizeof(std::int32_t);

std::string bytes_of(const Word& word) {
  std::string bytes(kWordBytes, word.kind);
  std::memcpy(bytes.data() + 1, &word.rank, sizeof word.rank);
  return bytes;
}

Word word_of(const std::string& bytes) {
  Word word{.kind = bytes[0]};
  std::memcpy(&word.rank, bytes.data() + 1, sizeof word.rank);
  return word;
}

/// The first words on a connection: who has opened it, with the run's mark.
std::string greeting(const RunKey& key, int rank) {
  const RunKey::Bytes mark = key.seal(concat("presence of ", rank), {});
  return bytes_of({Word::kMet, rank}) + std::string(mark.begin(), mark.end());
}

/// Who is gone need not hear it: errors are those of a connection that closes.
void say(int fd, const std::string& bytes) { (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }

/// Appends what has come to `bytes`; false: the other end is gone.
bool hear(int fd, std::string& bytes) {
  char buffer[256];
  const ssize_t got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got > 0) bytes.append(buffer, static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

/// A host that is cut off closes nothing: the system asks it now and then, and gives it up after half a minute.
void ask_now_and_then(int fd) {
  const auto set = [&](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

/// A connection to `address` within `limit`; none where there is nobody, or `wake` is readable before.
Descriptor connection_to(const HostAddress& address, int wake, milliseconds limit) {
  Descriptor end(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (end.get() < 0) return Descriptor();
  if (connect(end.get(), address.get(), address.size) == 0) return end;
  if (errno != EINPROGRESS) return Descriptor();
  pollfd waits[2] = {{end.get(), POLLOUT, 0}, {wake, POLLIN, 0}};
  int error = 1;
  socklen_t size = sizeof error;
  if (poll(waits, 2, static_cast<int>(limit.count())) <= 0 || waits[1].revents != 0 ||
      getsockopt(end.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
    return Descriptor();
  return end;
}

int port_of(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return -1;
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

}  // namespace

class Presence::Impl {
 public:
  explicit Impl(LaunchedRank place) : place_(std::move(place)) {
    if (place_.world_size == 1 || place_.store_is_kept) return;
    try {
      key_.emplace(secret_of(place_));
      if (place_.rank == 0) open();
    } catch (const std::exception&) {  // said where the ranks meet
      return;
    }
    wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] {
      try {
        place_.rank == 0 ? serve() : attend();
      } catch (const std::exception&) {  // a rank that cannot watch is no worse than one that does not
      }
    });
  }
  ~Impl() {
    stop_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const LaunchedRank& place() const { return place_; }
  void met() {
    met_ = true;
    wake();
  }
  void check() const {
    const std::lock_guard lock(mutex_);
    if (gone_.empty() || met_) return;
    std::string who = concat("the process of rank ", gone_[0], " has");
    if (gone_.size() > 1) {
      who = concat("the processes of ranks ", gone_[0]);
      for (std::size_t i = 1; i < gone_.size(); ++i) who += concat(", ", gone_[i]);
      who += " have";
    }
    throw PeerError(concat(who, " ended before the ranks met, killed or without a word to the others"));
  }

 private:
  /// One end of a connection at rank 0.
  struct Peer {
    Descriptor end;
    std::string heard = {};
    int rank = -1;  ///< until it has said
    bool met = false;
  };

  /// The store, and what the others connect to; before the thread starts.
  void open() {
    constexpr std::chrono::minutes kOwnCalls{5};
    store_ = keep_store(place_.address, place_.port, kOwnCalls);
    place_.store_is_open = true;
    listener_ = Descriptor(bound_socket(place_.address, 0));
    if (listen(listener_.get(), SOMAXCONN) != 0) throw std::runtime_error("listen");
    C10dKeys(store_client(place_, kLookLimit)).set(kPort, concat(port_of(listener_.get())));
  }

  void wake() const {
    const std::uint64_t one = 1;
    if (wake_.get() >= 0) (void)!write(wake_.get(), &one, sizeof one);
  }
  void clear_wake() const {
    std::uint64_t count = 0;
    (void)!read(wake_.get(), &count, sizeof count);
  }
  /// False: the thread is to end.
  bool pause() const {
    pollfd waits = {wake_.get(), POLLIN, 0};
    poll(&waits, 1, static_cast<int>(kPause.count()));
    return !stop_ && !met_;
  }
  void note_gone(int rank) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(gone_, rank) == gone_.end()) gone_.push_back(rank);
  }

  void serve() {
    std::vector<Peer> peers;
    bool has_told = false;
    const auto tell = [&](const Word& word) {
      for (const Peer& peer : peers)
        if (peer.rank >= 0) say(peer.end.get(), bytes_of(word));
    };
    while (true) {
      std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Peer& peer : peers) waits.push_back({peer.end.get(), POLLIN, 0});
      if (poll(waits.data(), waits.size(), -1) < 0) continue;
      clear_wake();
      if (met_ && !std::exchange(has_told, true)) tell({Word::kMet});
      if (stop_) return;
      for (std::size_t i = 0; i + 2 < waits.size(); ++i)
        if (waits[i + 2].revents != 0 && !listen_to(peers[i])) {
          const int rank = peers[i].met ? -1 : peers[i].rank;
          peers[i].rank = -2;
          if (rank < 0) continue;
          note_gone(rank);
          tell({Word::kGone, rank});
        }
      std::erase_if(peers, [](const Peer& peer) { return peer.rank == -2; });
      if (waits[1].revents != 0) accept_one(peers);
    }
  }

  void accept_one(std::vector<Peer>& peers) const {
    Descriptor end(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const auto strangers = std::ranges::count_if(peers, [](const Peer& peer) { return peer.rank < 0; });
    if (end.get() < 0) return;
    if (static_cast<std::size_t>(strangers) >= kMaxStrangers)  // the one that is silent for longest makes room
      peers.erase(std::ranges::find_if(peers, [](const Peer& peer) { return peer.rank < 0; }));
    ask_now_and_then(end.get());
    peers.push_back({.end = std::move(end)});
  }

  /// False: the peer is gone, or is none.
  bool listen_to(Peer& peer) {
    const bool is_there = hear(peer.end.get(), peer.heard);
    if (peer.rank < 0) {
      const std::size_t size = greeting(*key_, 0).size();
      if (peer.heard.size() < size) return is_there;
      const int rank = word_of(peer.heard).rank;
      if (rank < 1 || rank >= place_.world_size || peer.heard.substr(0, size) != greeting(*key_, rank)) return false;
      peer.rank = rank;
      peer.heard.erase(0, size);
      const std::lock_guard lock(mutex_);
      for (const int gone : gone_) say(peer.end.get(), bytes_of({Word::kGone, gone}));
    }
    peer.met = peer.met || peer.heard.size() >= kWordBytes;
    return is_there && peer.heard.size() <= kWordBytes;
  }

  void attend() {
    const Descriptor end = find_rank_0();
    if (end.get() < 0) return;
    say(end.get(), greeting(*key_, place_.rank));
    std::string heard;
    bool has_told = false, rank_0_met = false;
    while (true) {
      pollfd waits[2] = {{wake_.get(), POLLIN, 0}, {end.get(), POLLIN, 0}};
      if (poll(waits, 2, -1) < 0) continue;
      clear_wake();
      if (met_ && !std::exchange(has_told, true)) say(end.get(), bytes_of({Word::kMet, place_.rank}));
      if (stop_) return;
      if (waits[1].revents == 0) continue;
      const bool is_there = hear(end.get(), heard);
      for (; heard.size() >= kWordBytes; heard.erase(0, kWordBytes)) {
        const Word word = word_of(heard);
        word.kind == Word::kGone ? note_gone(word.rank) : void(rank_0_met = true);
      }
      if (is_there) continue;
      if (!rank_0_met) note_gone(0);
      return;
    }
  }

  /// A connection to rank 0, which may start later; none where this one is to end before.
  Descriptor find_rank_0() const {
    do {
      try {
        const auto towards = [&](int port) {
          return connection_to(addresses_of(place_.address, port).at(0), wake_.get(), kLookLimit);
        };
        if (towards(place_.port).get() < 0) continue;  // c10d's own client would wait for somebody to be there
        const auto port = C10dKeys(store_client(place_, kLookLimit)).get(kPort);
        int number = 0;
        if (port) std::from_chars(port->data(), port->data() + port->size(), number);
        if (number < 1 || number > 65535) continue;
        if (Descriptor end = towards(number); end.get() >= 0) {
          ask_now_and_then(end.get());
          return end;
        }
      } catch (const std::exception&) {  // nobody is there yet, or a stranger
      }
    } while (pause());
    return Descriptor();
  }

  LaunchedRank place_;
  std::optional<RunKey> key_;
  c10::intrusive_ptr<c10d::TCPStore> store_;  ///< of rank 0
  Descriptor listener_, wake_;
  std::atomic<bool> stop_ = false, met_ = false;
  mutable std::mutex mutex_;  // of gone_
  std::vector<int> gone_;     ///< ranks, in the order in which they were missed
  std::thread thread_;
};

Presence::Presence(LaunchedRank place) : impl_(std::make_unique<Impl>(std::move(place))) {}
Presence::~Presence() = default;

const LaunchedRank& Presence::place() const { return impl_->place(); }
void Presence::met() { impl_->met(); }
void Presence::check() const { impl_->check(); }

}  // namespace megatron::comm
