#include <cstdio>
#include <optional>

#include "app/jobs.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/config/unused_options.h"
#include "megatron/run/ranks.h"
#include "megatron/run/training.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron train RECIPE.toml [--section.key value | --megatron-flag value]…\n\n"
    "Trains a GPT, BERT or T5; resumes from the last checkpoint in train.out. SIGINT and SIGTERM finish the step, "
    "save\n"
    "and exit with 3.";

int run_train(const Args& args) {
  config::RunConfig config;
  std::optional<run::TrainingJob> job;
  const auto command = config::parse_recipe_command(config, args, kUsage, [&] { job = run::open_training(config); });
  if (run::speaks_for(*job)) {
    for (const std::string& note : job->notes) write_line(stderr, note);
    if (const std::string note = config::unread_note(config, command.given); !note.empty()) write_line(stderr, note);
  }
  return run::train(*job, {.stop_on_signals = true});
}

}  // namespace

int train(const Args& args) {
  return run::run_job_of_ranks([&] { return run_train(args); });
}

}  // namespace megatron::app
