#include "megatron/supervise/ranks/attempts.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"
#include "megatron/base/text/printable.h"

namespace megatron::supervise {
namespace {

using Clock = std::chrono::steady_clock;

/// Ranks that wait for one that died learn of it and say so within a few seconds.
constexpr double kGraceS = 10;

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

double seconds_since(Clock::time_point moment) { return std::chrono::duration<double>(Clock::now() - moment).count(); }

bool has_failed(const ChildEnd& end) {
  constexpr int kDone = 0, kInterrupted = 3;  // run/exit_codes.h
  return end.lost || end.hung || (end.code != kDone && end.code != kInterrupted);
}

std::string list_of(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += concat(rank == *ranks.begin() ? " " : ", ", rank);
  return text;
}

/// What only who has started the supervisors can mend.
std::runtime_error broken(const std::string& what) {
  return std::runtime_error(
      rule_got_fix("A run continues where more than half of its hosts can talk, or half with the one that decides.",
                   what, "start all ranks again: the run resumes; torchrun --max-restarts does so by itself"));
}

/// By then a supervisor that has lost the others, at the latest when they lose it, has ended its rank.
double settling_s(const RendezvousAddress& place, const RankLimits& limits) {
  return place.silent_s + kGraceS + limits.dump_s + 2;
}

/// A port of this host that is free now.
int free_port(const std::string& address) {
  HostAddress own;
  own.size = sizeof own.storage;
  const int fd = bound_socket(address, 0);
  char port[NI_MAXSERV] = "0";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.size) == 0)
    getnameinfo(own.get(), own.size, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  close(fd);
  return std::stoi(port);
}

/// What a supervisor says that has no rank to end, before it ends.
constexpr const char* kLeaves = "leaves";

/// The program as the order has it.
ProgramStart ordered(ProgramStart program, const StartOrder& order) {
  program.variables[kAttemptVariable] = std::to_string(order.attempt);
  program.words.insert(program.words.end(), order.words.begin(), order.words.end());
  if (!order.seat) return program;
  for (const auto& [name, value] : environment_of(*order.seat)) program.variables[name] = value;
  return program;
}

/// Another rank's supervisor.
class Follower {
 public:
  Follower(const LaunchedRank& place, const ProgramStart& program, const HeldSignals& signals, const RankLimits& limits)
      : place_(rendezvous_address(place, limits.join_s)), program_(program), signals_(signals), limits_(limits) {}

  std::variant<int, Inheritance> go() {
    int signal = 0;
    const auto is_to_end = [&](double wait_s) { return asks_to_end(signal = signals_.take(wait_s)); };
    wire_ = come_to(place_, limits_.join_s, is_to_end);
    if (!wire_) return 128 + signal;
    while (true) {
      hear();
      if (finish_) return *finish_;
      if (!wire_->is_open()) {
        const std::string gone = concat("the supervisor of rank ", keeper_, " is gone");
        if (start_) told_ = *std::exchange(start_, std::nullopt);  // who keeps the meeting next, and from which number
        if (told_.attempt < 0 || last_.stopped) throw broken(gone);
        if (const auto heir = next_keeper(is_to_end)) return *heir;
        if (!wire_) return 128 + signal;
        if (!wire_->is_open()) throw broken(concat(gone, ", and those that would follow it are not reached"));
      }
      if (start_ && asked_ > 0) return 128 + asked_;
      if (start_) {
        attempt(*std::exchange(start_, std::nullopt));
        continue;
      }
      pollfd waits[2] = {{signals_.descriptor(), POLLIN, 0}, {wire_->descriptor(), POLLIN, 0}};
      poll(waits, 2, -1);
      signal = signals_.take(0);
      if (!asks_to_end(signal)) continue;
      if (asked_ > 0) return 128 + signal;
      hear();  // all may be over by now, or a place is given
      if (finish_) return *finish_;
      if (start_ && start_->is_spare) told_ = *std::exchange(start_, std::nullopt);
      if (told_.attempt < 0 || start_) return 128 + signal;
      if (told_.is_spare) {  // nothing of it is to be saved; a launcher takes another code for the end of all ranks
        write_line(stderr,
                   concat("supervisor: rank ", place_.rank, " waits for a place and is asked to end: it leaves"));
        wire_->send(kLeaves);
        return 0;
      }
      asked_ = signal;  // others may still save: the one that decides says when it is over
      last_.stopped = true;
      wire_->send(end_message(told_.attempt, last_));
    }
  }

 private:
  void attempt(const StartOrder& order) {
    told_ = order;
    stop_at_.reset();
    last_ = {};
    if (order.is_spare) return;
    if (stopped_ == order.attempt) stop();  // both were said at once
    last_ = run_child(
        ordered(program_, order), signals_,
        [this] {
          hear();
          return stop_at_ && seconds_since(*stop_at_) > kGraceS;
        },
        limits_.dump_s);
    wire_->send(end_message(order.attempt, last_));
  }

  /// Comes to the first that keeps a meeting of those that follow, or is the one to keep it; else all stays as it is.
  template <class IsToEnd>
  std::optional<Inheritance> next_keeper(const IsToEnd& is_to_end) {
    for (const auto& [rank, address] : heirs_of(told_.roster)) {
      if (rank == place_.rank) return Inheritance{.last = told_, .from = keeper_, .is_dead = wire_->has_died()};
      RendezvousAddress there = place_;
      there.address = address;
      try {
        wire_ = come_to(there, settling_s(place_, limits_), is_to_end);
        keeper_ = rank;
        return std::nullopt;
      } catch (const std::runtime_error&) {  // it is gone too
      }
    }
    return std::nullopt;
  }

  void hear() {
    while (const auto message = wire_->take()) {
      if (auto order = order_in(*message)) {
        start_ = std::move(*order);
        continue;
      }
      std::istringstream words(*message);
      std::string what;
      int number = -1;
      if (!(words >> what >> number)) continue;
      if (what == "finish") finish_ = number;
      if (what == "stop") stopped_ = number;
      if (what == "finish" || (what == "stop" && number == told_.attempt)) stop();
    }
    if (!wire_->is_open()) stop();
  }

  void stop() {
    if (!stop_at_) stop_at_ = Clock::now();
  }

  const RendezvousAddress place_;
  const ProgramStart& program_;
  const HeldSignals& signals_;
  const RankLimits& limits_;
  std::unique_ptr<Wire> wire_;
  int keeper_ = 0;   // the rank of the one that decides
  StartOrder told_;  // the last order that was followed
  int stopped_ = -1;
  int asked_ = 0;  // the signal that came after this rank had ended
  ChildEnd last_;  // of this rank
  std::optional<StartOrder> start_;
  std::optional<int> finish_;
  std::optional<Clock::time_point> stop_at_;
};

}  // namespace

std::string end_message(int attempt, const ChildEnd& end) {
  constexpr std::size_t kMost = 1 << 12;
  const std::string& errors = end.last_errors;
  return concat("ended ", attempt, " ", end.code, " ", end.signal, " ", end.stopped ? 1 : 0, " ", end.hung ? 1 : 0,
                "\n", errors.substr(errors.size() - std::min(errors.size(), kMost)));
}

std::optional<std::pair<int, ChildEnd>> end_in(const std::string& message) {
  std::istringstream words(message);
  std::string what;
  int attempt = 0, stopped = 0, hung = 0;
  ChildEnd end;
  if (!(words >> what >> attempt >> end.code >> end.signal >> stopped >> hung) || what != "ended") return std::nullopt;
  if (words.get() != '\n') return std::nullopt;
  end.stopped = stopped != 0;
  end.hung = hung != 0;
  end.last_errors.assign(std::istreambuf_iterator<char>(words), {});
  return std::pair(attempt, end);
}

ChildEnd end_of(const std::map<int, ChildEnd>& ranks, const std::set<int>& late) {
  constexpr int kLost = 1 << 10;  // above every exit code
  int told = -1, highest = 0;
  ChildEnd result;
  for (const auto& [rank, end] : ranks) {
    result.stopped = result.stopped || end.stopped;
    result.code = std::max(result.code, end.code);
    const int weight = late.contains(rank) ? 0 : 1 + (end.lost ? kLost : end.code);
    if (!has_failed(end) || (told >= 0 && weight <= highest)) continue;
    told = rank;
    highest = weight;
  }
  if (told < 0) return result;
  const bool stopped = result.stopped;
  result = ranks.at(told);
  result.stopped = stopped;
  result.rank = told;
  return result;
}

namespace {

RendezvousAddress meeting_at(const LaunchedRank& place, const RankLimits& limits,
                             const std::optional<Inheritance>& from) {
  RendezvousAddress meeting = rendezvous_address(place, limits.join_s);
  if (!from) return meeting;
  for (const RosterHost& host : from->last.roster)
    if (std::ranges::find(host.ranks, place.rank) != host.ranks.end()) meeting.address = host.address;
  return meeting;
}

std::optional<std::set<int>> expected_of(const std::optional<Inheritance>& from) {
  if (!from) return std::nullopt;
  std::set<int> ranks;
  for (const RosterHost& host : from->last.roster) ranks.insert(host.ranks.begin(), host.ranks.end());
  ranks.erase(from->from);
  return ranks;
}

}  // namespace

Attempts::Attempts(const LaunchedRank& place, const HeldSignals& signals, const RankLimits& limits,
                   const std::optional<Inheritance>& from)
    : place_(place), meeting_(meeting_at(place, limits, from), expected_of(from)), signals_(signals), limits_(limits) {
  if (!from) return;
  has_inherited_ = true;
  attempt_ = from->last.attempt;
  roster_ = from->last.roster;
  if (from->is_dead)
    known_dead_.insert(from->from);
  else
    settled_at_ = after(settling_s(meeting_.place(), limits));
}

/// Whom the next attempt waits for: at the start all, also one that has come and is gone again.
std::set<int> Attempts::awaited() const {
  if (has_gathered_) return {};
  std::set<int> ranks = meeting_.absent();
  if (has_inherited_) return ranks;
  for (const auto& [rank, has_died] : meeting_.gone()) ranks.insert(rank);
  return ranks;
}

std::optional<ChildEnd> Attempts::gather() {
  const auto begin = Clock::now();
  const double limit_s = has_inherited_ ? settling_s(meeting_.place(), limits_) : limits_.join_s;
  const auto end_by = [](int signal) {
    return ChildEnd{.code = 128 + signal, .signal = signal, .stopped = true, .last_errors = ""};
  };
  hear(0);
  while (!is_asked_to_end() && (!awaited().empty() || Clock::now() < settled_at_)) {
    hear(100);
    const int signal = signals_.take(0);
    if (asks_to_end(signal)) return end_by(signal);
    if (has_gathered_ || seconds_since(begin) < limit_s) continue;
    if (awaited().empty()) continue;
    if (has_inherited_) break;  // who is not here does not come
    throw std::runtime_error(rule_got_fix(
        "The supervisors of all ranks meet at that of rank 0.",
        concat(list_of(awaited()), " not there, at ", meeting_.place().text(), ", within ", limits_.join_s, " s"),
        "start all ranks with the same command"));
  }
  if (is_asked_to_end()) return end_by(SIGTERM);
  leave_torn_hosts();
  has_gathered_ = true;
  require_majority();
  return std::nullopt;
}

std::set<int> Attempts::dead() const {
  std::set<int> ranks = known_dead_;
  for (const auto& [rank, has_died] : meeting_.gone())
    if (has_died) ranks.insert(rank);
  return ranks;
}

/// The first time there is nobody to compare with: all have come.
void Attempts::require_majority() {
  const std::set<int> present = meeting_.present();
  if (!roster_.empty() && !may_continue(roster_, present, dead()))
    throw broken(concat("only ", list_of(present), " of ", meeting_.place().size, " here"));
}

int Attempts::available() const {
  std::set<int> ranks = meeting_.present();
  for (const int rank : left_out_) ranks.erase(rank);
  return static_cast<int>(ranks.size());
}

void Attempts::leave_out(int rank) {
  if (rank >= 0 && rank != place_.rank) left_out_.insert(rank);
}

void Attempts::listen(int wait_ms) { hear(wait_ms); }

std::set<int> Attempts::running() const {
  std::set<int> ranks;
  for (const int rank : seats_)
    if (!ends_.contains(rank)) ranks.insert(rank);
  return ranks;
}

void Attempts::stop() {
  if (stop_at_) return;
  stop_at_ = Clock::now();
  meeting_.tell(concat("stop ", attempt_));
}

bool Attempts::is_late() const { return stop_at_ && seconds_since(*stop_at_) > kGraceS; }

bool Attempts::has_asked(int rank) const {
  const auto end = ends_.find(rank);
  return asked_.contains(rank) || left_.contains(rank) || (end != ends_.end() && end->second.stopped);
}

/// Whether the host of this rank has lost another, which was not asked to end: then who started them, as torchrun's
/// agent, asks those that are left, and nobody means the run.
bool Attempts::is_of_torn_host(int rank) const {
  for (const RosterHost& host : roster_) {
    if (std::ranges::find(host.ranks, rank) == host.ranks.end()) continue;
    return std::ranges::any_of(host.ranks, [&](int other) {
      const auto end = ends_.find(other);
      const bool is_lost =
          meeting_.gone().contains(other) || known_dead_.contains(other) || (end != ends_.end() && end->second.lost);
      return other != rank && is_lost && !has_asked(other);
    });
  }
  return false;
}

bool Attempts::is_asked_to_end() const {
  return std::ranges::any_of(asked_, [&](int rank) { return rank == place_.rank || !is_of_torn_host(rank); });
}

/// Those that were asked to end because their host has lost another will be gone too: their ranks have ended, so that
/// nothing waits for them.
void Attempts::leave_torn_hosts() {
  for (const int rank : meeting_.present()) {
    if (rank == place_.rank || !has_asked(rank) || !is_of_torn_host(rank)) continue;
    meeting_.tell(rank, "finish 1");
    meeting_.leave(rank);
    known_dead_.insert(rank);
  }
}

void Attempts::note(int rank, const ChildEnd& end) {
  if (!is_under_way_ || std::ranges::find(seats_, rank) == seats_.end()) {  // one that waits
    if (end.stopped) asked_.insert(rank);
    return;
  }
  ends_[rank] = end;
  if (has_failed(end)) stop();
}

/// Ranks that run, and whose supervisor is gone.
void Attempts::note_losses() {
  const std::set<int> ranks = running();
  for (const auto& [rank, has_died] : meeting_.gone()) {
    if (!ranks.contains(rank)) continue;
    note(rank, {.code = 1, .last_errors = "", .lost = true});
    if (!has_died) settled_at_ = after(settling_s(meeting_.place(), limits_));
  }
}

void Attempts::hear(int wait_ms) {
  const std::map<int, bool> gone = meeting_.gone();
  for (const auto& [rank, message] : meeting_.listen(wait_ms, signals_.descriptor())) {
    if (message == kLeaves) left_.insert(rank);
    const auto said = end_in(message);
    if (!said) continue;
    if (said->first == attempt_)
      note(rank, said->second);
    else if (said->second.stopped)  // on the way when this attempt began
      asked_.insert(rank);
  }
  const std::set<int> present = meeting_.present();
  for (const auto& [rank, has_died] : gone)
    if (present.contains(rank)) write_line(stderr, concat("supervisor: rank ", rank, " is there again"));
  note_losses();
}

void Attempts::wait_for_others() {
  const auto begin = Clock::now();
  const double most_s = kGraceS + limits_.dump_s + 30;  // by then each supervisor has ended its rank
  while (!running().empty()) {
    hear(500);
    const bool asked = asks_to_end(signals_.take(0));
    const bool is_second = asked && !asked_.insert(place_.rank).second;  // the first lets them save
    if (is_second || seconds_since(begin) > limits_.hang_s) stop();
    if (!stop_at_ || seconds_since(std::max(*stop_at_, begin)) <= most_s) continue;
    for (const int rank : running()) {  // whatever holds it: it is not to wake up among the next attempt's
      meeting_.tell(rank, "finish 1");
      meeting_.leave(rank);
    }
    note_losses();
  }
}

ChildEnd Attempts::run(const ProgramStart& program, StartOrder order, int ranks,
                       const std::function<bool()>& is_stuck) {
  std::vector<std::pair<int, std::string>> here;
  for (const int rank : meeting_.present()) here.emplace_back(rank, meeting_.address_of(rank));
  roster_ = order.roster = roster_of(here, place_.rank);
  known_dead_.clear();
  attempt_ = order.attempt;
  stop_at_.reset();
  asked_.clear();
  left_.clear();
  ends_.clear();
  is_under_way_ = true;
  seats_ = seats_of(roster_, left_out_, ranks);
  const bool is_whole = static_cast<int>(seats_.size()) == meeting_.place().size;
  LaunchedRank store = place_;
  if (has_inherited_) {
    store.store_is_kept = false;
    store.address = meeting_.place().address;
    store.port = free_port(store.address);
  }
  StartOrder own;
  for (const auto& [rank, address] : here) {
    const auto seat = std::ranges::find(seats_, rank);
    order.is_spare = seat == seats_.end();
    order.seat.reset();
    if (!is_whole && !order.is_spare)
      order.seat = seat_at(roster_, seats_, static_cast<int>(seat - seats_.begin()), store);
    if (rank == place_.rank)
      own = order;
    else
      meeting_.tell(rank, order_message(order));
  }
  bool was_stuck = false;
  const ChildEnd own_end = run_child(
      ordered(program, own), signals_,
      [&] {
        hear(0);
        was_stuck = was_stuck || (!stop_at_ && is_stuck());
        return was_stuck || is_late();
      },
      limits_.dump_s);
  note(place_.rank, own_end);
  wait_for_others();
  std::set<int> late;
  for (const auto& [rank, end] : ends_)
    if (end.hung && !(rank == place_.rank && was_stuck)) late.insert(rank);
  is_under_way_ = false;
  for (auto& [rank, end] : ends_)
    if (end.stopped) asked_.insert(rank);
  const bool is_stopped = is_asked_to_end();
  leave_torn_hosts();
  ChildEnd end = end_of(ends_, late);
  end.stopped = is_stopped;
  return end;
}

void Attempts::finish(int code) { meeting_.tell(concat("finish ", code)); }

std::variant<int, Inheritance> follow(const LaunchedRank& place, const ProgramStart& program,
                                      const HeldSignals& signals, const RankLimits& limits) {
  return Follower(place, program, signals, limits).go();
}

}  // namespace megatron::supervise
