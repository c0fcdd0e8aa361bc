#include <cstdio>
#include <filesystem>
#include <optional>

#include "app/jobs.h"
#include "app/memory_check.h"
#include "app/ranks.h"
#include "app/recipe.h"
#include "app/stop.h"
#include "megatron/base/error.h"
#include "megatron/base/printable.h"
#include "megatron/comm/agreement.h"
#include "megatron/config/options.h"
#include "megatron/config/unread.h"
#include "megatron/interchange/companions.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/text/tokenizer.h"
#include "megatron/train/inputs.h"
#include "megatron/train/iteration.h"
#include "megatron/train/run_folders.h"
#include "megatron/train/trainer.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron train RECIPE.toml [--section.key value | --megatron-flag value]…\n"
    "Trains a GPT or a BERT; goes on by itself from the last checkpoint in train.out. SIGINT and SIGTERM finish the\n"
    "step, save and exit with 3.";

// With load_strict off a network that differs is taken as meant, and said.
void warn_of_differences(const config::RunConfig& config) {
  if (!train::takes_weights_alone(config) || config.checkpoint.load_strict) return;
  for (const std::string& line : interchange::differences(config.model, config.checkpoint.load))
    write_line(stderr, concat("warning: the network differs from that of ", config.checkpoint.load, ": ", line));
}

/// The tokenizer that lies with the weights to begin with is meant where none is named.
void take_tokenizer_of_weights(config::RunConfig& config) {
  const std::string& load = config.checkpoint.load;
  if (!config.data.tokenizer.empty() || load.empty() || !std::filesystem::exists(load)) return;
  try {
    config.data.tokenizer = interchange::companion_folder(load).string();
  } catch (const ConfigError&) {  // the folder holds no model: said where it is opened
  }
}

int run_train(const Args& args) {
  config::RunConfig config;
  const auto place = comm::place_from(environment());
  std::optional<RunAndTokenizer> resolved;
  const auto command = config::parse_recipe_command(config, args, kUsage, [&] {
    take_tokenizer_of_weights(config);
    resolved = resolve_with_tokenizer(config, {.launched_world_size = place ? place->world_size : 0,
                                               .needs_data = true,
                                               .resumed_batch = train::resumed_batch(config)});
  });
  const plan::ResolvedRun& run = resolved->run;
  const text::Tokenizer& tokenizer = *resolved->tokenizer;  // without one resolve() has thrown
  const bool needs_eod =
      config.data.reset_position_ids || config.data.reset_attention_mask || config.data.eod_mask_loss;
  const std::int64_t eod = needs_eod ? tokenizer.eod_id() : -1;
  check_start(run, place);
  data::WaitMessage say;  // one of the processes that do the work speaks for all
  if (!starts_processes(run, place) && (!place || place->rank == 0)) {
    say = [](const std::string& text) { write_line(stderr, text); };
    if (const std::string note = config::unread_note(config, command.given); !note.empty()) say(note);
  }
  const bool meets = place && place->world_size > 1;  // others, of which it knows nothing yet
  if (!meets) train::check_inputs(run, say);
  if (run.config.train.kernels != "auto") kernels::force_instruction_set(run.config.train.kernels);
  kernels::set_matmul_precision(run.config.train.matmul_precision);
  check_memory(run, place, plan::Holding::Training);
  if (starts_processes(run, place)) train::RunFolders{run.config};  // tried: the first rank's process will hold them
  std::optional<train::RunFolders> folders;                         // held until the run ends
  // What one rank finds wrong ends them all, before anything is written.
  const auto prepare = [&](const comm::Group& world) {
    const auto beat = train::beat_of(run.config);
    comm::run_together(
        world,
        [&] {
          if (meets) train::check_inputs(run, say);
        },
        beat);
    comm::run_together(
        world,
        [&] {
          if (world.rank() != 0) return;
          folders.emplace(run.config);
          keep_tokenizer(tokenizer, run.config.train.out,
                         train::takes_weights_alone(run.config) ? run.config.checkpoint.load : "");
          warn_of_differences(run.config);
        },
        beat);
  };

  kernels::install_caching_allocator();
  if (!starts_processes(run, place)) stop_on_signals();
  return run_on_ranks(run, place, [&](const comm::Group& world, at::Device device) {
    try {
      const auto outcome = train::train(run, eod, world, device, stop_requested, [&] { prepare(world); });
      return outcome == train::Outcome::Interrupted ? kInterrupted : kDone;
    } catch (const comm::AgreedError&) {
      throw;
    } catch (const ConfigError& error) {  // too late for exit code 2: the run has begun and has written files
      throw std::runtime_error(error.what());
    }
  });
}

}  // namespace

int train(const Args& args) {
  return run_job_of_ranks([&] { return run_train(args); });
}

}  // namespace megatron::app
