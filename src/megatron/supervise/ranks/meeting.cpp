#include "megatron/supervise/ranks/meeting.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"

namespace megatron::supervise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxFrame = 1 << 16, kSizeBytes = 4, kFreshDigits = 64;
constexpr std::string_view kHello = "rank ", kWelcome = "welcome";

/// A host that is switched off or cut off is silent: the system asks it, and ends the connection after `silent_s`.
void set_up(int socket, double silent_s) {
  const auto set = [socket](int level, int name, double value) {
    const int number = static_cast<int>(value);
    setsockopt(socket, level, name, &number, sizeof number);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1., silent_s / 3));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1., silent_s / 6));
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, silent_s * 1000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_SNDBUF, 2 * kMaxFrame);  // a message is taken as a whole
}

/// One end of a connection in digits; empty where the system does not know.
std::string host_of(int socket, decltype(getpeername) ask) {
  HostAddress end;
  end.size = sizeof end.storage;
  char host[NI_MAXHOST];
  if (ask(socket, reinterpret_cast<sockaddr*>(&end.storage), &end.size) != 0 ||
      getnameinfo(end.get(), end.size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return host;
}

/// Who has connected to the meeting at `own`: a process of the same host is reached where the meeting is.
std::string guest_address(int socket, const std::string& own) {
  std::string host = host_of(socket, getpeername);
  return host == host_of(socket, getsockname) ? own : host;
}

RunKey::Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

/// The rank that "rank 3" names; -1: it names none.
int rank_in(const std::string& message) {
  int rank = -1;
  if (!message.starts_with(kHello)) return -1;
  const char* const last = message.data() + message.size();
  const auto [end, error] = std::from_chars(message.data() + kHello.size(), last, rank);
  return error == std::errc() && end == last ? rank : -1;
}

/// Whether there is something to read, or to write, within so long.
bool is_ready(int socket, short events, int wait_ms) {
  pollfd wait{socket, events, 0};
  return poll(&wait, 1, wait_ms) > 0;
}

/// A connection to who listens at a port; negative: nobody does.
int connected_socket(const std::string& address, int port) {
  constexpr int kConnectMs = 2000;
  for (const HostAddress& peer : addresses_of(address, port)) {
    const int fd = socket(peer.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    bool connected = connect(fd, peer.get(), peer.size) == 0;
    if (!connected && errno == EINPROGRESS && is_ready(fd, POLLOUT, kConnectMs)) {
      int error = 0;
      socklen_t size = sizeof error;
      connected = getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    }
    if (connected) return fd;
    close(fd);
  }
  return -1;
}

/// Who answers at a port as the keeper of this run's meeting does; null: nobody.
std::unique_ptr<Wire> try_port(const RendezvousAddress& place, int port) {
  constexpr std::chrono::seconds kAnswerLimit{3};
  const int fd = connected_socket(place.address, port);
  if (fd < 0) return nullptr;
  auto wire = std::make_unique<Wire>(fd, place, false);
  wire->send(concat(kHello, place.rank));
  const auto until = Clock::now() + kAnswerLimit;
  while (wire->is_open() && Clock::now() < until) {
    if (const auto answer = wire->take()) {
      if (*answer == kWelcome) return wire;
      return nullptr;
    }
    if (wire->is_open()) is_ready(wire->descriptor(), POLLIN, 100);
  }
  return nullptr;
}

/// Each supervisor is a connection: where the system allows more of them than it does at first, as many as are needed.
void allow_connections(std::size_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = std::min<rlim_t>(limit.rlim_max, count);
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);  // else those that are too many are not there in time, which is said
}

}  // namespace

std::string RendezvousAddress::text() const { return concat(address, ", ports ", ports.front(), " to ", ports.back()); }

RendezvousAddress rendezvous_address(const LaunchedRank& place, double timeout_s) {
  constexpr int kPorts = 16, kFirst = 10000, kRange = 10000;
  RendezvousAddress meeting;
  meeting.rank = place.rank;
  meeting.size = place.world_size;
  meeting.address = place.address;
  for (int i = 1; i <= kPorts; ++i) meeting.ports.push_back(kFirst + place.port % kRange + i);
  meeting.run = concat(place.address, ":", place.port, " ", place.store_prefix, " ", place.world_size);
  meeting.secret = secret_of(place);
  meeting.silent_s = std::clamp(timeout_s, 5., 30.);
  return meeting;
}

Wire::Wire(int socket, const RendezvousAddress& place, bool keeps)
    : socket_(socket), key_(place.secret), run_(place.run), keeps_(keeps), mine_(random_secret()) {
  set_up(socket_, place.silent_s);
  write_frame(bytes_of(mine_));
}

Wire::~Wire() { close_it(); }

void Wire::close_it() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

std::string Wire::name_of(bool of_keeper, std::uint64_t number) const {
  return concat("supervisors ", run_, " ", keeps_ ? mine_ : theirs_, " ", keeps_ ? theirs_ : mine_, " ",
                of_keeper ? "keeper" : "guest", " ", number);
}

void Wire::write_frame(const RunKey::Bytes& bytes) {
  RunKey::Bytes frame;
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<std::uint8_t>(bytes.size() >> shift));
  frame.insert(frame.end(), bytes.begin(), bytes.end());
  // Where the system does not take it, the other end has read nothing for long, or is gone.
  const ssize_t sent = ::send(socket_, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(frame.size())) return;
  is_left_ = is_left_ || sent >= 0 || errno != EPIPE;  // what read_on() says of a reset holds here too
  shutdown(socket_, SHUT_RDWR);
}

void Wire::send(const std::string& message) {
  constexpr std::size_t kMost = kMaxFrame - 1024;  // besides its hash
  if (message.size() > kMost)
    throw std::runtime_error(rule_got_fix(concat("Supervisors say at most ", kMost, " bytes at once."),
                                          concat(message.size(), ", as a rule the list of all hosts and ranks"),
                                          "ranks numbered host by host; shorter options; fewer hosts"));
  if (!is_open()) return;
  if (theirs_.empty())  // what the hash is over is not known yet
    waiting_.push_back(message);
  else
    write_frame(key_.seal(name_of(keeps_, sent_++), bytes_of(message)));
}

void Wire::read_on() {
  std::uint8_t part[1 << 12];
  while (!has_ended_ && read_.size() <= kMaxFrame) {
    const ssize_t got = recv(socket_, part, sizeof part, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) {
      read_.insert(read_.end(), part, part + got);
      continue;
    }
    // A reset may come from a host that lives and has given this one up, so it counts as silence. A process that is
    // killed before it has read all resets too, and costs the wait that a silent one does.
    has_died_ = !is_left_ && got == 0;
    has_ended_ = true;
  }
}

std::optional<RunKey::Bytes> Wire::next_frame() {
  if (read_.size() < kSizeBytes) return std::nullopt;
  std::size_t size = 0;
  for (std::size_t i = 0; i < kSizeBytes; ++i) size = size << 8 | read_[i];
  if (size > kMaxFrame) {
    end();
    return std::nullopt;
  }
  if (read_.size() < kSizeBytes + size) return std::nullopt;
  const auto begin = read_.begin() + kSizeBytes, end = begin + static_cast<std::ptrdiff_t>(size);
  RunKey::Bytes frame(begin, end);
  read_.erase(read_.begin(), end);
  return frame;
}

std::optional<std::string> Wire::take() {
  if (!is_open()) return std::nullopt;
  read_on();
  while (const auto frame = next_frame()) {
    if (theirs_.empty()) {
      if (frame->size() != kFreshDigits) end();
      theirs_.assign(frame->begin(), frame->end());
      for (const std::string& message : std::exchange(waiting_, {})) send(message);
      continue;
    }
    const auto message = key_.open(name_of(!keeps_, taken_++), *frame);
    if (!message) {
      end();
      break;
    }
    return std::string(message->begin(), message->end());
  }
  if (has_ended_) close_it();
  return std::nullopt;
}

Meeting::Meeting(RendezvousAddress place, std::optional<std::set<int>> expected)
    : place_(std::move(place)), seats_(static_cast<std::size_t>(place_.size)) {
  if (expected)
    expected_ = std::move(*expected);
  else
    for (int r = 0; r < place_.size; ++r) expected_.insert(r);
  expected_.erase(place_.rank);
  allow_connections(4 * seats_.size() + 1024);  // guests too, and this process's files
  seats_[static_cast<std::size_t>(place_.rank)].address = place_.address;
  std::string why;
  for (const int port : place_.ports) {
    try {
      listener_ = bound_socket(place_.address, port);
    } catch (const HostError&) {
      throw;
    } catch (const std::runtime_error& error) {
      why = error.what();
      continue;
    }
    if (::listen(listener_, SOMAXCONN) == 0 && fcntl(listener_, F_SETFL, O_NONBLOCK) == 0) return;
    close(std::exchange(listener_, -1));
  }
  throw std::runtime_error(
      rule_got_fix(concat("The supervisor of rank ", place_.rank, " must keep the meeting of the others."), why,
                   "MASTER_ADDR of rank 0's host, and another MASTER_PORT"));
}

Meeting::~Meeting() {
  if (listener_ >= 0) close(listener_);
}

std::set<int> Meeting::present() const {
  std::set<int> ranks = {place_.rank};
  for (int r = 0; r < place_.size; ++r)
    if (seats_[static_cast<std::size_t>(r)].wire) ranks.insert(r);
  return ranks;
}

std::set<int> Meeting::absent() const {
  std::set<int> ranks;
  for (const int r : expected_)
    if (!seats_[static_cast<std::size_t>(r)].wire && !gone_.contains(r)) ranks.insert(r);
  return ranks;
}

void Meeting::tell(const std::string& message) {
  for (const Seat& seat : seats_)
    if (seat.wire) seat.wire->send(message);
}

void Meeting::tell(int rank, const std::string& message) {
  if (const auto& wire = seats_.at(static_cast<std::size_t>(rank)).wire) wire->send(message);
}

void Meeting::leave(int rank) {
  seats_.at(static_cast<std::size_t>(rank)).wire = nullptr;
  gone_[rank] = false;
}

bool Meeting::may_sit(int rank) const {
  return rank >= 0 && rank < place_.size && rank != place_.rank && !seats_[static_cast<std::size_t>(rank)].wire;
}

void Meeting::welcome_guests() {
  constexpr std::chrono::seconds kHelloLimit{10};
  const std::size_t most = 2 * seats_.size() + 64;
  while (guests_.size() < most) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) break;
    std::string address = guest_address(fd, place_.address);
    guests_.push_back({std::make_unique<Wire>(fd, place_, true), Clock::now(), std::move(address)});
  }
  for (Guest& guest : guests_) {
    if (const auto hello = guest.wire->take()) {
      const int rank = rank_in(*hello);
      if (may_sit(rank)) {
        guest.wire->send(std::string(kWelcome));
        seats_[static_cast<std::size_t>(rank)] = {std::move(guest.wire), guest.address};
        gone_.erase(rank);
      } else {
        guest.wire = nullptr;
      }
    } else if (!guest.wire->is_open() || Clock::now() > guest.came + kHelloLimit) {
      guest.wire = nullptr;
    }
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.wire; });
}

std::vector<std::pair<int, std::string>> Meeting::listen(int wait_ms, int also) {
  std::vector<pollfd> waits = {{also, POLLIN, 0}, {listener_, POLLIN, 0}};  // of negative ones nothing comes
  for (const Guest& guest : guests_) waits.push_back({guest.wire->descriptor(), POLLIN, 0});
  for (const Seat& seat : seats_)
    if (seat.wire) waits.push_back({seat.wire->descriptor(), POLLIN, 0});
  poll(waits.data(), waits.size(), wait_ms);
  welcome_guests();
  std::vector<std::pair<int, std::string>> said;
  for (int r = 0; r < place_.size; ++r) {
    auto& wire = seats_[static_cast<std::size_t>(r)].wire;
    if (!wire) continue;
    while (auto message = wire->take()) said.emplace_back(r, std::move(*message));
    if (wire->is_open()) continue;
    gone_[r] = wire->has_died();
    wire = nullptr;
  }
  return said;
}

std::unique_ptr<Wire> come_to(const RendezvousAddress& place, double timeout_s,
                              const std::function<bool(double wait_s)>& is_to_end) {
  const auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (true) {
    for (const int port : place.ports) {
      constexpr std::chrono::seconds kSilent{1};
      const auto begin = Clock::now();
      if (auto wire = try_port(place, port)) return wire;
      if (is_to_end(0)) return nullptr;
      const auto now = Clock::now();
      if (now >= until && now >= begin + kSilent) break;  // a host that does not answer does not at other ports either
    }
    if (is_to_end(0.1)) return nullptr;
    if (Clock::now() >= until)
      throw std::runtime_error(
          rule_got_fix("The supervisors of all ranks meet at that of rank 0.",
                       concat("none of this run at ", place.text(), " within ", timeout_s, " s"),
                       "start all ranks with the same command, and check MASTER_ADDR and MASTER_PORT"));
  }
}

}  // namespace megatron::supervise
