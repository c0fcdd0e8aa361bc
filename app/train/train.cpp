#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/jobs.h"
#include "app/layouts.h"
#include "app/train/train_options.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/config/unused_options.h"
#include "megatron/run/ranks.h"
#include "megatron/run/training.h"

namespace megatron::app {
namespace {

/// Of --layout; empty where it is given. Every rank finds the same where it sees the same files: words, the number of
/// ranks, the tokenizer and the sizes of a teacher decide.
run::ChooseLayout chooser_of(const TrainOptions& options) {
  if (options.layout == "given") {
    if (!options.hardware.empty() || !options.fit.empty())
      throw ConfigError(
          rule_got_fix("--hardware and --fit are for the search of a layout.", "--layout given", "--layout auto"));
    return {};
  }
  if (options.hardware.empty())
    throw ConfigError(rule_got_fix("--layout auto needs what the ranks run on.", "no --hardware",
                                   "--hardware dgx-h100; a file for this machine: megatron bench hardware --output "
                                   "FILE"));
  return [machine = machine_of(options.hardware, options.fit)](config::RunConfig& config, int ranks_here,
                                                               const std::optional<plan::TeacherNetwork>& teacher) {
    const plan::LayoutSearch found =
        find_layouts(config, machine, std::max(1, usable_cores() / ranks_here), /*most=*/1, teacher);
    const plan::FoundLayout& best = found.layouts[0];
    std::string note = concat("layout auto: ", plan::flags_of(config, best.choice), " (",
                              human_bytes(static_cast<double>(best.held_bytes())), " of ",
                              human_bytes(machine.capacity_bytes), " per rank)");
    config = plan::with_layout(config, best.choice);
    return note;
  };
}

int run_train(const Args& args) {
  TrainOptions options;
  std::optional<run::TrainingJob> job;
  const auto command = config::parse_recipe_command(options, &TrainOptions::run, args, kTrainUsage, [&] {
    job = run::open_training(options.run, chooser_of(options));
  });
  if (options.restart != 0)
    throw ConfigError(rule_got_fix("--restart is for the program megatron.", concat("--restart ", options.restart),
                                   "megatron train, not megatron-torch train"));
  if (run::speaks_for(*job)) {
    for (const std::string& note : job->notes) write_line(stderr, note);
    if (const std::string note = config::unread_note(options.run, command.given); !note.empty())
      write_line(stderr, note);
  }
  return run::train(*job, {.stop_on_signals = true});
}

}  // namespace

int train(const Args& args) {
  return run::run_job_of_ranks([&] { return run_train(args); });
}

}  // namespace megatron::app
