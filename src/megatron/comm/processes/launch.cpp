#include "megatron/comm/processes/launch.h"

#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/machine/child_process.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/gloo_backend.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Whether SIGSTOP or a debugger holds the process.
bool is_stopped(pid_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  return text[name_end + 2] == 'T' || text[name_end + 2] == 't';
}

/// The ranks that were started, and what became of them.
class Children {
 public:
  ~Children() {
    signal_all(SIGKILL);
    for (const pid_t pid : pids_)
      if (pid > 0) waitpid(pid, nullptr, 0);
  }

  void add(pid_t pid) { pids_.push_back(pid); }
  bool any() const {
    return std::any_of(pids_.begin(), pids_.end(), [](pid_t p) { return p > 0; });
  }
  /// To each rank and what it has started itself.
  void signal_all(int signal) const {
    for (const pid_t pid : pids_)
      if (pid > 0 && kill(-pid, signal) != 0) kill(pid, signal);
  }

  /// To the first rank alone.
  void signal_first(int signal) const {
    if (!pids_.empty() && pids_[0] > 0) kill(pids_[0], signal);
  }

  /// Those that do not run, whatever has stopped them: no signal but this one reaches them.
  void kill_stopped() const {
    for (const pid_t pid : pids_)
      if (pid > 0 && is_stopped(pid)) kill(-pid, SIGKILL);
  }

  /// From now on a rank that this signal ends is no failure: it was passed on to all.
  void expect(int signal) { expected_.push_back(signal); }

  /// Takes note of those that something holds, which others then miss.
  void note_stopped() {
    for (std::size_t r = 0; r < pids_.size(); ++r)
      if (pids_[r] > 0 && is_stopped(pids_[r])) stopped_.push_back(static_cast<int>(r));
  }

  /// Takes note of every rank that has ended. `by_us`: they have been told to.
  void reap(bool by_us, const std::vector<int>& clean_codes) {
    for (std::size_t r = 0; r < pids_.size(); ++r) {
      int status = 0;
      if (pids_[r] <= 0 || waitpid(pids_[r], &status, WNOHANG) != pids_[r]) continue;
      kill(-pids_[r], SIGKILL);  // what the rank itself has started
      pids_[r] = 0;
      const bool killed = !WIFEXITED(status);
      const int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      const bool clean = std::find(clean_codes.begin(), clean_codes.end(), code) != clean_codes.end();
      ends_[static_cast<int>(r)] = {.code = code, .killed = killed, .by_us = by_us, .clean = clean};
      const bool passed_on = killed && std::ranges::find(expected_, WTERMSIG(status)) != expected_.end();
      if (passed_on && !by_us && first_ < 0) is_interrupted_ = true;
      if (!clean && first_ < 0) first_ = static_cast<int>(r);
    }
  }

  /// The first rank that ended with a code that is not clean; -1: none.
  int first() const { return first_; }
  /// A signal has ended that one, which has told nobody.
  bool first_was_killed() const { return first_ >= 0 && ends_.at(first_).killed; }

  /// Once all have ended. `told`: what StoreServer::told_failure() said when the first had.
  LaunchResult result(const std::string& told) const {
    LaunchResult result;
    for (const auto& [rank, end] : ends_) result.exit_code = std::max(result.exit_code, end.code);
    result.first_failed_rank = first_failed(told);
    if (is_interrupted_) result.interrupted_by = expected_.front();
    if (first_ < 0) return result;
    const Ending& end = ends_.at(result.first_failed_rank);
    if (told.empty() && all_ended_alike()) {
      result.message = concat("all ranks failed, with exit code ", end.code);
      return result;
    }
    result.message = concat("rank ", result.first_failed_rank, " failed first, ");
    if (is_among_stopped(result.first_failed_rank))
      result.message += "stopped by SIGSTOP or a debugger";
    else if (!end.killed)
      result.message += concat("with exit code ", end.code);
    else if (end.by_us)
      result.message += "and was ended";
    else
      result.message += concat("ended by signal ", end.code - 128, " (", strsignal(end.code - 128), ")");
    return result;
  }

 private:
  struct Ending {
    int code = 0;
    bool killed = false, by_us = false, clean = false;
  };

  /// A rank that fails tells the others before it ends, and they may end before it does. One that dies without a word
  /// is the first to end, and then others may tell that they miss it.
  int first_failed(const std::string& told) const {
    if (first_ < 0 || ends_.at(first_).killed) return first_;
    constexpr std::string_view kBefore = "rank ", kBehind = " failed: ";
    int teller = -1;
    if (!told.starts_with(kBefore)) return first_;
    const auto [end_of_number, error] =
        std::from_chars(told.data() + kBefore.size(), told.data() + told.size(), teller);
    if (error != std::errc() || !std::string_view(end_of_number).starts_with(kBehind)) return first_;
    const auto end = ends_.find(teller);
    const std::string reason = told.substr(std::min(told.size(), told.find(": ")));
    const bool misses_first = names_rank(reason, first_);
    for (const int stopped : stopped_)
      if ((teller == first_ || !misses_first) && names_rank(reason, stopped)) return stopped;
    return end == ends_.end() || end->second.clean || misses_first ? first_ : teller;
  }

  /// By themselves, for what they have agreed on: who ended first is chance.
  bool all_ended_alike() const {
    const Ending& any = ends_.begin()->second;
    return std::ranges::all_of(
        ends_, [&](const auto& one) { return !one.second.killed && !one.second.by_us && one.second.code == any.code; });
  }

  bool is_among_stopped(int rank) const { return std::ranges::find(stopped_, rank) != stopped_.end(); }

  static bool names_rank(const std::string& text, int rank) {
    const std::string name = concat("rank ", rank);
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
      if (at + name.size() == text.size() || text[at + name.size()] < '0' || text[at + name.size()] > '9') return true;
    return false;
  }

  std::vector<pid_t> pids_;  ///< 0: has ended
  std::map<int, Ending> ends_;
  int first_ = -1;
  std::vector<int> stopped_;   ///< ranks, when the first had failed
  std::vector<int> expected_;  ///< signals
  bool is_interrupted_ = false;
};

/// What the ranks' store says.
struct Told {
  std::function<std::string()> failure;  ///< StoreServer::told_failure(); asked once, when a rank has failed
  std::function<bool()> all_have_come;   ///< asked when a signal has ended one
};

/// Waits for all, passes the first signal on and ends those that stay: after a second one, and after a rank has failed.
LaunchResult supervise(Children& children, const HeldSignals& signals, const LaunchOptions& options, const Told& told) {
  std::optional<Clock::time_point> first_signal, first_failure;
  std::string failure;
  int escalation = 0;
  while (true) {
    children.reap(escalation > 0, options.clean_codes);
    if (children.first() >= 0 && !first_failure) {
      first_failure = Clock::now();
      children.note_stopped();
      failure = told.failure();
      // The others wait for it in vain, have done nothing yet, and could not say what has become of it.
      if (children.first_was_killed() && !told.all_have_come()) {
        children.signal_all(SIGTERM);
        children.kill_stopped();
        escalation = 1;
      }
    }
    if (!children.any()) return children.result(failure);
    if (first_failure && escalation < 2 && Clock::now() >= *first_failure + (escalation + 1) * options.grace) {
      children.signal_all(escalation++ == 0 ? SIGTERM : SIGKILL);
      children.kill_stopped();  // which SIGTERM does not reach
    }
    if (first_signal && Clock::now() >= *first_signal + options.stop_grace) children.kill_stopped();
    const int signal = signals.take(0.1);
    if (signal == SIGUSR1) children.signal_first(signal);  // it tells the others
    if (signal == SIGUSR2) children.signal_all(signal);
    if (!asks_to_end(signal)) continue;
    children.expect(first_signal ? SIGKILL : signal);
    children.signal_all(first_signal ? SIGKILL : signal);
    children.signal_all(SIGCONT);  // a rank that somebody has stopped could not act on it
    if (!first_signal) first_signal = Clock::now();
  }
}

/// As a rank reads it: with what it inherits from this process.
LaunchedRank as_read_by_rank(const LaunchedRank& place) {
  Environment variables = environment_of(place);
  variables.merge(process_environment());
  return place_from(variables).value_or(place);
}

}  // namespace

LaunchResult launch_processes(int size, const std::vector<std::string>& command, const LaunchOptions& options) {
  if (size < 1 || command.empty())
    throw ConfigError(rule_got_fix("A launch needs at least one rank and a program.", concat(size, " ranks")));
  const HeldSignals signals;  // before the store starts its thread
  const StoreServer store;
  Children children;
  LaunchedRank place;
  place.secret = random_secret();
  for (int r = 0; r < size; ++r) {
    place.rank = place.local_rank = r;
    place.world_size = place.local_size = size;
    place.port = store.port();
    place.store_is_kept = place.rank_0_speaks = true;
    children.add(start_process({.path = command[0], .words = command, .variables = environment_of(place)}, signals));
  }
  return supervise(children, signals, options,
                   {.failure = [&] { return store.told_failure(as_read_by_rank(place)); },
                    .all_have_come = [&] { return store.all_have_come(as_read_by_rank(place)); }});
}

}  // namespace megatron::comm
