#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "app/jobs.h"
#include "app/ranks.h"
#include "app/recipe.h"
#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/interchange/companions.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/text/tokenizer.h"
#include "megatron/train/inputs.h"
#include "megatron/train/run_folders.h"
#include "megatron/train/trainer.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron train RECIPE.toml [--section.key value | --megatron-flag value]…\n"
    "Trains a GPT or a BERT; goes on by itself from the last checkpoint in train.out. SIGINT and SIGTERM finish the\n"
    "step, save and exit with 3.";

// A signal handler can reach nothing else. Read by every rank through StopRequested.
std::atomic<int> stop_requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch no lock");

// The first signal asks for a stop; the second one ends the program, as it would have without us.
void stop_on_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// The run's folder keeps what makes text of its model's tokens, as `data.tokenizer` may change or go.
// A model that was loaded brings the files beside it (its ends of texts, its chat template) where its tokenizer is
// this.
void keep_tokenizer(const text::Tokenizer& tokenizer, const config::RunConfig& config) {
  const std::filesystem::path out = config.train.out;
  const auto is_its = [&](const std::filesystem::path& folder) {
    return interchange::has_tokenizer(folder) && text::Tokenizer::load(folder).fingerprint() == tokenizer.fingerprint();
  };
  if (is_its(out)) return;
  if (train::takes_weights_alone(config)) {
    const auto from = interchange::companion_folder(config.checkpoint.load);
    if (!from.empty() && is_its(from)) interchange::copy_companions(from, out);
  }
  if (!is_its(out)) tokenizer.save(out);
}

// With load_strict off a network that differs is taken as meant, and said.
void warn_of_differences(const config::RunConfig& config) {
  if (!train::takes_weights_alone(config) || config.checkpoint.load_strict) return;
  for (const std::string& line : interchange::differences(config.model, config.checkpoint.load))
    std::fprintf(stderr, "warning: the network differs from that of %s: %s\n", config.checkpoint.load.c_str(),
                 line.c_str());
}

}  // namespace

int train(const Args& args) {
  config::RunConfig config;
  const auto place = comm::place_from(environment());
  std::optional<RunAndTokenizer> resolved;
  config::parse_recipe_command(config, args, kUsage, [&] {
    resolved =
        resolve_with_tokenizer(config, {.launched_world_size = place ? place->world_size : 0, .needs_data = true});
  });
  const plan::ResolvedRun& run = resolved->run;
  const text::Tokenizer& tokenizer = *resolved->tokenizer;  // without one resolve() has thrown
  const bool needs_eod =
      config.data.reset_position_ids || config.data.reset_attention_mask || config.data.eod_mask_loss;
  const std::int64_t eod = needs_eod ? tokenizer.eod_id() : -1;
  check_device(run, place);
  data::WaitMessage say;  // one of the processes that do the work speaks for all
  if (!starts_processes(run, place) && (!place || place->rank == 0))
    say = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  train::check_inputs(run, say);
  std::optional<train::RunFolders> folders;  // held until the run ends
  if (!place || place->rank == 0) {
    folders.emplace(run.config);
    keep_tokenizer(tokenizer, run.config);
    if (!starts_processes(run, place)) warn_of_differences(run.config);
  }
  if (starts_processes(run, place)) folders.reset();  // the first rank's process holds them

  kernels::install_caching_allocator();
  if (run.config.train.kernels != "auto") kernels::force_instruction_set(run.config.train.kernels);
  kernels::set_matmul_precision(run.config.train.matmul_precision);
  if (!starts_processes(run, place)) stop_on_signals();
  return run_on_ranks(run, place, [&](comm::Group world, at::Device device) {
    try {
      const auto outcome = train::train(run, eod, std::move(world), device, [] { return stop_requested != 0; });
      return outcome == train::Outcome::Interrupted ? kInterrupted : kDone;
    } catch (const ConfigError& error) {  // too late for exit code 2: the run has begun and has written files
      throw std::runtime_error(error.what());
    }
  });
}

}  // namespace megatron::app
