#include "megatron/base/machine/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// argv or envp: pointers to strings that outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
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

/// What the child does after fork; only calls that are safe there. It writes why the program cannot run.
[[noreturn]] void become(const char* path, char* const* argv, char* const* envp, const ProgramStart& start,
                         pid_t parent, const HeldSignals& signals, int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  if (start.output >= 0) dup2(start.output, STDOUT_FILENO);
  if (start.errors >= 0) dup2(start.errors, STDERR_FILENO);
  std::signal(SIGUSR1, SIG_IGN);
  std::signal(SIGUSR2, SIG_IGN);
  signals.give_back();
  execve(path, argv, envp);
  const int error = errno;
  (void)!write(report, &error, sizeof error);
  _exit(127);
}

/// Why the child could not execute its program; 0: it does.
int error_reported(int report) {
  int error = 0;
  ssize_t got = 0;
  do got = read(report, &error, sizeof error);  // exec closes the other end
  while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

}  // namespace

bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

HeldSignals::HeldSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGUSR1, SIGUSR2, SIGINT, SIGTERM, SIGHUP})
    if (!asks_to_end(signal) || !is_ignored(signal)) sigaddset(&set, signal);
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw std::runtime_error(concat("cannot listen for signals: ", std::strerror(errno)));
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
}

HeldSignals::~HeldSignals() {
  close(descriptor_);
  give_back();
}

void HeldSignals::give_back() const {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int HeldSignals::take(double seconds) const {
  pollfd waits{descriptor_, POLLIN, 0};
  if (seconds > 0) poll(&waits, 1, static_cast<int>(std::ceil(std::min(seconds, 1e6) * 1000)));
  signalfd_siginfo info{};
  if (read(descriptor_, &info, sizeof info) != sizeof info) return 0;
  return info.ssi_signo == SIGCHLD ? 0 : static_cast<int>(info.ssi_signo);
}

pid_t start_process(const ProgramStart& start, const HeldSignals& signals) {
  std::vector<std::string> words = start.words, environment = environment_with(start.variables);
  const std::vector<char*> argv = pointers_to(words), envp = pointers_to(environment);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) throw std::runtime_error(concat("cannot start a process: ", std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become(start.path.c_str(), argv.data(), envp.data(), start, parent, signals, report[1]);
  const int fork_error = errno;
  close(report[1]);
  const int error = child > 0 ? error_reported(report[0]) : 0;
  close(report[0]);
  if (child < 0) throw std::runtime_error(concat("cannot start a process: ", std::strerror(fork_error)));
  if (error == 0) return child;
  waitpid(child, nullptr, 0);
  throw ConfigError(rule_got_fix("The program that a process is to run must be executable.",
                                 concat(start.path, ": ", std::strerror(error)),
                                 "start the program by a path that may be executed"));
}

}  // namespace megatron
