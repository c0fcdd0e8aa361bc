#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

#include "as_rank.h"
#include "contract.h"
#include "megatron/comm/cuda_plugin.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/processes/launch.h"
#include "megatron/comm/threads/local_backend.h"
#include "staging_backend.h"
#include "tests/testing/large_stacks.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temporary_folder.h"

// A rank that throws, ends, is killed or stalls: every other rank ends in time and says who is missing, at what.
namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Runner = void (*)(int, const std::function<void(Group)>&, const LocalOptions&);

struct Transport {
  const char* name;
  Runner run;
};

constexpr milliseconds kTimeout{10'000};
constexpr milliseconds kShortTimeout{3000};  // where it is the timeout that ends the others
// Until the others have ended, and a launcher. Under a sanitizer, on a busy machine, most of it goes before ranks meet.
constexpr milliseconds kPatience = kSanitized ? 6 * kTimeout : kTimeout;
constexpr seconds kEnding{kSanitized ? 60 : 20};

class FailureAmongThreads : public testing::TestWithParam<Transport> {
 protected:
  /// Rank 2 of 4 runs `culprit` where the others reduce; returns what each other rank threw.
  std::vector<std::string> others_say(
      const std::function<void(const Group&)>& culprit, milliseconds timeout = kTimeout,
      const std::function<void()>& others_have_ended = [] {}) {
    std::vector<std::string> said(4);
    std::mutex mutex;
    int ended = 0;
    try {
      GetParam().run(
          4,
          [&](Group world) {
            const at::Tensor t = at::ones({1000});
            world.all_reduce(t);  // all is well
            if (world.rank() == 2) return culprit(world);
            try {
              world.all_reduce(t);
              world.all_reduce(t);
            } catch (const PeerError& e) {
              said[static_cast<std::size_t>(world.rank())] = e.what();
            }
            world = Group();
            const std::lock_guard lock(mutex);
            if (++ended == 3) others_have_ended();
          },
          LocalOptions{.timeout = timeout});
    } catch (const std::exception& e) {
      said[2] = e.what();
    }
    return said;
  }
};

TEST_P(FailureAmongThreads, NoRankBeginsWhereTheSystemRefusesAThread) {
  std::atomic<int> begun = 0;
  const LargeStacks stacks;
  EXPECT_THROW(GetParam().run(4, [&](const Group&) { ++begun; }, {.timeout = kTimeout}), std::system_error);
  EXPECT_EQ(begun, 0);
}

TEST_P(FailureAmongThreads, ARankThatThrowsIsNamedWithItsReason) {
  const auto start = Clock::now();
  const auto said = others_say([](const Group&) { throw std::runtime_error("out of luck"); });
  for (const int r : {0, 1, 3})
    EXPECT_THAT(said[static_cast<std::size_t>(r)],
                AllOf(HasSubstr("all_reduce"), HasSubstr("rank 2"), HasSubstr("out of luck")));
  EXPECT_EQ(said[2], "out of luck") << "the first error is the one that the caller gets";
  EXPECT_LT(Clock::now() - start, kPatience);
}

TEST_P(FailureAmongThreads, ARankThatEndsEarlyIsNamed) {
  const auto said = others_say([](const Group&) {});
  for (const int r : {0, 1, 3})
    EXPECT_THAT(said[static_cast<std::size_t>(r)],
                AllOf(HasSubstr("all_reduce"), HasSubstr("rank 2"), HasSubstr("ended")));
}

TEST_P(FailureAmongThreads, ARankThatStallsIsNamedAfterTheTimeout) {
  std::promise<void> others_have_ended;
  const auto start = Clock::now();
  Clock::duration took{};
  const auto said = others_say([&](const Group&) { others_have_ended.get_future().wait(); }, kShortTimeout,
                               [&] {
                                 took = Clock::now() - start;
                                 others_have_ended.set_value();
                               });
  for (const int r : {0, 1, 3})
    EXPECT_THAT(said[static_cast<std::size_t>(r)],
                AllOf(HasSubstr("all_reduce"), HasSubstr("rank 2"), HasSubstr("did not arrive")));
  EXPECT_GE(took, kShortTimeout);
  EXPECT_LT(took, kShortTimeout + kPatience);
}

// The group of the work is not the one that the others wait in: neither it nor its end may hold the news up.
TEST_P(FailureAmongThreads, AnExceptionDoesNotWaitForWorkThatItLeavesUnderWay) {
  const auto start_all_reduce = [](const Group& pair, const at::Tensor& t) { return pair.all_reduce_async(t); };
  const auto start_recv = [](const Group& pair, const at::Tensor& t) { return pair.recv_async(t, 0); };
  for (WorkHandle (*start)(const Group&, const at::Tensor&) : {+start_all_reduce, +start_recv}) {
    const auto begin = Clock::now();
    std::string said;
    const auto body = [&](const Group& world) {
      const Group pair = world.split({{0, 1}});
      const at::Tensor t = at::ones({1000});
      if (world.rank() == 1) {
        const WorkHandle left = start(pair, t);
        throw std::runtime_error("out of luck");
      }
      try {
        world.all_reduce(t);
      } catch (const PeerError& e) {
        said = e.what();
      }
    };
    EXPECT_THROW(GetParam().run(2, body, LocalOptions{.timeout = kTimeout}), std::runtime_error);
    EXPECT_THAT(said, AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1"), HasSubstr("out of luck")));
    EXPECT_LT(Clock::now() - begin, kPatience);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, FailureAmongThreads,
                         testing::Values(Transport{"Local", run_ranks}, Transport{"Gloo", run_gloo_ranks}),
                         [](const auto& p) { return p.param.name; });

/// A folder of one test, with a file for each rank.
class Folder {
 public:
  std::string file(int rank) const { return folder_.path() / concat("rank", rank); }
  std::string path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What ends the others: the timeout where a rank stalls, and else the news that it is gone.
milliseconds timeout_of(const std::string& how) { return how == "stall" || how == "stop" ? kShortTimeout : kTimeout; }

class FailureAmongProcesses : public testing::TestWithParam<const char*> {};

TEST_P(FailureAmongProcesses, NamesTheMissingRankOnEveryOther) {
  const Folder folder;
  const auto start = Clock::now();
  const std::string how = GetParam();
  const milliseconds timeout = timeout_of(how);
  const LaunchResult result =
      launch_processes(3, {"/proc/self/exe", "--as-rank", how, folder.path()}, {.grace = 2 * timeout});
  for (const int r : {0, 1})
    EXPECT_THAT(text_of(folder.file(r)), AllOf(HasSubstr("all_reduce #1"), HasSubstr("rank 2"))) << "rank " << r;
  EXPECT_LT(Clock::now() - start, (how == "stall" ? 3 * timeout : milliseconds{0}) + kPatience);  // timeout and grace
  const int code = how == "exit" ? 7 : how == "throw" ? 1 : how == "kill" ? 128 + SIGKILL : 128 + SIGTERM;
  EXPECT_EQ(result.exit_code, std::max(code, 5)) << result.message;
  if (how != "stall") {  // after "throw" the others hear of it, and may end first
    EXPECT_EQ(result.first_failed_rank, 2) << result.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, FailureAmongProcesses, testing::Values("throw", "exit", "kill", "stall"),
                         [](const auto& p) { return std::string(p.param); });

TEST(Launch, NamesTheRankThatToldTheOthersWhereTheyEndFirst) {
  const Folder folder;
  const LaunchResult result = launch_processes(3, {"/proc/self/exe", "--as-rank", "throw-and-stay", folder.path()},
                                               {.grace = milliseconds(1000)});
  EXPECT_EQ(result.first_failed_rank, 2);
  EXPECT_EQ(result.message, "rank 2 failed first, and was ended");
}

TEST(Launch, NamesTheRankThatIsStopped) {
  const Folder folder;
  const LaunchResult result =
      launch_processes(3, {"/proc/self/exe", "--as-rank", "stop", folder.path()}, {.grace = kShortTimeout});
  EXPECT_EQ(result.first_failed_rank, 2);
  EXPECT_EQ(result.message, "rank 2 failed first, stopped by SIGSTOP or a debugger");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
}

TEST(Launch, KillsAStoppedRankWhenItTellsTheOthersToEnd) {
  const Folder folder;
  // Rank 2, told to end, sees that rank 1 is gone: what is killed with the others nobody sees.
  constexpr const char* kRank = R"(
    is_there() { [ -e "$1" ]; }
    is_stopped() { is_there pid && grep -q '^State:.T' /proc/$(cat pid)/status; }
    cd "$0"
    case $RANK in
      0) until is_stopped && is_there ready; do sleep 0.01; done; exit 1 ;;
      1) echo $$ > pid.new; mv pid.new pid; kill -STOP $$ ;;
      2) trap 'while is_there /proc/$(cat pid); do sleep 0.01; done; touch gone; exit 0' TERM; touch ready
         while :; do sleep 0.01; done ;;
    esac)";
  launch_processes(3, {"/bin/sh", "-c", kRank, folder.path()}, {.grace = milliseconds(kSanitized ? 3000 : 1000)});
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/gone"));
}

TEST(Launch, OfARankThatEndsItselfByASignalIsNoInterruption) {
  const LaunchResult by_itself = launch_processes(2, {"/bin/sh", "-c", "kill -TERM $$"});
  EXPECT_EQ(by_itself.interrupted_by, 0);
  EXPECT_EQ(by_itself.message,
            concat("rank ", by_itself.first_failed_rank, " failed first, ended by signal 15 (Terminated)"));
}

TEST(Launch, EndsAtOnceRanksThatWaitForOneThatWasKilled) {
  constexpr const char* kRank = "[ $RANK = 1 ] && kill -KILL $$; exec sleep 1000";
  const LaunchResult result = launch_processes(3, {"/bin/sh", "-c", kRank}, {.grace = std::chrono::hours(1)});
  EXPECT_EQ(result.message, "rank 1 failed first, ended by signal 9 (Killed)");
}

TEST(Launch, NamesNoRankWhereAllEndAlike) {
  EXPECT_EQ(launch_processes(2, {"/bin/sh", "-c", "exit 1"}).message, "all ranks failed, with exit code 1");
}

TEST(FailureOverNccl, AKilledRankIsNamedOnEveryOtherCudaDevice) {
  const int n = num_gpus();
  if (n < 2) GTEST_SKIP() << "two NVIDIA GPUs are needed, here are " << n;
  const Folder folder;
  const LaunchResult result =
      launch_processes(n, {"/proc/self/exe", "--as-rank", "kill-nccl", folder.path()}, {.grace = 2 * kTimeout});
  for (int r = 0; r + 1 < n; ++r)
    EXPECT_THAT(text_of(folder.file(r)), HasSubstr(concat("rank ", n - 1))) << "rank " << r;
  EXPECT_EQ(result.first_failed_rank, n - 1) << result.message;
}

/// What a launcher of ranks that wait ends with where a signal, whose number is added, has ended them.
constexpr int kInterruptedCode = 50;

/// A launcher in a process of its own, and a pipe that it and its ranks hold open.
struct RunningLauncher {
  pid_t pid = 0;
  int read_end = -1;

  explicit RunningLauncher(const char* what, bool nohup = false) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) throw std::runtime_error("pipe");
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    read_end = ends[0];
    const std::string fd = std::to_string(ends[1]);
    pid = fork();
    if (pid == 0) {
      if (nohup) std::signal(SIGHUP, SIG_IGN);
      execl("/proc/self/exe", "comm_test", "--as-rank", "launcher", what, fd.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
  }
  ~RunningLauncher() { close(read_end); }
  RunningLauncher(const RunningLauncher&) = delete;
  RunningLauncher& operator=(const RunningLauncher&) = delete;

  /// Reads until `n` bytes have come or every writer has gone.
  std::string read_bytes(std::size_t n) const {
    std::string text(n, '\0');
    std::size_t got = 0;
    while (got < n) {
      const ssize_t k = read(read_end, text.data() + got, n - got);
      if (k <= 0) break;
      got += static_cast<std::size_t>(k);
    }
    text.resize(got);
    return text;
  }
};

TEST(Launch, LeavesNoOrphanWhenTheLauncherIsKilled) {
  const RunningLauncher launcher("wait");
  ASSERT_EQ(launcher.read_bytes(2), "rr") << "both ranks run";
  kill(launcher.pid, SIGKILL);
  waitpid(launcher.pid, nullptr, 0);
  EXPECT_EQ(launcher.read_bytes(1), "") << "the pipe ends when the last rank has gone";
}

/// The ranks that `launcher` has started.
std::vector<pid_t> ranks_of(const RunningLauncher& launcher) {
  std::ifstream in(concat("/proc/", launcher.pid, "/task/", launcher.pid, "/children"));
  return {std::istream_iterator<pid_t>(in), {}};
}

/// The launcher's exit code; -1 where it has not ended within `limit`: it and its ranks are gone then too.
int code_within(const RunningLauncher& launcher, seconds limit) {
  int status = 0;
  const auto deadline = Clock::now() + limit;
  while (waitpid(launcher.pid, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      kill(launcher.pid, SIGKILL);
      waitpid(launcher.pid, nullptr, 0);
      return -1;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Launch, OfRanksThatASignalEndsBeforeTheyListenIsInterrupted) {
  const RunningLauncher launcher("wait");
  ASSERT_EQ(launcher.read_bytes(2), "rr");
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(code_within(launcher, seconds(20)), kInterruptedCode + SIGTERM);
}

TEST(Launch, PassesTheFirstSignalOnOnceAndReturnsTheRanksCode) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const RunningLauncher launcher("end-on-signal");
    ASSERT_EQ(launcher.read_bytes(2), "rr");
    kill(launcher.pid, signal);
    EXPECT_EQ(launcher.read_bytes(3), "tt") << "each rank got one " << strsignal(signal);
    EXPECT_EQ(code_within(launcher, kEnding), 3);
  }
}

TEST(Launch, EndsEverythingAtOnceOnASecondSignal) {
  const RunningLauncher launcher("ignore-signals");
  ASSERT_EQ(launcher.read_bytes(2), "rr");
  kill(launcher.pid, SIGTERM);
  ASSERT_EQ(launcher.read_bytes(2), "tt") << "the first one has come to the ranks";
  kill(launcher.pid, SIGINT);
  EXPECT_EQ(code_within(launcher, kEnding), 128 + SIGKILL);
  EXPECT_EQ(launcher.read_bytes(1), "") << "no rank is left";
}

TEST(Launch, AStoppedRankGoesOnForTheSignal) {
  const RunningLauncher launcher("end-on-signal");
  ASSERT_EQ(launcher.read_bytes(2), "rr");
  ASSERT_EQ(ranks_of(launcher).size(), 2u);
  kill(ranks_of(launcher)[1], SIGSTOP);
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(launcher.read_bytes(2), "tt");
  EXPECT_EQ(code_within(launcher, kEnding), 3);
}

TEST(Launch, ARankThatStaysStoppedIsKilledSoonAfterTheSignal) {
  const RunningLauncher launcher("stop-again");
  ASSERT_EQ(launcher.read_bytes(2), "rr");
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(code_within(launcher, kEnding), 128 + SIGKILL);
  EXPECT_LE(launcher.read_bytes(100).size(), 2u) << "the pipe ends: no rank is left";
}

TEST(Launch, LeavesAnIgnoredSighupIgnored) {
  const RunningLauncher launcher("end-on-signal", /*nohup=*/true);
  ASSERT_EQ(launcher.read_bytes(2), "rr");
  kill(launcher.pid, SIGHUP);
  kill(launcher.pid, SIGTERM);  // were the first one counted, this would be the second
  EXPECT_EQ(launcher.read_bytes(3), "tt");
  EXPECT_EQ(code_within(launcher, kEnding), 3);
}

// Values of the secret that two launches hand to their ranks.
TEST(Launch, GivesItsRanksASecretThatNoOtherLaunchHas) {
  const Folder folder;
  const std::vector<std::string> command = {"/bin/sh", "-c", "printf %s \"$MEGATRON_RUN_SECRET\" > \"$0/$1$RANK\"",
                                            folder.path()};
  for (const char* launch : {"a", "b"}) {
    std::vector<std::string> words = command;
    words.emplace_back(launch);
    ASSERT_EQ(launch_processes(2, words).exit_code, 0);
  }
  const auto secret = [&](const std::string& name) { return text_of(folder.path() + "/" + name); };
  EXPECT_EQ(secret("a0").size(), 64u);
  EXPECT_EQ(secret("a0"), secret("a1"));
  EXPECT_NE(secret("a0"), secret("b0"));
}

TEST(Launch, CallsNoRankFailedThatEndsWithACleanCode) {
  const std::vector<std::string> command = {"/bin/sh", "-c", "exit $((RANK * 3))"};
  const LaunchResult clean = launch_processes(2, command, {.clean_codes = {0, 3}});
  EXPECT_EQ(clean.exit_code, 3);
  EXPECT_EQ(clean.first_failed_rank, -1);
  EXPECT_EQ(clean.message, "");
  EXPECT_EQ(launch_processes(2, command).message, "rank 1 failed first, with exit code 3");
}

TEST(Launch, SaysThatAProgramCannotBeRun) { EXPECT_THROW(launch_processes(2, {"/no/such/program"}), ConfigError); }

TEST(Rendezvous, NamesTheRanksThatDoNotCome) {
  const StoreServer store;
  LaunchedRank place;
  place.world_size = 3;
  place.rank = 1;
  place.port = store.port();
  place.store_is_kept = true;
  try {
    join_gloo(place, milliseconds(300));
    FAIL() << "nobody else came";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("ranks 0, 2 did not arrive"));
  }
}

// ---- what the launched ranks do ----

int run_contract(const Group& world) {
  for (const auto& clause : contract::clauses()) {
    try {
      clause.body(world);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s: %s\n", world.rank(), clause.name, e.what());
      world.abort(e.what());
      return 1;
    }
  }
  return 0;
}

/// The last rank over NCCL dies; the others write what they were told to their file.
int run_nccl_failure(const std::string& folder, const Environment& environment) {
  const LaunchedRank place = *place_from(environment);
  const Group world(std::make_shared<StagingBackend>(join_nccl(place, place.local_rank, kTimeout).backend()));
  const at::Tensor t = at::ones({1000});
  world.all_reduce(t);
  if (place.rank == world.size() - 1) raise(SIGKILL);
  try {
    while (true) world.all_reduce(t);
  } catch (const PeerError& e) {
    std::ofstream(concat(folder, "/rank", place.rank)) << e.what();
    _exit(5);
  }
}

/// Rank 2 goes the way `how` says; the others write what they were told to their file.
int run_failure(const std::string& how, const std::string& folder, const Environment& environment) {
  const LaunchedRank place = *place_from(environment);
  const Group world = join_gloo(place, timeout_of(how));
  const at::Tensor t = at::ones({1000});
  world.all_reduce(t);
  if (place.rank == 2) {
    if (how == "exit") _exit(7);
    if (how == "kill") raise(SIGKILL);
    if (how == "stall") pause();
    if (how == "stop") raise(SIGSTOP);
    world.abort("out of luck");
    if (how == "throw-and-stay") pause();  // until the launcher ends it, after the others
    return 1;
  }
  try {
    world.all_reduce(t);
    world.all_reduce(t);
  } catch (const PeerError& e) {
    std::ofstream(concat(folder, "/rank", place.rank)) << e.what();
    world.abort(e.what());
    return 5;
  }
  return 0;
}

int run_launcher(const std::string& what, const std::string& fd) {
  const LaunchResult result =
      launch_processes(2, {"/proc/self/exe", "--as-rank", what, fd}, {.stop_grace = milliseconds(300)});
  return what == "wait" && result.interrupted_by > 0 ? kInterruptedCode + result.interrupted_by : result.exit_code;
}

int told_of_signals = -1;  ///< where a rank writes 't' when one comes

/// Writes 'r', and 't' for a signal of those that end a run.
int run_waiter(const std::string& what, const std::string& fd) {
  sigset_t endings;
  sigemptyset(&endings);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&endings, s);
  told_of_signals = std::stoi(fd);
  if (what == "end-on-signal") sigprocmask(SIG_BLOCK, &endings, nullptr);
  if (what == "ignore-signals" || what == "stop-again")
    for (const int s : {SIGTERM, SIGINT, SIGHUP}) std::signal(s, [](int) { (void)!write(told_of_signals, "t", 1); });
  if (what == "stop-again") std::signal(SIGCONT, [](int) { raise(SIGSTOP); });
  if (write(told_of_signals, "r", 1) != 1) return 1;
  if (what == "stop-again") raise(SIGSTOP);
  if (what != "end-on-signal")
    while (true) pause();
  int signal = 0;
  sigwait(&endings, &signal);
  if (write(told_of_signals, "t", 1) != 1) return 1;
  const timespec soon{0, 300'000'000};  // a second signal would be written too
  if (sigtimedwait(&endings, nullptr, &soon) > 0 && write(told_of_signals, "t", 1) != 1) return 1;
  return 3;
}

}  // namespace

int as_rank(const std::string& name, const std::vector<std::string>& arguments, const Environment& environment) {
  if (name == "contract") return run_contract(join_gloo(*place_from(environment), seconds(60)));
  if (name == "contract-nccl")
    return run_contract(Group(std::make_shared<StagingBackend>(
        join_nccl(*place_from(environment), place_from(environment)->local_rank, seconds(60)).backend())));
  if (name == "kill-nccl") return run_nccl_failure(arguments.at(0), environment);
  if (name == "launcher") return run_launcher(arguments.at(0), arguments.at(1));
  if (name == "wait" || name == "end-on-signal" || name == "ignore-signals" || name == "stop-again")
    return run_waiter(name, arguments.at(0));
  return run_failure(name, arguments.at(0), environment);
}

}  // namespace megatron::comm
