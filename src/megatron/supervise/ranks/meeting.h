#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/ranks/launched_rank.h"
#include "megatron/base/ranks/run_key.h"

// How the supervisors of a run's ranks talk, where a launcher has started one for each: one keeps a meeting, at first
// that of rank 0, the others come to it and stay. Messages are texts of at most 63 KiB.
namespace megatron::supervise {

/// Where the supervisors of a run meet, which follows from what a launcher has told each of them.
struct RendezvousAddress {
  int rank = 0, size = 1;  ///< of the run
  std::string address;
  std::vector<int> ports;  ///< the meeting is at the first that was free
  std::string run;         ///< tells it from others, also from the same run when its launcher starts it again
  std::string secret;      ///< of the run; empty where only this host reaches the address
  double silent_s = 30;    ///< a supervisor whose host has not answered for so long is gone

  std::string text() const;  ///< "HOST, ports A to B"
};

/// At the address where the ranks' store is, on sixteen ports that its port decides: they are from 10001 to 20015, and
/// that port is none of them. Who is silent is given up after `timeout_s`, that of the ranks, but not before 5 s nor
/// after 30 s. Throws ConfigError as secret_of().
RendezvousAddress rendezvous_address(const LaunchedRank& place, double timeout_s = 30);

/// One end of a connection. What comes is believed where it carries a hash keyed by the run's secret, of its text, its
/// number and fresh numbers of both ends; else the connection ends.
class Wire {
 public:
  /// Takes the socket over. `keeps`: this end is that of the meeting.
  Wire(int socket, const RendezvousAddress& place, bool keeps);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int descriptor() const { return socket_; }     ///< readable once there is news; negative: closed
  bool is_open() const { return socket_ >= 0; }  ///< messages may wait all the same
  /// The process at the other end has ended in order, as its host has said. A connection that was reset is no sign.
  bool has_died() const { return has_died_; }
  /// Where the other end is gone, take() says so. Throws std::runtime_error for more than 63 KiB.
  void send(const std::string& message);
  std::optional<std::string> take();  ///< the next message, without waiting

 private:
  void write_frame(const RunKey::Bytes& bytes);
  void read_on();
  void end() { has_ended_ = is_left_ = true; }
  std::optional<RunKey::Bytes> next_frame();
  std::string name_of(bool of_keeper, std::uint64_t number) const;
  void close_it();

  int socket_;
  const RunKey key_;
  const std::string run_;
  const bool keeps_;
  std::string mine_, theirs_;  ///< fresh numbers
  RunKey::Bytes read_;
  bool has_ended_ = false;  ///< nothing more comes
  bool is_left_ = false;    ///< by this end, or because the other one was silent
  bool has_died_ = false;
  std::vector<std::string> waiting_;
  std::uint64_t sent_ = 0, taken_ = 0;
};

/// The meeting, at the supervisor of place.rank. A rank whose connection has ended may come again.
class Meeting {
 public:
  /// Expects these ranks, by default all. Throws std::runtime_error where no port is free, or the address is not this
  /// host's.
  explicit Meeting(RendezvousAddress place, std::optional<std::set<int>> expected = {});
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  const RendezvousAddress& place() const { return place_; }
  /// Waits at most so long for news, or until there is something to read at `also`. What the others have said since,
  /// and which rank did.
  std::vector<std::pair<int, std::string>> listen(int wait_ms, int also = -1);
  void tell(const std::string& message);            ///< to all who are there
  void tell(int rank, const std::string& message);  ///< nothing happens where it is not there
  void leave(int rank);                             ///< ends its connection; it is gone, and silent
  std::set<int> absent() const;                     ///< ranks that are expected and have never come
  std::set<int> present() const;                    ///< ranks that are there, this one's among them
  /// Ranks that came and whose connection has ended, and whether they are known to have died: others were silent.
  const std::map<int, bool>& gone() const { return gone_; }
  /// The host of a rank that is there or was, as others reach it: an address of digits, or place().address.
  const std::string& address_of(int rank) const { return seats_.at(static_cast<std::size_t>(rank)).address; }

 private:
  struct Seat {
    std::unique_ptr<Wire> wire;  ///< null: not there
    std::string address;
  };
  struct Guest {  ///< who has not said which rank it is
    std::unique_ptr<Wire> wire;
    std::chrono::steady_clock::time_point came;
    std::string address;
  };
  void welcome_guests();
  bool may_sit(int rank) const;

  const RendezvousAddress place_;
  std::set<int> expected_;
  int listener_ = -1;
  std::vector<Guest> guests_;
  std::vector<Seat> seats_;  ///< of rank r
  std::map<int, bool> gone_;
};

/// Comes to the meeting of place.run as place.rank, and tries to for `timeout_s`. `is_to_end` is asked between tries:
/// it waits so long for an order to this process to end, and says whether there was one; then nothing is returned.
/// Throws std::runtime_error.
std::unique_ptr<Wire> come_to(const RendezvousAddress& place, double timeout_s,
                              const std::function<bool(double wait_s)>& is_to_end);

}  // namespace megatron::supervise
