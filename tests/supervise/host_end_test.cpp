#include "megatron/supervise/ranks/host_end.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

namespace megatron::supervise {
namespace {

/// waitpid()'s of a process that does `end`.
template <class End>
int status_of(const End& end) {
  const pid_t child = fork();
  if (child == 0) {
    end();
    _exit(77);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}
int exited(int code) {
  return status_of([=] { _exit(code); });
}
int killed(int signal) {
  return status_of([=] { raise(signal); });
}

/// Of a host whose processes ended so, in this order.
int code_of(const std::vector<int>& statuses) {
  HostEnd end;
  for (const int status : statuses) end.add(status);
  return end.code();
}

TEST(HostEnd, IsWhatThoseSayThatNoSignalEnded) {
  EXPECT_EQ(code_of({exited(0), exited(0)}), 0);
  EXPECT_EQ(code_of({killed(SIGKILL), exited(0)}), 0) << "the run was whole without the one that was lost";
  EXPECT_EQ(code_of({exited(3), killed(SIGKILL), exited(3)}), 3);
  EXPECT_EQ(code_of({exited(0), exited(3)}), 3) << "a spare left, the run has saved";
  EXPECT_EQ(code_of({exited(1), killed(SIGKILL)}), 1);
}

TEST(HostEnd, IsTheSignalWhereNobodySaysMore) {
  EXPECT_EQ(code_of({killed(SIGKILL)}), 128 + SIGKILL);
  EXPECT_EQ(code_of({killed(SIGKILL), killed(SIGTERM)}), 128 + SIGTERM);
}

TEST(HostEnd, IsTheSignalWhereOnlyASpareEndedWellBefore) {
  EXPECT_EQ(code_of({exited(0), killed(SIGKILL)}), 128 + SIGKILL);
  EXPECT_EQ(code_of({exited(0), killed(SIGKILL), killed(SIGTERM)}), 128 + SIGTERM);
  EXPECT_EQ(code_of({killed(SIGKILL), exited(0), killed(SIGTERM)}), 128 + SIGTERM);
}

}  // namespace
}  // namespace megatron::supervise
