#include "megatron/supervise/attempts.h"

#include <poll.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::supervise {
namespace {

using Clock = std::chrono::steady_clock;

/// Ranks that wait for one that died learn of it and say so within a few seconds.
constexpr double kGraceS = 10;

double seconds_since(Clock::time_point moment) { return std::chrono::duration<double>(Clock::now() - moment).count(); }

bool has_failed(const ChildEnd& end) {
  constexpr int kDone = 0, kInterrupted = 3;  // run/exit_codes.h
  return end.hung || (end.code != kDone && end.code != kInterrupted);
}

std::string list_of(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += concat(rank == *ranks.begin() ? " " : ", ", rank);
  return text;
}

/// What only the launcher can mend.
std::runtime_error broken(const std::string& what) {
  return std::runtime_error(rule_got_fix("The supervisors of all ranks must live as long as the run.", what,
                                         "start all ranks again; torchrun --max-restarts does so by itself"));
}

ProgramStart with_attempt(ProgramStart program, int attempt) {
  program.variables[kAttemptVariable] = std::to_string(attempt);
  return program;
}

/// Another rank's supervisor.
class Follower {
 public:
  Follower(const ProgramStart& program, const HeldSignals& signals, const RankLimits& limits)
      : program_(program), signals_(signals), limits_(limits) {}

  int go(const RendezvousAddress& place) {
    int signal = 0;
    const auto is_to_end = [&](double wait_s) { return asks_to_end(signal = signals_.take(wait_s)); };
    wire_ = come_to(place, limits_.join_s, is_to_end);
    if (!wire_) return 128 + signal;
    while (true) {
      hear();
      if (finish_) return *finish_;
      if (!wire_->is_open()) throw broken("that of rank 0 is gone");
      if (start_ && asked_ > 0) return 128 + asked_;
      if (start_) {
        attempt(*std::exchange(start_, std::nullopt));
        continue;
      }
      pollfd waits[2] = {{signals_.descriptor(), POLLIN, 0}, {wire_->descriptor(), POLLIN, 0}};
      poll(waits, 2, -1);
      signal = signals_.take(0);
      if (!asks_to_end(signal)) continue;
      if (attempt_ < 0 || asked_ > 0) return 128 + signal;
      asked_ = signal;  // others may still save: rank 0's supervisor says when it is over
      last_.stopped = true;
      wire_->send(end_message(attempt_, last_));
    }
  }

 private:
  void attempt(int number) {
    attempt_ = number;
    stop_at_.reset();
    if (stopped_ == number) stop();  // both were said at once
    const ChildEnd end = run_child(
        with_attempt(program_, number), signals_,
        [this] {
          hear();
          return stop_at_ && seconds_since(*stop_at_) > kGraceS;
        },
        limits_.dump_s);
    last_ = end;
    wire_->send(end_message(number, end));
  }

  void hear() {
    while (const auto message = wire_->take()) {
      std::istringstream words(*message);
      std::string what;
      int number = -1;
      if (!(words >> what >> number)) continue;
      if (what == "start") start_ = number;
      if (what == "finish") finish_ = number;
      if (what == "stop") stopped_ = number;
      if (what == "finish" || (what == "stop" && number == attempt_)) stop();
    }
    if (!wire_->is_open()) stop();
  }

  void stop() {
    if (!stop_at_) stop_at_ = Clock::now();
  }

  const ProgramStart& program_;
  const HeldSignals& signals_;
  const RankLimits& limits_;
  std::unique_ptr<Wire> wire_;
  int attempt_ = -1, stopped_ = -1;
  int asked_ = 0;  // the signal that came after this rank had ended
  ChildEnd last_;  // of this rank
  std::optional<int> start_, finish_;
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

ChildEnd end_of(const std::vector<ChildEnd>& ranks, const std::set<int>& late) {
  int told = -1, highest = 0;
  ChildEnd result;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const ChildEnd& end = ranks[static_cast<std::size_t>(r)];
    result.stopped = result.stopped || end.stopped;
    result.code = std::max(result.code, end.code);
    const int weight = late.contains(r) ? 0 : 1 + end.code;
    if (!has_failed(end) || (told >= 0 && weight <= highest)) continue;
    told = r;
    highest = weight;
  }
  if (told < 0) return result;
  const bool stopped = result.stopped;
  result = ranks[static_cast<std::size_t>(told)];
  result.stopped = stopped;
  result.rank = told;
  return result;
}

Attempts::Attempts(const RendezvousAddress& place, const HeldSignals& signals, const RankLimits& limits)
    : meeting_(place), signals_(signals), limits_(limits), ends_(static_cast<std::size_t>(place.size)) {}

std::optional<ChildEnd> Attempts::gather() {
  const auto begin = Clock::now();
  while (!meeting_.absent().empty()) {
    meeting_.listen(100, signals_.descriptor());
    const int signal = signals_.take(0);
    if (asks_to_end(signal))
      return ChildEnd{.code = 128 + signal, .signal = signal, .stopped = true, .last_errors = ""};
    require_all();
    if (seconds_since(begin) < limits_.join_s) continue;
    throw std::runtime_error(rule_got_fix("The supervisors of all ranks meet at that of rank 0.",
                                          concat(list_of(meeting_.absent()), " not there, at ", meeting_.place().text(),
                                                 ", within ", limits_.join_s, " s"),
                                          "start all ranks with the same command"));
  }
  return std::nullopt;
}

std::set<int> Attempts::running() const {
  std::set<int> ranks;
  for (int r = 0; r < static_cast<int>(ends_.size()); ++r)
    if (!ends_[static_cast<std::size_t>(r)]) ranks.insert(r);
  return ranks;
}

void Attempts::stop() {
  if (stop_at_) return;
  stop_at_ = Clock::now();
  meeting_.tell(concat("stop ", attempt_));
}

bool Attempts::is_late() const { return stop_at_ && seconds_since(*stop_at_) > kGraceS; }

void Attempts::note(int rank, const ChildEnd& end) {
  ends_[static_cast<std::size_t>(rank)] = end;
  if (has_failed(end)) stop();
}

void Attempts::hear(int wait_ms) {
  for (const auto& [rank, message] : meeting_.listen(wait_ms, signals_.descriptor())) {
    const auto said = end_in(message);
    if (said && said->first == attempt_) note(rank, said->second);
  }
  if (!meeting_.gone().empty()) stop();
}

void Attempts::wait_for_others() {
  const auto begin = Clock::now();
  const double most_s = kGraceS + limits_.dump_s + 30;  // by then each supervisor has ended its rank
  while (!running().empty() && meeting_.gone().empty()) {
    hear(500);
    const bool asked = asks_to_end(signals_.take(0));
    if ((asked && asked_to_end_) || seconds_since(begin) > limits_.hang_s) stop();  // a first signal lets them save
    asked_to_end_ = asked_to_end_ || asked;
    if (stop_at_ && !running().empty() && seconds_since(std::max(*stop_at_, begin)) > most_s)
      throw broken(concat(list_of(running()), ": no word of the supervisor for ", most_s, " s"));
  }
  require_all();
}

void Attempts::require_all() const {
  if (!meeting_.gone().empty()) throw broken(concat(list_of(meeting_.gone()), ": its supervisor is gone"));
}

ChildEnd Attempts::run(const ProgramStart& program, int attempt, const std::function<bool()>& is_stuck) {
  if (const auto end = gather()) return *end;
  hear(0);
  require_all();  // none has ended while a restart was waited for
  attempt_ = attempt;
  stop_at_.reset();
  asked_to_end_ = false;
  ends_.assign(ends_.size(), std::nullopt);
  meeting_.tell(concat("start ", attempt));
  bool was_stuck = false;
  const ChildEnd own = run_child(
      with_attempt(program, attempt), signals_,
      [&] {
        hear(0);
        was_stuck = was_stuck || (!stop_at_ && is_stuck());
        return was_stuck || is_late();
      },
      limits_.dump_s);
  note(0, own);
  wait_for_others();
  std::vector<ChildEnd> ends;
  std::set<int> late;
  for (int r = 0; r < static_cast<int>(ends_.size()); ++r) {
    ends.push_back(*ends_[static_cast<std::size_t>(r)]);
    if (ends.back().hung && !(r == 0 && was_stuck)) late.insert(r);
  }
  ChildEnd end = end_of(ends, late);
  end.stopped = end.stopped || asked_to_end_;
  return end;
}

void Attempts::finish(int code) { meeting_.tell(concat("finish ", code)); }

int follow(const RendezvousAddress& place, const ProgramStart& program, const HeldSignals& signals,
           const RankLimits& limits) {
  return Follower(program, signals, limits).go(place);
}

}  // namespace megatron::supervise
