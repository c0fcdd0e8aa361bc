#pragma once
#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace megatron::supervise {

/// While it lives, signals that concern a supervised job (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD) come to
/// take() instead of to the process, but for SIGHUP and the like that it was started to ignore. One at a time, made
/// before other threads start. Orphans of a job's processes become children of this process meanwhile.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// The next signal but SIGCHLD, which only ends the wait; 0: none has come within `seconds`.
  int take(double seconds) const;
  int descriptor() const { return descriptor_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

struct ChildCommand {
  std::vector<std::string> words;                ///< the program's path, then its arguments
  std::map<std::string, std::string> variables;  ///< of its environment, besides this process's
};

/// How a job's process has ended.
struct ChildEnd {
  int code = 0;             ///< its exit code; 128 + n where signal n has ended it
  int signal = 0;           ///< that has ended it; 0: none
  bool stopped = false;     ///< this process was asked to stop meanwhile, and has passed that on
  bool hung = false;        ///< ended by this process, because `is_stuck` said so
  std::string last_errors;  ///< the end of what it wrote to stderr
};

/// Runs the command and waits for its end; what it writes to stderr appears there, and its end is kept. `is_stuck` is
/// asked twice a second: where it says so, the job gets SIGUSR2, to write what its ranks do, and SIGKILL after
/// `dump_s`. The first SIGINT, SIGTERM or SIGHUP and every SIGUSR1 and SIGUSR2 is passed on; a second one of the former
/// ends the job at once. When this returns, no process that the job has started is left; nor where this process is
/// killed. Throws std::runtime_error where no process can be started.
ChildEnd run_child(const ChildCommand& command, const HeldSignals& signals, const std::function<bool()>& is_stuck,
                   double dump_s);

/// The last line of `text` that says something, of at most `limit` bytes.
std::string last_line(const std::string& text, std::size_t limit = 400);

}  // namespace megatron::supervise
