#include "megatron/run/ranks.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "megatron/base/error.h"
#include "megatron/base/files/path_error.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/machine/parallel.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/base/stack_frames.h"
#include "megatron/base/text/printable.h"
#include "megatron/comm/cuda_plugin.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/processes/launch.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/value.h"
#include "megatron/kernels/runtime.h"
#include "megatron/parallel/context.h"
#include "megatron/parallel/cuda.h"
#include "megatron/run/exit_codes.h"
#include "megatron/train/resume/agreement.h"

namespace megatron::run {
namespace {

// How long a rank that cannot start waits for the others, to tell them: 20 s, but at most 8 s after the timeout that
// its command names, whatever else is wrong with it. No rank lives 10 s after its timeout.
std::chrono::milliseconds patience_with_peers(const std::vector<std::string>& command) {
  const std::string option = config::normalized("parallel.timeout_s"),
                    of_forward_jobs = config::normalized("timeout_s");
  double seconds = 20;
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (!command[i].starts_with("--")) continue;
    const std::size_t equals = command[i].find('=');
    const std::string name = config::normalized(command[i].substr(2, equals - 2));
    if (name != option && name != of_forward_jobs) continue;
    const std::string value = equals != std::string::npos ? command[i].substr(equals + 1)
                              : i + 1 < command.size()    ? command[i + 1]
                                                          : "";
    double timeout = 0;
    std::from_chars(value.data(), value.data() + value.size(), timeout);  // 0 stays where it is no number
    if (timeout > 0) seconds = std::min(seconds, timeout + 8);
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

std::chrono::milliseconds timeout_of(const config::ParallelConfig& parallel) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(parallel.timeout_s * 1000));
}

int threads_of_rank(const config::ParallelConfig& parallel, int ranks_here) {
  return parallel.threads_per_rank > 0 ? parallel.threads_per_rank : std::max(1, usable_cores() / ranks_here);
}

/// Of the rank that is number `rank` of `ranks` on this machine, whose calling thread this is.
void configure_rank(const config::ParallelConfig& parallel, int rank, int ranks) {
  const int threads = threads_of_rank(parallel, ranks);
  kernels::configure_thread(threads);
  const comm::Environment variables = comm::process_environment();
  const bool users_say = variables.contains("OMP_PROC_BIND") || variables.contains("OMP_PLACES") ||
                         variables.contains("GOMP_CPU_AFFINITY");
  if (!users_say) kernels::bind_threads(threads, rank, ranks);
}

// A ConfigError of one rank, after it has met the others.
struct RankError : ConfigError {
  using ConfigError::ConfigError;
};

// What the ranks of a job do, and what they must have in common besides the recipe before they do it.
struct RankWork {
  const RankBody& body;
  const comm::Facts& facts;
};

// Runs the work of one rank. What it throws gets the rank's name, and peers that wait for the rank are told.
int run_body(const plan::ResolvedRun& run, const RankWork& work, const comm::Group& world, at::Device device) {
  if (world.size() == 1) {
    try {
      return work.body(world, device);
    } catch (const std::filesystem::filesystem_error& error) {  // not of a path that the user has named
      throw std::runtime_error(path_error(error));
    }
  }
  const auto named = [&](const std::exception& error) {
    const std::string message = concat(plan::rank_name(run.grid, world.rank()), ": ", message_of(error));
    world.abort(message);
    return message;
  };
  try {
    comm::Facts facts = train::recipe_facts(run);
    facts.insert(facts.end(), work.facts.begin(), work.facts.end());
    comm::require_agreement(world, facts);
    return work.body(world, device);
  } catch (const comm::AgreedError&) {  // the peers throw the same
    throw;
  } catch (const ConfigError& error) {
    throw RankError(named(error));
  } catch (const std::exception& error) {
    throw std::runtime_error(named(error));
  }
}

int run_threads(const plan::ResolvedRun& run, const RankWork& work) {
  const config::ParallelConfig& parallel = run.config.parallel;
  const int ranks = run.grid.world_size();
  std::atomic<int> exit_code{0};
  const auto rank = [&](const comm::Group& world) {
    configure_rank(parallel, world.rank(), ranks);
    const int code = run_body(run, work, world, at::kCPU);
    for (int seen = exit_code; seen < code && !exit_code.compare_exchange_weak(seen, code);) continue;
  };
  const comm::LocalOptions options{.timeout = timeout_of(parallel), .on_stuck = [](const std::string& message) {
                                     write_line(stderr, without_stack_frames(message));
                                     std::fflush(nullptr);
                                     ::_exit(1);
                                   }};
  if (ranks == 1)
    rank(comm::Group());
  else if (parallel.backend == "gloo")
    comm::run_gloo_ranks(ranks, rank, options);
  else
    comm::run_ranks(ranks, rank, options);
  return exit_code;
}

int run_on_gpu(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, const RankWork& work) {
  const config::ParallelConfig& parallel = run.config.parallel;
  const comm::Environment variables = comm::process_environment();
  const auto named = variables.find("CUDA_VISIBLE_DEVICES");
  VisibleGpus gpus{.count = comm::num_cuda_devices()};
  if (named != variables.end()) gpus.named = named->second;
  const int gpu = gpu_of_rank(gpus, place ? place->local_rank : 0, place ? place->local_size : 1);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  const c10::DeviceGuard guard(device);
  configure_rank(parallel, place ? place->local_rank : 0, place ? place->local_size : 1);
  at::globalContext().setDeterministicCuDNN(run.config.train.deterministic_mode);
  const bool alone = run.grid.world_size() == 1;
  return run_body(run, work, alone ? comm::Group() : comm::join_nccl(*place, gpu, timeout_of(parallel)), device);
}

// The words that this process was started with; the first is replaced by the program's path.
std::vector<std::string> own_command() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string line((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t begin = 0; begin < line.size();) {
    const std::size_t end = line.find('\0', begin);
    words.push_back(line.substr(begin, end - begin));
    begin = end == std::string::npos ? line.size() : end + 1;
  }
  words.at(0) = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

// job(), and ConfigError in place of what std::filesystem throws where it looks at a path that cannot be.
int with_wrong_paths_refused(const std::function<int()>& job) {
  try {
    return job();
  } catch (const std::filesystem::filesystem_error& error) {
    if (!is_wrong_path(error)) throw;
    throw ConfigError(path_error(error));
  }
}

}  // namespace

int run_job_of_ranks(const std::function<int()>& job) {
  try {
    return with_wrong_paths_refused(job);
  } catch (const comm::AgreedError&) {
    throw;
  } catch (const RankError&) {
    throw;
  } catch (const ConfigError& error) {
    const auto place = comm::place_from(comm::process_environment());
    const bool gpus = gpu_present();  // there ranks may meet over NCCL, which this is not for
    if (!place || place->world_size == 1 || gpus) throw;
    try {
      comm::report_problem(comm::join_gloo(*place, patience_with_peers(own_command())), error.what());
    } catch (const comm::AgreedError&) {
      throw;
    } catch (const std::exception&) {  // the others have not come: nobody is to be told
    }
    throw;
  }
}

bool starts_processes(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place) {
  const config::ParallelConfig& parallel = run.config.parallel;
  const bool wanted = parallel.launch == "processes" || (parallel.launch == "auto" && parallel.device == "cuda");
  return !place && wanted && run.grid.world_size() > 1;
}

void check_start(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place) {
  const config::ParallelConfig& parallel = run.config.parallel;
  if (place && place->world_size > 1) secret_of(*place);
  if (parallel.device != "cuda") return;
  if (parallel.backend != "auto" && parallel.backend != "nccl")
    throw ConfigError(
        rule_got_fix("parallel.device cuda needs parallel.backend nccl.", parallel.backend, "--parallel.backend nccl"));
  if (!place && !starts_processes(run, place) && run.grid.world_size() > 1)
    throw ConfigError(rule_got_fix("Ranks on cuda are processes.", "parallel.launch " + parallel.launch,
                                   "--parallel.launch processes"));
  parallel::load_cuda();
}

int run_on_ranks(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, const RankBody& body,
                 const comm::Facts& facts) {
  const RankWork work{body, facts};
  const config::ParallelConfig& parallel = run.config.parallel;
  check_start(run, place);
  if (starts_processes(run, place)) {
    const comm::LaunchResult result =
        comm::launch_processes(run.grid.world_size(), own_command(), {.clean_codes = {kDone, kInterrupted, kFaulty}});
    if (result.interrupted_by > 0) {
      write_line(stderr, "interrupted");
      return 128 + result.interrupted_by;
    }
    if (result.first_failed_rank < 0) return result.exit_code;
    if (result.exit_code == kWrong) return kWrong;  // every rank has said why nothing was begun
    write_line(stderr, result.message);
    return kFailed;
  }
  // Those of libtorch's pool, and of each rank here its own and those that fetch batches and write checkpoints.
  const int ranks_here = place ? 1 : run.grid.world_size();
  require_threads(usable_cores() +
                  ranks_here * (threads_of_rank(parallel, place ? place->local_size : ranks_here) + 3));
  if (parallel.device == "cuda") return run_on_gpu(run, place, work);
  if (!place) return run_threads(run, work);
  configure_rank(parallel, place->local_rank, place->local_size);
  const bool alone = place->world_size == 1;
  return run_body(run, work, alone ? comm::Group() : comm::join_gloo(*place, timeout_of(parallel)), at::kCPU);
}

}  // namespace megatron::run
