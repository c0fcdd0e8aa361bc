#include "megatron/run/ranks.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
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
#include "megatron/comm/processes/presence.h"
#include "megatron/comm/processes/refusal.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/kernels/runtime.h"
#include "megatron/parallel/context.h"
#include "megatron/parallel/cuda.h"
#include "megatron/run/exit_codes.h"
#include "megatron/train/resume/agreement.h"

namespace megatron::run {
namespace {

// How long a rank that cannot start waits for the others, to tell them: the timeout that its command names, whatever
// else is wrong with it, else the usual one.
std::chrono::milliseconds patience_with_peers(const std::vector<std::string>& command) {
  const std::string option = config::normalized("parallel.timeout_s"),
                    of_forward_jobs = config::normalized("timeout_s");
  double seconds = config::ParallelConfig().timeout_s;
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
    if (timeout > 0) seconds = std::min(timeout, 1e7);                    // the most that a recipe may name
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

// Whether the ranks of the job that this process runs have met: then they learn of each other's end as they
// communicate. A process is a rank of one job at a time.
std::atomic<bool> have_met = false;
// Before they have met: of a rank that others wait for.
std::optional<comm::Presence> presence;

// Where the rank of `place` meets the others.
comm::LaunchedRank meeting_of(const comm::LaunchedRank& place) { return presence ? presence->place() : place; }

// Throws PeerError where a rank that was there is gone.
void check_peers() {
  if (presence) presence->check();
}

void note_met() {
  have_met = true;
  if (presence) presence->met();
}

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
  } catch (const comm::AgreedFailure&) {
    throw;
  } catch (const ConfigError& error) {
    throw ConfigError(named(error));
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
  comm::Group world;
  if (run.grid.world_size() > 1) world = comm::join_nccl(meeting_of(*place), gpu, timeout_of(parallel), check_peers);
  note_met();
  return run_body(run, work, world, device);
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

// Tells the other ranks, which wait for this one, of its problem: throws what all throw, or returns where they cannot
// be reached. Where they keep this rank waiting, which looks like a rank that hangs, the problem is printed before.
void tell_peers(const comm::LaunchedRank& place, const comm::Problem& problem) {
  constexpr std::chrono::seconds kUsualWait{5};
  auto telling = std::async(std::launch::async, [&] {
    try {
      comm::refuse_to_meet(meeting_of(place), problem, patience_with_peers(own_command()), check_peers);
    } catch (const comm::AgreedError&) {
      throw;
    } catch (const comm::AgreedFailure&) {
      throw;
    } catch (const std::exception&) {  // nobody is told: the problem itself is what to print
    }
  });
  if (telling.wait_for(kUsualWait) == std::future_status::timeout)
    write_line(stderr,
               concat("rank ", place.rank, " cannot start, and waits for the others to tell them:\n", problem.text));
  telling.get();
}

// job(); what it throws before the ranks have met is told to the other ranks of a launcher, and thrown by all.
int with_peers_told(const std::function<int()>& job) {
  std::exception_ptr thrown;
  comm::Problem problem;
  try {
    return job();
  } catch (const comm::AgreedError&) {
    throw;
  } catch (const comm::AgreedFailure&) {
    throw;
  } catch (const comm::PeerError&) {  // of the meeting itself
    throw;
  } catch (const config::HelpRequested&) {
    throw;
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    problem = comm::problem_of(error);
  }
  const auto place = comm::place_from(comm::process_environment());
  if (place && place->world_size > 1 && !have_met) tell_peers(*place, problem);
  std::rethrow_exception(thrown);
}

}  // namespace

int run_job_of_ranks(const std::function<int()>& job) {
  have_met = false;
  std::optional<comm::LaunchedRank> own;
  try {
    own = comm::place_from(comm::process_environment());
  } catch (const ConfigError&) {  // the job says it
  }
  if (own) presence.emplace(*own);
  struct Ending {
    ~Ending() { presence.reset(); }
  } ending;
  const auto is_said_by_rank_0 = [&] { return own && own->rank_0_speaks && own->rank > 0; };
  try {
    return with_peers_told([&] { return with_wrong_paths_refused(job); });
  } catch (const comm::AgreedError&) {
    note_met();
    if (is_said_by_rank_0()) return kWrong;
    throw;
  } catch (const comm::AgreedFailure&) {
    note_met();
    if (is_said_by_rank_0()) return kFailed;
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
  const comm::Group world = comm::join_gloo(meeting_of(*place), timeout_of(parallel), check_peers);
  note_met();
  return run_body(run, work, world, at::kCPU);
}

}  // namespace megatron::run
