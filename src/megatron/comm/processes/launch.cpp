#include "megatron/comm/processes/launch.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>

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

  /// Takes note of every rank that has ended.
  void reap(LaunchResult& result, const std::vector<int>& clean_codes) {
    for (std::size_t r = 0; r < pids_.size(); ++r) {
      int status = 0;
      if (pids_[r] <= 0 || waitpid(pids_[r], &status, WNOHANG) != pids_[r]) continue;
      kill(-pids_[r], SIGKILL);  // what the rank itself has started
      pids_[r] = 0;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      result.exit_code = std::max(result.exit_code, code);
      const bool clean = std::find(clean_codes.begin(), clean_codes.end(), code) != clean_codes.end();
      if (clean || result.first_failed_rank >= 0) continue;
      result.first_failed_rank = static_cast<int>(r);
      result.message = WIFEXITED(status) ? concat("rank ", r, " failed first, with exit code ", code)
                                         : concat("rank ", r, " failed first, ended by signal ", WTERMSIG(status), " (",
                                                  strsignal(WTERMSIG(status)), ")");
    }
  }

 private:
  std::vector<pid_t> pids_;  ///< 0: has ended
};

/// Waits for all, passes the first signal on and ends those that stay: after a second one, and after a rank has failed.
LaunchResult supervise(Children& children, const HeldSignals& signals, const LaunchOptions& options) {
  LaunchResult result;
  std::optional<Clock::time_point> first_signal, first_failure;
  int escalation = 0;
  while (true) {
    children.reap(result, options.clean_codes);
    if (!children.any()) return result;
    if (result.first_failed_rank >= 0 && !first_failure) first_failure = Clock::now();
    if (first_failure && escalation < 2 && Clock::now() >= *first_failure + (escalation + 1) * options.grace)
      children.signal_all(escalation++ == 0 ? SIGTERM : SIGKILL);
    if (first_signal && Clock::now() >= *first_signal + options.stop_grace) children.kill_stopped();
    const int signal = signals.take(0.1);
    if (signal == SIGUSR1) children.signal_first(signal);  // it tells the others
    if (signal == SIGUSR2) children.signal_all(signal);
    if (!asks_to_end(signal)) continue;
    children.signal_all(first_signal ? SIGKILL : signal);
    children.signal_all(SIGCONT);  // a rank that somebody has stopped could not act on it
    if (!first_signal) first_signal = Clock::now();
  }
}

}  // namespace

LaunchResult launch_processes(int size, const std::vector<std::string>& command, const LaunchOptions& options) {
  if (size < 1 || command.empty())
    throw ConfigError(rule_got_fix("A launch needs at least one rank and a program.", concat(size, " ranks")));
  const HeldSignals signals;  // before the store starts its thread
  const StoreServer store;
  Children children;
  const std::string secret = random_secret();
  for (int r = 0; r < size; ++r) {
    LaunchedRank place;
    place.rank = place.local_rank = r;
    place.world_size = place.local_size = size;
    place.port = store.port();
    place.store_is_kept = true;
    place.secret = secret;
    children.add(start_process({.path = command[0], .words = command, .variables = environment_of(place)}, signals));
  }
  return supervise(children, signals, options);
}

}  // namespace megatron::comm
