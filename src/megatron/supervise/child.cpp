#include "megatron/supervise/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

extern char** environ;

namespace megatron::supervise {
namespace {

using Clock = std::chrono::steady_clock;

bool is_ending(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

bool is_ignored_now(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_of(const ChildCommand& command) {
  std::map<std::string, std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : command.variables) all[name] = value;
  std::vector<std::string> result;
  for (const auto& [name, value] : all) result.push_back(concat(name, "=", value));
  return result;
}

/// Those of this process, orphans that it has inherited included.
std::vector<pid_t> own_children() {
  std::ifstream file(concat("/proc/self/task/", getpid(), "/children"));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

/// The process of a job and what it writes.
class Job {
 public:
  Job(const ChildCommand& command, const HeldSignals& signals);
  ~Job() { end_all(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int output() const { return output_; }
  bool has_ended() const { return pid_ == 0; }
  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }
  /// The process and everything that it has started.
  void kill_all() const {
    if (pid_ > 0) kill(-pid_, SIGKILL);
  }
  /// Takes note where the process has ended, and reaps orphans.
  void reap(ChildEnd& end);
  /// Passes on what was written.
  void pass_on(std::string& kept);
  /// Nothing that the job has started is left afterwards.
  void end_all();

 private:
  pid_t pid_ = 0;
  int output_ = -1;
};

Job::Job(const ChildCommand& command, const HeldSignals& signals) {
  std::vector<std::string> words = command.words, environment = environment_of(command);
  const std::vector<char*> argv = pointers_to(words), envp = pointers_to(environment);
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot open a pipe to the job");
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    const int error = errno;
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    throw std::runtime_error(concat("cannot start a process: ", std::strerror(error)));
  }
  if (pid_ == 0) {                        // only calls that are safe between fork and exec
    setpgid(0, 0);                        // the terminal's Ctrl-C reaches the supervisor alone, which passes it on
    prctl(PR_SET_PDEATHSIG, SIGKILL);     // a job does not outlive its supervisor
    if (getppid() != parent) _exit(127);  // it died before the line above
    dup2(pipe_ends[1], STDERR_FILENO);
    std::signal(SIGUSR1, SIG_IGN);  // until it listens
    std::signal(SIGUSR2, SIG_IGN);
    sigset_t mask = signals.before();
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  setpgid(pid_, pid_);  // whoever comes first
  close(pipe_ends[1]);
  output_ = pipe_ends[0];
  fcntl(output_, F_SETFL, O_NONBLOCK);
}

void Job::reap(ChildEnd& end) {
  int status = 0;
  for (pid_t ended = 0; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (ended != pid_) continue;
    kill(-pid_, SIGKILL);  // what the job has started in its own group
    pid_ = 0;
    end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + end.signal;
  }
}

void Job::pass_on(std::string& kept) {
  constexpr std::size_t kKept = 1 << 14;
  char text[1 << 12];
  while (output_ >= 0) {
    const ssize_t got = read(output_, text, sizeof text);
    if (got == 0) close(std::exchange(output_, -1));  // nobody writes any more
    if (got <= 0) return;
    for (ssize_t written = 0; written < got;) {
      const ssize_t more = write(STDERR_FILENO, text + written, static_cast<std::size_t>(got - written));
      if (more < 0 && errno != EINTR) break;  // nobody reads it: the job continues
      written += std::max<ssize_t>(more, 0);
    }
    kept.append(text, static_cast<std::size_t>(got));
    if (kept.size() > 2 * kKept) kept.erase(0, kept.size() - kKept);
  }
}

void Job::end_all() {
  kill_all();
  // A launcher's ranks are in groups of their own. They die with it, but not before it: then they are ours.
  while (true) {
    for (const pid_t child : own_children()) {
      kill(-child, SIGKILL);
      kill(child, SIGKILL);
    }
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) break;
  }
  pid_ = 0;
  if (output_ >= 0) close(std::exchange(output_, -1));
}

}  // namespace

HeldSignals::HeldSignals() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGUSR1, SIGUSR2, SIGINT, SIGTERM, SIGHUP})
    if (!is_ending(signal) || !is_ignored_now(signal)) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw std::runtime_error("cannot listen for signals");
}

HeldSignals::~HeldSignals() {
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

int HeldSignals::take(double seconds) const {
  pollfd waits{descriptor_, POLLIN, 0};
  if (seconds > 0) poll(&waits, 1, static_cast<int>(std::ceil(std::min(seconds, 1e6) * 1000)));
  signalfd_siginfo info{};
  if (read(descriptor_, &info, sizeof info) != sizeof info) return 0;
  return info.ssi_signo == SIGCHLD ? 0 : static_cast<int>(info.ssi_signo);
}

ChildEnd run_child(const ChildCommand& command, const HeldSignals& signals, const std::function<bool()>& is_stuck,
                   double dump_s) {
  constexpr int kBeatMs = 500;
  ChildEnd end;
  Job job(command, signals);
  std::optional<Clock::time_point> kill_at;
  while (true) {
    pollfd waits[2] = {{signals.descriptor(), POLLIN, 0}, {job.output(), POLLIN, 0}};
    poll(waits, 2, kBeatMs);
    job.pass_on(end.last_errors);
    while (const int signal = signals.take(0)) {
      if (is_ending(signal) && std::exchange(end.stopped, true)) {
        job.end_all();
        end.code = 128 + signal;
        end.signal = SIGKILL;
        return end;
      }
      job.signal(signal);
      job.signal(SIGCONT);
    }
    job.reap(end);
    if (job.has_ended()) break;
    if (!kill_at && is_stuck()) {
      end.hung = true;
      job.signal(SIGUSR2);
      kill_at = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(dump_s * 1000));
    }
    if (kill_at && Clock::now() >= *kill_at) job.kill_all();
  }
  job.pass_on(end.last_errors);
  job.end_all();
  return end;
}

std::string last_line(const std::string& text, std::size_t limit) {
  std::string last;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t line_end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, line_end - begin);
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
    begin = line_end + 1;
  }
  return last.substr(0, limit);
}

}  // namespace megatron::supervise
