#pragma once
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "megatron/base/machine/environment.h"

// What starts processes of this program and looks after them: a launcher of ranks, a supervisor of jobs.
namespace megatron {

/// Whether a signal asks a program to end: SIGINT, SIGTERM, SIGHUP.
bool asks_to_end(int signal);

/// While it lives, signals that concern processes which this one starts (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2,
/// SIGCHLD) come to take() instead of to the process, but for those of the first three that it was started to ignore,
/// as nohup has it; threads started meanwhile inherit that. SIGPIPE is ignored: a reader of stderr that goes away ends
/// nobody who looks after others. One at a time, made before other threads start.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// The next signal but SIGCHLD, which only ends the wait; 0: none has come within `seconds`.
  int take(double seconds) const;
  int descriptor() const { return descriptor_; }  ///< readable once one has come

  /// In a process that was forked meanwhile: all is as it was before. Safe between fork and exec.
  void give_back() const;

 private:
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  int descriptor_ = -1;
};

/// A program that is to run in a process of its own.
struct ProgramStart {
  std::string path;                ///< of the program, e.g. "/proc/self/exe": this one, whatever became of its file
  std::vector<std::string> words;  ///< its name and its arguments
  Environment variables = {};      ///< besides this process's environment
  int output = -1;                 ///< descriptor that becomes its stdout; -1: this process's
  int errors = -1;                 ///< descriptor that becomes its stderr; -1: this process's
};

/// Starts it, as leader of a process group of its own: the terminal's Ctrl-C reaches this process alone, which passes
/// on what it takes. It gets SIGKILL when the thread that calls this ends, and ignores SIGUSR1 and SIGUSR2 until it
/// listens to them. Throws ConfigError where the program cannot be executed, std::runtime_error where there can be no
/// process.
pid_t start_process(const ProgramStart& start, const HeldSignals& signals);

}  // namespace megatron
