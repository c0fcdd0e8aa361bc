#pragma once
#include <functional>
#include <string>

#include "megatron/base/machine/child_process.h"

namespace megatron::supervise {

/// How a job's process has ended.
struct ChildEnd {
  int code = 0;             ///< its exit code; 128 + n where signal n has ended it
  int signal = 0;           ///< that has ended it; 0: none
  bool stopped = false;     ///< this process was asked to stop meanwhile, and has passed that on
  bool hung = false;        ///< ended by this process, because `is_stuck` said so
  std::string last_errors;  ///< the end of what it wrote to stderr
  int rank = -1;            ///< whose end this is, as the launcher counts; -1: that of the whole job
  bool lost = false;        ///< with its supervisor, which is gone: nobody knows how
};

/// Runs the program and waits for its end; what it writes to stderr appears there, and its end is kept. `is_stuck` is
/// asked twice a second: where it says so, the job gets SIGUSR2, to write what its ranks do, and SIGKILL after
/// `dump_s`. The first SIGINT, SIGTERM or SIGHUP and every SIGUSR1 and SIGUSR2 is passed on; a second one of the former
/// ends the job at once. When this returns, no process that the job has started is left; nor where this process is
/// killed. Throws as start_process() does.
ChildEnd run_child(const ProgramStart& program, const HeldSignals& signals, const std::function<bool()>& is_stuck,
                   double dump_s);

/// The last line of `text` that says something, of at most `limit` bytes.
std::string last_line(const std::string& text, std::size_t limit = 400);

}  // namespace megatron::supervise
