#include <ATen/ops/full.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "app/bench/bench.h"
#include "app/bench/bench_options.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/timer.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/run/memory_check.h"
#include "megatron/train/engine.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The resident set's anonymous part, which the system's file cache is none of.
double anonymous_mb() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("RssAnon:")) return std::strtod(line.c_str() + 8, nullptr) / 1e3;
  return 0;
}

/// The largest anonymous_mb() until stop(), looked at each millisecond.
class PeakMemory {
 public:
  PeakMemory() = default;
  ~PeakMemory() {
    if (thread_.joinable()) stop();
  }
  double stop() {
    done_ = true;
    thread_.join();
    return peak_;
  }

 private:
  std::atomic<bool> done_ = false;
  double peak_ = 0;
  std::thread thread_{[this] {
    for (; !done_; std::this_thread::sleep_for(std::chrono::milliseconds(1))) peak_ = std::max(peak_, anonymous_mb());
  }};
};

constexpr std::int64_t kRequest = std::int64_t{8} << 20;

/// Writes or reads the bytes of a file from `begin` to `end` in requests of 8 MiB.
void transfer_part(const fs::path& path, std::int64_t begin, std::int64_t end, int flags) {
  const std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(4096, kRequest), std::free);
  std::fill_n(static_cast<char*>(buffer.get()), kRequest, 'x');
  const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (file < 0) throw std::runtime_error(concat("cannot open ", path.string()));
  const bool writes = (flags & O_ACCMODE) == O_WRONLY;
  bool failed = false;
  for (std::int64_t at = begin, part = 0; at < end && !failed; at += part) {  // a part may be less than a request
    part = writes ? ::pwrite(file, buffer.get(), kRequest, at) : ::pread(file, buffer.get(), kRequest, at);
    failed = part <= 0;
  }
  failed = failed || (writes && ::fsync(file) != 0);
  failed = ::close(file) != 0 || failed;
  if (failed) throw std::runtime_error(concat("cannot write or read ", end - begin, " bytes of ", path.string()));
}

/// Writes or reads a file by several threads, each its own stretch of whole requests, as so many
/// `dd bs=8M oflag=direct conv=fsync` at a time do; seconds. A disk that serves several requests at once gives one
/// stream but a part of what it can.
double transfer(const fs::path& path, std::int64_t bytes, int flags, std::int64_t streams = 1) {
  const std::int64_t requests = (bytes + kRequest - 1) / kRequest;
  const Stopwatch watch;
  std::vector<std::future<void>> parts;
  for (std::int64_t i = 0; i < streams; ++i) {
    const std::int64_t begin = requests * i / streams * kRequest, end = requests * (i + 1) / streams * kRequest;
    parts.push_back(
        std::async(std::launch::async, [&path, begin, end, flags] { transfer_part(path, begin, end, flags); }));
  }
  for (auto& part : parts) part.get();
  return watch.seconds();
}

/// What the disk gives to each number of streams.
class Rates {
 public:
  Rates(std::vector<std::int64_t> streams, double gigabytes)
      : streams_(std::move(streams)), seconds_(streams_.size()), gigabytes_(gigabytes) {}

  const std::vector<std::int64_t>& streams() const { return streams_; }
  void add(std::size_t i, double seconds) { seconds_[i].push_back(seconds); }
  /// GB/s of the number of streams that is the fastest.
  double best() const {
    double best = 0;
    for (const auto& seconds : seconds_) best = std::max(best, gigabytes_ / median(seconds));
    return best;
  }
  /// GB/s by the number of streams.
  Json by_streams() const {
    Json json = Json::object();
    for (std::size_t i = 0; i < streams_.size(); ++i)
      json[std::to_string(streams_[i])] = gigabytes_ / median(seconds_[i]);
    return json;
  }

 private:
  std::vector<std::int64_t> streams_;
  std::vector<std::vector<double>> seconds_;
  double gigabytes_;
};

/// Removes what was measured and waits until the disk has nothing more to do for it.
void remove_and_settle(const fs::path& path) {
  fs::remove_all(path);
  const int folder = ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ::syncfs(folder);
  ::close(folder);
}

/// Has the system forget what it holds of a checkpoint's files: the next reading is from the disk.
void make_cold(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

/// Weights and two moments of one rank.
std::vector<checkpoint::ShardedTensor> state_of(const plan::ModelShape& shape, int tp, int rank, double value) {
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const plan::ParameterSpec& spec : plan::model_parameters(shape, tp, rank))
    for (const char* kind : {"", "optimizer.exp_avg.", "optimizer.exp_avg_sq."})
      for (auto& tensor :
           checkpoint::model_tensor(kind + spec.name, spec, shape, at::full(spec.local_shape(), value, at::kFloat)))
        tensors.push_back(std::move(tensor));
  return tensors;
}

struct Loading {
  double seconds, extra_mb;
};

Loading load_split(const fs::path& folder, const std::vector<std::vector<checkpoint::ShardedTensor>>& ranks) {
  const double before = anonymous_mb();
  PeakMemory peak;
  const Stopwatch watch;
  std::vector<std::future<checkpoint::Loaded>> loads;
  for (const auto& tensors : ranks)
    loads.push_back(std::async(std::launch::async, [&] { return checkpoint::load(folder, tensors); }));
  for (auto& load : loads) load.get();
  const double seconds = watch.seconds();
  return {seconds, peak.stop() - before};
}

Json measure_disk(const BenchCheckpointOptions& options, const plan::ModelShape& shape, const fs::path& folder) {
  const auto state = state_of(shape, 1, 0, 1.0);
  std::int64_t bytes = 0;
  for (const auto& tensor : state) bytes += static_cast<std::int64_t>(tensor.data.nbytes());
  const double gb = static_cast<double>(bytes) / 1e9;
  const fs::path raw = folder / "raw", saved = folder / "checkpoints";
  Rates direct(options.streams, gb), read(options.streams, gb);
  std::vector<double> cached, save, same_cold, split_cold, split_warm, save_extra, load_extra;
  std::vector<std::vector<checkpoint::ShardedTensor>> ranks;
  for (int rank = 0; rank < options.load_tp; ++rank) ranks.push_back(state_of(shape, options.load_tp, rank, 0.0));
  for (int round = 0; round < options.repeats; ++round) {  // interleaved: disks of others' machines are shared
    for (std::size_t i = 0; i < options.streams.size(); ++i) {
      direct.add(i, transfer(raw, bytes, O_WRONLY | O_CREAT | O_DIRECT, options.streams[i]));
      read.add(i, transfer(raw, bytes, O_RDONLY | O_DIRECT, options.streams[i]));
      remove_and_settle(raw);
    }
    if (round > 0) remove_and_settle(saved / checkpoint::iteration_name(round));
    const double before = anonymous_mb();
    {
      PeakMemory peak;
      const Stopwatch watch;
      checkpoint::save(saved, round + 1, state, {}, {});
      save.push_back(watch.seconds());
      save_extra.push_back(peak.stop() - before);
    }
    cached.push_back(transfer(raw, bytes, O_WRONLY | O_CREAT));
    remove_and_settle(raw);
    make_cold(saved);
    same_cold.push_back(load_split(saved, {state}).seconds);
    make_cold(saved);
    const Loading cold = load_split(saved, ranks);
    split_cold.push_back(cold.seconds);
    load_extra.push_back(cold.extra_mb);
    split_warm.push_back(load_split(saved, ranks).seconds);
  }
  const auto rate = [&](const std::vector<double>& seconds) { return gb / median(seconds); };
  return {{"benchmark", "checkpoint"},
          {"gigabytes", gb},
          {"write_direct_gb_s", direct.best()},
          {"write_direct_gb_s_by_streams", direct.by_streams()},
          {"write_cached_fsync_gb_s", rate(cached)},
          {"save_gb_s", rate(save)},
          {"save_vs_write_direct", rate(save) / direct.best()},
          {"save_vs_write_cached_fsync", median(cached) / median(save)},
          {"save_extra_memory_mb", median(save_extra)},
          {"read_direct_gb_s", read.best()},
          {"read_direct_gb_s_by_streams", read.by_streams()},
          {"load_cold_gb_s", rate(same_cold)},
          {"load_split_cold_gb_s", rate(split_cold)},
          {"load_split_cold_vs_read", rate(split_cold) / read.best()},
          {"load_split_warm_gb_s", rate(split_warm)},
          {"load_extra_memory_share", median(load_extra) * 1e6 / static_cast<double>(bytes)}};
}

/// Steps in turns, with a save that begins before and without; what a save stops training for, as a share of a step.
Json measure_stall(const BenchCheckpointOptions& options, const plan::ResolvedRun& run, const fs::path& folder) {
  train::Engine engine(run, {}, at::kCPU);
  checkpoint::Saver saver(folder / "while_training", {}, {.keep = {.last = 1}, .asynchronous = true});
  double stalled = 0;
  engine.step.before_update([&] {
    const Stopwatch watch;
    saver.before_change();
    stalled += watch.seconds();
  });
  std::vector<double> alone, saving, stalls;
  std::int64_t iteration = 0;
  const auto step = [&] {
    const Stopwatch watch;
    train::synthetic_step(engine, run, iteration++, 1e-4);
    return watch.seconds();
  };
  for (int warmup = 0; warmup < 2; ++warmup) step();
  for (std::int64_t i = 0; i < options.steps; ++i) {
    alone.push_back(step());
    stalled = 0;
    const Stopwatch whole, begin;
    saver.begin(iteration, train::sharded_tensors(engine), {});
    stalled += begin.seconds();
    step();
    saving.push_back(whole.seconds());
    while (saver.under_way()) {
      const Stopwatch poll;
      saver.poll();
      stalled += poll.seconds();
      if (saver.under_way()) step();
    }
    stalls.push_back(stalled);
  }
  return {{"step_s", median(alone)},
          {"step_with_save_s", median(saving)},
          {"stall_s", median(stalls)},
          {"stall_share_of_step", median(stalls) / median(alone)},
          {"slowdown_share_of_step", median(saving) / median(alone) - 1}};
}

}  // namespace

int bench_checkpoint(const Args& args) {
  const auto [options, run] = bench_checkpoint_command(args);
  run::check_memory(run, std::nullopt, plan::Holding::Training, {.fix = "a smaller --recipe"});
  kernels::install_caching_allocator();
  const fs::path parent = options.folder.empty() ? fs::temp_directory_path() : fs::path(options.folder);
  std::string folder = (parent / "megatron-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    throw ConfigError(
        rule_got_fix("--folder must be writable.", parent.string(), "name a folder in which you may write"));
  Json report;
  try {
    report = measure_disk(options, run.shape, folder);
    if (options.steps > 0) report.update(measure_stall(options, run, folder));
  } catch (...) {
    fs::remove_all(folder);
    throw;
  }
  fs::remove_all(folder);
  if (options.json)
    print_json(report);
  else
    for (const auto& [name, value] : report.items()) print("{:28} {}\n", name, value.dump());
  return kDone;
}

}  // namespace megatron::app
