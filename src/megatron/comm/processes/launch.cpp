#include "megatron/comm/processes/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/processes/rendezvous.h"
#include "megatron/comm/processes/run_key.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool ends_a_run(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

/// Takes SIGCHLD, SIGUSR1, SIGUSR2, SIGINT, SIGTERM and SIGHUP for sigtimedwait while it lives, except for those of the
/// last three that are ignored (as nohup has it for SIGHUP); threads started meanwhile inherit that.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigemptyset(&set_);
    for (const int s : {SIGCHLD, SIGUSR1, SIGUSR2, SIGINT, SIGTERM, SIGHUP})
      if (!ends_a_run(s) || !is_ignored(s)) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

  const sigset_t& before() const { return before_; }
  int wait(std::chrono::milliseconds limit) const {
    const timespec t{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    return sigtimedwait(&set_, nullptr, &t);
  }

 private:
  sigset_t set_{}, before_{};
};

/// argv or envp: pointers to strings that outlive it.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// This process's environment with `changes`.
std::vector<std::string> environment_with(const Environment& changes) {
  Environment all = process_environment();
  for (const auto& [name, value] : changes) all.insert_or_assign(name, value);
  std::vector<std::string> result;
  for (const auto& [name, value] : all) result.push_back(concat(name, "=", value));
  return result;
}

/// Starts one rank. Between fork and exec only calls that are safe there.
pid_t start(std::vector<std::string> command, const LaunchedRank& place, const SignalsHeld& signals, int error_pipe) {
  std::vector<std::string> environment = environment_with(environment_of(place));
  const std::vector<char*> argv = pointers(command), envp = pointers(environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  setpgid(0, 0);                        // the terminal's Ctrl-C reaches the launcher alone, which passes it on
  prctl(PR_SET_PDEATHSIG, SIGKILL);     // a rank does not outlive the launcher
  if (getppid() != parent) _exit(127);  // it died before the line above
  signal(SIGUSR1, SIG_IGN);             // until the rank listens
  signal(SIGUSR2, SIG_IGN);
  sigset_t mask = signals.before();
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execve(argv[0], argv.data(), envp.data());
  const int error = errno;
  (void)!write(error_pipe, &error, sizeof error);
  _exit(127);
}

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
LaunchResult supervise(Children& children, const SignalsHeld& signals, const LaunchOptions& options) {
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
    const int signal = signals.wait(std::chrono::milliseconds(100));
    if (signal == SIGUSR1) children.signal_first(signal);  // it tells the others
    if (signal == SIGUSR2) children.signal_all(signal);
    if (!ends_a_run(signal)) continue;
    children.signal_all(first_signal ? SIGKILL : signal);
    children.signal_all(SIGCONT);  // a rank that somebody has stopped could not act on it
    if (!first_signal) first_signal = Clock::now();
  }
}

}  // namespace

LaunchResult launch_processes(int size, const std::vector<std::string>& command, const LaunchOptions& options) {
  if (size < 1 || command.empty())
    throw ConfigError(rule_got_fix("A launch needs at least one rank and a program.", concat(size, " ranks")));
  const SignalsHeld signals;  // before the store starts its thread
  const StoreServer store;
  Children children;
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("launch: cannot open a pipe");
  const std::string secret = random_secret();
  bool forked = true;
  for (int r = 0; r < size && forked; ++r) {
    LaunchedRank place;
    place.rank = place.local_rank = r;
    place.world_size = place.local_size = size;
    place.port = store.port();
    place.store_is_kept = true;
    place.secret = secret;
    const pid_t pid = start(command, place, signals, error_pipe[1]);
    forked = pid > 0;
    if (forked) children.add(pid);
  }
  close(error_pipe[1]);
  if (!forked) {
    close(error_pipe[0]);
    throw std::runtime_error(concat("launch: cannot start a process: ", std::strerror(errno)));
  }
  LaunchResult result = supervise(children, signals, options);
  int error = 0;
  const bool not_run = read(error_pipe[0], &error, sizeof error) == sizeof error;
  close(error_pipe[0]);
  if (not_run)
    throw ConfigError(rule_got_fix("The program of the ranks must be executable.",
                                   command[0] + ": " + std::strerror(error),
                                   "start the program by a path that may be executed"));
  return result;
}

}  // namespace megatron::comm
