#include "megatron/supervise/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::supervise {
namespace {

using Clock = std::chrono::steady_clock;

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
  Job(ProgramStart start, const HeldSignals& signals);
  ~Job() {
    end_all();
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
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

Job::Job(ProgramStart start, const HeldSignals& signals) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot open a pipe to the job");
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of the job's processes become ours
  start.errors = pipe_ends[1];
  try {
    pid_ = start_process(start, signals);
  } catch (...) {
    for (const int pipe_end : pipe_ends) close(pipe_end);
    throw;
  }
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

ChildEnd run_child(const ProgramStart& program, const HeldSignals& signals, const std::function<bool()>& is_stuck,
                   double dump_s) {
  constexpr int kBeatMs = 500;
  ChildEnd end;
  Job job(program, signals);
  std::optional<Clock::time_point> kill_at;
  while (true) {
    pollfd waits[2] = {{signals.descriptor(), POLLIN, 0}, {job.output(), POLLIN, 0}};
    poll(waits, 2, kBeatMs);
    job.pass_on(end.last_errors);
    while (const int signal = signals.take(0)) {
      if (asks_to_end(signal) && std::exchange(end.stopped, true)) {
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
