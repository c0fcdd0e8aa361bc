#include <csignal>

#include "app/jobs.h"
#include "app/ranks.h"
#include "megatron/config/options.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/kernels/runtime.h"
#include "megatron/text/tokenizer.h"
#include "megatron/train/trainer.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron train RECIPE.toml [--section.key value | --megatron-flag value]…\n"
    "Trains a GPT; goes on by itself from the last checkpoint in train.out. SIGINT and SIGTERM finish the step, save\n"
    "and exit with 3.";

// A signal handler can reach nothing else. Read by every rank through StopRequested.
volatile std::sig_atomic_t stop_requested = 0;

// The first signal asks for a stop; the second one ends the program, as it would have without us.
void stop_on_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

int train(const Args& args) {
  config::RunConfig config;
  config::parse_recipe_command(config, args, kUsage);
  const auto place = comm::place_from(environment());
  plan::Facts facts{.launched_world_size = place ? place->world_size : 0, .needs_data = true};
  std::int64_t eod = -1;
  if (!config.data.tokenizer.empty()) {
    const auto tokenizer = text::Tokenizer::load(config.data.tokenizer);
    facts.tokenizer_vocab = tokenizer.vocab_size();
    if (config.data.reset_position_ids || config.data.reset_attention_mask || config.data.eod_mask_loss)
      eod = tokenizer.eod_id();
  }
  const plan::ResolvedRun run = plan::resolve(config, facts);
  (void)data::IndexedDataset(run.config.data.data_path.at(0));  // a wrong prefix is found before ranks start

  kernels::install_caching_allocator();
  if (run.config.train.kernels != "auto") kernels::force_instruction_set(run.config.train.kernels);
  if (!starts_processes(run, place)) stop_on_signals();
  return run_on_ranks(run, place, [&](comm::Group world, at::Device device) {
    const auto outcome = train::train(run, eod, std::move(world), device, [] { return stop_requested != 0; });
    return outcome == train::Outcome::Interrupted ? kInterrupted : kDone;
  });
}

}  // namespace megatron::app
