#include "megatron/run/monitor.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/text/printable.h"
#include "megatron/serve/metrics.h"
#include "megatron/supervise/events.h"

namespace megatron::run {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = comm::Activity::Clock;

// What signal handlers can reach.
struct Signalled {
  std::atomic<int> dumps = 0;  ///< SIGUSR2 so far
  sem_t wake{};
  std::array<void*, 64> frames{};
  std::atomic<int> num_frames = 0;
  sem_t stack_taken{};
};
Signalled& signalled() {
  static Signalled one;
  return one;
}

int stack_signal() { return SIGRTMIN + 4; }

void listen_to(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

timespec deadline_in(double seconds) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const auto ns = static_cast<std::int64_t>(now.tv_nsec + std::fmod(seconds, 1) * 1e9);
  return {now.tv_sec + static_cast<std::time_t>(seconds) + ns / 1'000'000'000, ns % 1'000'000'000};
}

bool wait_for(sem_t& semaphore, double seconds) {
  const timespec until = deadline_in(seconds);
  int result = 0;
  do result = sem_timedwait(&semaphore, &until);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

/// "libtorch_cpu.so at::native::addmm(…)", or "megatron-torch +0x1234" where the function's name is not told.
std::string frame_name(void* frame) {
  Dl_info info{};
  if (dladdr(frame, &info) == 0 || info.dli_fname == nullptr) return concat(frame);
  const std::string file = fs::path(info.dli_fname).filename().string();
  if (info.dli_sname == nullptr)
    return concat(file, " +0x", std::hex, static_cast<char*>(frame) - static_cast<char*>(info.dli_fbase));
  int status = 0;
  char* const plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  const std::string name = status == 0 && plain != nullptr ? plain : info.dli_sname;
  std::free(plain);
  return concat(file, " ", name.substr(0, 200));
}

/// Of a thread that lives, "" frames where it does not answer. One at a time.
std::vector<std::string> stack_of(pthread_t thread) {
  Signalled& shared = signalled();
  shared.num_frames = 0;
  while (sem_trywait(&shared.stack_taken) == 0) continue;
  if (pthread_kill(thread, stack_signal()) != 0 || !wait_for(shared.stack_taken, 1)) return {};
  std::vector<std::string> names;
  constexpr int kOfTheSignal = 2;  // the handler and what the system puts before it
  for (int i = kOfTheSignal; i < shared.num_frames; ++i)
    names.push_back(frame_name(shared.frames.at(static_cast<std::size_t>(i))));
  return names;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

Json in_json(const comm::Activity::GroupState& group) {
  return {{"group", group.name}, {"ranks", group.ranks}, {"name", group.collective}, {"number", group.number}};
}

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

}  // namespace

class RunMonitor::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), dumps_seen_(signalled().dumps) {
    declare();
    Signalled& shared = signalled();
    sem_init(&shared.wake, 0, 0);
    sem_init(&shared.stack_taken, 0, 0);
    void* first[2];
    backtrace(first, 2);  // loads what it needs: no signal handler may
    listen_to(stack_signal(), [](int) {
      const int error = errno;
      Signalled& mine = signalled();
      mine.num_frames = backtrace(mine.frames.data(), static_cast<int>(mine.frames.size()));
      sem_post(&mine.stack_taken);
      errno = error;
    });
    if (options.listens)
      listen_to(SIGUSR2, [](int) {
        ++signalled().dumps;
        sem_post(&signalled().wake);
      });
    thread_ = std::thread([this] { watch(); });
  }
  ~Impl() {
    stop_ = true;
    sem_post(&signalled().wake);
    thread_.join();
    if (options_.listens) listen_to(SIGUSR2, SIG_IGN);
    attempt([this] { beat(/*last=*/true); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void add(int rank, comm::Activity& activity) {
    const std::lock_guard lock(mutex_);
    ranks_[rank] = {&activity, pthread_self()};
  }
  void remove(int rank, const char* how) {
    const std::lock_guard lock(mutex_);
    if (rank == 0)
      attempt([&] {
        how_ended_ = how;
        last_ = {ranks_[rank].activity->state(), ranks_[rank].activity->figures()};
      });
    ranks_.erase(rank);
  }

 private:
  struct Rank {
    comm::Activity* activity = nullptr;
    pthread_t thread{};
    std::uint64_t dumped_at = ~std::uint64_t{0};  ///< operations, where a hang was told
  };
  struct Last {
    comm::Activity::State state;
    comm::Activity::Figures figures;
  };

  void watch() {
    double next_beat = 0;
    while (!stop_) {
      wait_for(signalled().wake, std::min(0.5, options_.heartbeat_s > 0 ? options_.heartbeat_s : 0.5));
      if (dumps_seen_ != signalled().dumps) {
        dumps_seen_ = signalled().dumps;
        attempt([this] { dump("SIGUSR2", 0); });
      }
      attempt([this] { dump("no progress", options_.hang_dump_s); });
      if (options_.heartbeat_s > 0 && seconds_since(start_) >= next_beat) {
        attempt([this] { beat(/*last=*/false); });
        next_beat = seconds_since(start_) + options_.heartbeat_s;
      }
    }
  }

  /// Of the ranks that have begun or ended nothing for `idle_s`, once each; of all where it is 0.
  void dump(const char* reason, double idle_s) {
    const std::lock_guard lock(mutex_);
    std::string lines;
    for (auto& [rank, one] : ranks_) {
      const comm::Activity::State state = one.activity->state();
      if (idle_s > 0 && (seconds_since(state.since) < idle_s || one.dumped_at == state.operations)) continue;
      if (idle_s > 0) one.dumped_at = state.operations;
      Json object = {{"time", supervise::utc_now()},
                     {"reason", reason},
                     {"rank", rank},
                     {"host", host_name()},
                     {"pid", getpid()},
                     {"phase", state.phase},
                     {"iteration", state.iteration},
                     {"idle_s", seconds_since(state.since)}};
      if (!state.operation.empty()) object["operation"] = state.operation;
      if (const comm::Activity::GroupState* const last = state.last()) {
        object["collective"] = in_json(*last);
        object["waits"] = state.waits;
      }
      object["groups"] = Json::array();
      for (const comm::Activity::GroupState& group : state.groups)
        if (group.number > 0) object["groups"].push_back(in_json(group));
      object["stack"] = stack_of(one.thread);
      lines += object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    if (!lines.empty() && may_write()) supervise::append_lines(options_.out / "dump.jsonl", lines);
  }

  /// The iteration under way; once the run has ended as it was to, the last one that was done.
  std::int64_t iteration_of(const Last& now, bool last) const {
    const bool ended_well = last && how_ended_ != "failed";
    return ended_well && now.state.iteration > 0 ? now.state.iteration - 1 : now.state.iteration;
  }

  void beat(bool last) {
    if (options_.heartbeat_s <= 0) return;
    Last now;
    {
      const std::lock_guard lock(mutex_);
      const auto first = ranks_.find(0);
      if (first != ranks_.end()) last_ = {first->second.activity->state(), first->second.activity->figures()};
      if (!last_) return;
      now = *last_;
    }
    std::error_code ignored;
    if (!fs::is_directory(options_.out, ignored) || !may_write()) return;
    const double unix_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const Json object = {{"time", supervise::utc_now()},
                         {"unix_s", unix_s},
                         {"pid", getpid()},
                         {"world_size", options_.world_size},
                         {"phase", last ? how_ended_ : now.state.phase},
                         {"iteration", iteration_of(now, last)},
                         {"train_iters", options_.train_iters},
                         {"operations", now.state.operations},
                         {"idle_s", seconds_since(now.state.since)},
                         {"loss", std::isfinite(now.figures.loss) ? Json(now.figures.loss) : Json()},
                         {"tokens_per_s", now.figures.tokens_per_s},
                         {"consumed_samples", now.figures.consumed_samples}};
    set_metrics(now, unix_s, last);
    supervise::replace_file(options_.out / "heartbeat.json", object.dump() + "\n");
    supervise::replace_file(options_.out / "metrics.prom", metrics_.text());
  }

  void declare() {
    const auto gauge = [&](const char* name, const char* help) { metrics_.declare(name, "gauge", help); };
    gauge("megatron_train_iteration", "Iteration under way; of a run that has ended the last one.");
    gauge("megatron_train_iterations", "Iterations of the run.");
    gauge("megatron_train_ranks", "Ranks of the run.");
    gauge("megatron_train_consumed_samples", "Samples that the run has trained on.");
    gauge("megatron_train_loss", "Loss of the last step.");
    gauge("megatron_train_grad_norm", "Norm of the last step's gradient before clipping.");
    gauge("megatron_train_learning_rate", "Learning rate of the last step.");
    gauge("megatron_train_tokens_per_second", "Tokens per second in the last step.");
    gauge("megatron_train_step_seconds", "Time of the last step.");
    gauge("megatron_train_memory_bytes", "Memory that the first rank holds.");
    gauge("megatron_train_idle_seconds", "Since the first rank has begun or ended an operation.");
    gauge("megatron_train_heartbeat_seconds", "When this was written, in seconds since 1970.");
    gauge("megatron_train_ended", "1 once the run has ended, with how.");
    // No counters: a rollback takes the run back to what its checkpoint counts.
    gauge("megatron_train_skipped_steps", "Steps without an update.");
    gauge("megatron_train_rollbacks", "Times that the run went back to a checkpoint.");
    gauge("megatron_train_restarts", "Times that the run was started again.");
  }

  void set_metrics(const Last& now, double unix_s, bool last) {
    // Files of several runs in one folder of the node exporter may not have a series in common.
    const serve::Metrics::Labels run = {{"run", options_.out.string()}};
    const auto set = [&](const char* name, auto value) { metrics_.set(name, static_cast<double>(value), run); };
    set("megatron_train_iteration", iteration_of(now, last));
    set("megatron_train_iterations", options_.train_iters);
    set("megatron_train_ranks", options_.world_size);
    set("megatron_train_consumed_samples", now.figures.consumed_samples);
    set("megatron_train_loss", now.figures.loss);
    set("megatron_train_grad_norm", now.figures.grad_norm);
    set("megatron_train_learning_rate", now.figures.learning_rate);
    set("megatron_train_tokens_per_second", now.figures.tokens_per_s);
    set("megatron_train_step_seconds", now.figures.step_ms / 1000);
    set("megatron_train_memory_bytes", now.figures.memory_bytes);
    set("megatron_train_idle_seconds", seconds_since(now.state.since));
    set("megatron_train_heartbeat_seconds", unix_s);
    set("megatron_train_skipped_steps", now.figures.skipped_steps);
    set("megatron_train_rollbacks", now.figures.rollbacks);
    set("megatron_train_restarts", options_.restarts);
    if (last) metrics_.set("megatron_train_ended", 1, {run.front(), {"how", how_ended_}});
  }

  bool may_write() const { return !options_.may_write || options_.may_write(); }

  /// What cannot be written, or has no memory, ends no run: it is said once. Throws nothing.
  template <class Work>
  void attempt(const Work& work) noexcept {
    try {
      work();
    } catch (const std::exception& error) {
      try {
        if (!has_warned_.exchange(true)) write_line(stderr, concat("warning: ", message_of(error)));
      } catch (const std::exception&) {  // without memory for that either
      }
    }
  }

  const Options options_;
  const Clock::time_point start_ = Clock::now();
  int dumps_seen_;
  std::atomic<bool> has_warned_ = false;
  serve::Metrics metrics_;  // of the thread
  std::mutex mutex_;        // guards what follows
  std::map<int, Rank> ranks_;
  std::optional<Last> last_;  ///< of the first rank
  std::string how_ended_;     ///< likewise
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

RunMonitor::RunMonitor(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
RunMonitor::~RunMonitor() = default;

RunMonitor::Watched::Watched(RunMonitor& monitor, int rank)
    : monitor_(*monitor.impl_), rank_(rank), activity_(std::make_unique<comm::Activity>()) {
  monitor_.add(rank, *activity_);
}

RunMonitor::Watched::~Watched() { monitor_.remove(rank_, how_); }

}  // namespace megatron::run
