#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/jobs.h"
#include "app/layouts.h"
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

constexpr const char* kUsage =
    "megatron train RECIPE.toml [--section.key value | --megatron-flag value]…\n\n"
    "Trains a GPT, BERT or T5; resumes from the last checkpoint in train.out. SIGINT and SIGTERM finish the step, "
    "save\n"
    "and exit with 3.";

struct Options {
  config::RunConfig run;
  std::string layout = "given", hardware, fit;

  void visit(auto& v) {
    v("layout", layout,
      "given: the layout of ranks that the options say; auto: the fastest that fits, as plan --search finds it, in "
      "place of their tp, sp, cp and its way, ep, pp, vpp, dp, stages, schedule, micro batch, recomputation and "
      "sharding.",
      config::Choices({"given", "auto"}));
    v("hardware", hardware,
      "With --layout auto: what the ranks run on, a file (megatron bench hardware writes one) or the name of one in "
      "configs/hardware/ without .toml.");
    v("fit", fit, "With --layout auto: memory that a rank may take, as 80GB; empty: all that the hardware has.");
    run.visit(v);
  }
};

/// Of --layout; empty where it is given. Every rank finds the same: nothing but its words and the number of ranks
/// decides.
run::ChooseLayout chooser_of(const Options& options) {
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
  return [machine = machine_of(options.hardware, options.fit)](config::RunConfig& config, int ranks_here) {
    const plan::LayoutSearch found = find_layouts(config, machine, std::max(1, usable_cores() / ranks_here));
    const plan::FoundLayout& best = found.layouts[0];
    std::string note = concat("layout auto: ", plan::flags_of(config, best.choice), " (",
                              human_bytes(static_cast<double>(best.held_bytes())), " of ",
                              human_bytes(machine.capacity_bytes), " per rank)");
    config = plan::with_layout(config, best.choice);
    return note;
  };
}

int run_train(const Args& args) {
  Options options;
  std::optional<run::TrainingJob> job;
  const auto command = config::parse_recipe_command(
      options, &Options::run, args, kUsage, [&] { job = run::open_training(options.run, chooser_of(options)); });
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
