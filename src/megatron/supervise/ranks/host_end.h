#pragma once
#include <sys/wait.h>

#include <algorithm>

namespace megatron::supervise {

/// How the processes of a host's ranks have ended (`megatron run --nnodes`), and what the host says of it.
class HostEnd {
 public:
  /// `status`: waitpid()'s, of the next that has ended.
  void add(int status) {
    last_was_killed_ = WIFSIGNALED(status);
    if (WIFEXITED(status)) exited_ = std::max(exited_, WEXITSTATUS(status));
    if (WIFSIGNALED(status)) killed_ = std::max(killed_, 128 + WTERMSIG(status));
  }

  /// The highest exit code of those that no signal has ended: a run may be whole without the others. Where there are
  /// none, 128 and the highest signal; also where none of them failed and a signal ended the last: who ended well then
  /// was a spare that left before (decision 151), and those that were to end the run are gone.
  int code() const { return exited_ < 0 || (exited_ == 0 && last_was_killed_) ? killed_ : exited_; }

 private:
  int exited_ = -1, killed_ = 0;
  bool last_was_killed_ = false;
};

}  // namespace megatron::supervise
