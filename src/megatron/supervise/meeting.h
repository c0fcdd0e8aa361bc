#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/ranks/launched_rank.h"
#include "megatron/base/ranks/run_key.h"

// How the supervisors of a run's ranks talk, where a launcher has started one for each: that of rank 0 keeps a meeting,
// the others come to it and stay. Messages are texts of less than 64 KiB.
namespace megatron::supervise {

/// Where the supervisors of a run meet, which follows from what a launcher has told each of them.
struct RendezvousAddress {
  int rank = 0, size = 1;  ///< of the run
  std::string address;
  std::vector<int> ports;  ///< the meeting is at the first that was free
  std::string run;         ///< tells it from others, also from the same run when its launcher starts it again
  std::string secret;      ///< of the run; empty where only this host reaches the address

  std::string text() const;  ///< "HOST, ports A to B"
};

/// At the address where the ranks' store is, on sixteen ports that its port decides: they are from 10001 to 20015, and
/// that port is none of them. Throws ConfigError as secret_of().
RendezvousAddress rendezvous_address(const LaunchedRank& place);

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
  void send(const std::string& message);         ///< where the other end is gone, take() says so
  std::optional<std::string> take();             ///< the next message, without waiting

 private:
  void write_frame(const RunKey::Bytes& bytes);
  void read_on();
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
  std::vector<std::string> waiting_;
  std::uint64_t sent_ = 0, taken_ = 0;
};

/// The meeting, at the supervisor of rank 0.
class Meeting {
 public:
  /// Throws std::runtime_error where no port is free, or the address is not this host's.
  explicit Meeting(RendezvousAddress place);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  const RendezvousAddress& place() const { return place_; }
  /// Waits at most so long for news, or until there is something to read at `also`. What the others have said since,
  /// and which rank did.
  std::vector<std::pair<int, std::string>> listen(int wait_ms, int also = -1);
  void tell(const std::string& message);               ///< to all who are there
  std::set<int> absent() const;                        ///< ranks that have not come yet
  const std::set<int>& gone() const { return gone_; }  ///< ranks that came and whose connection has ended

 private:
  struct Guest {  ///< who has not said which rank it is
    std::unique_ptr<Wire> wire;
    std::chrono::steady_clock::time_point came;
  };
  void welcome_guests();

  const RendezvousAddress place_;
  int listener_ = -1;
  std::vector<Guest> guests_;
  std::vector<std::unique_ptr<Wire>> ranks_;  ///< of rank r; null: has not come
  std::set<int> gone_;
};

/// Comes to the meeting of place.run as place.rank, and tries to for `timeout_s`. `is_to_end` is asked between tries:
/// it waits so long for an order to this process to end, and says whether there was one; then nothing is returned.
/// Throws std::runtime_error.
std::unique_ptr<Wire> come_to(const RendezvousAddress& place, double timeout_s,
                              const std::function<bool(double wait_s)>& is_to_end);

}  // namespace megatron::supervise
