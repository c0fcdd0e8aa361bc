
#include "app/docs/docs.h"
#include "app/jobs.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/config/finetune_recipe.h"
#include "megatron/config/options.h"

namespace megatron::app {
namespace {

constexpr const char* kConfigIntroduction =
    "# Options of a training run\n\n"
    "Written by `megatron docs config` from src/megatron/config/run_config.h. A recipe is a TOML file with these "
    "sections; every\n"
    "option is also a flag, `--section.name value`, and some answer to a second, usually Megatron-LM's, name. `_` and "
    "`-` in\n"
    "flags are the same. The resolved recipe of a run, every default included, is `recipe.toml` in its folder. The "
    "section\n"
    "task is for `megatron finetune` alone. Options that have no effect with the others, such as Adam's with "
    "`--optimizer sgd`, are\n"
    "named in one line as the run starts.\n\n"
    "*affects*: what changes where the option does. weights: a checkpoint's value must be the run's. samples: which "
    "samples come\n"
    "next. step: what a step computes or where; a resumed run says that it differs. Empty: none of these. *read*: "
    "where the option is\n"
    "read at all; empty: always.\n";

struct NoOptions {
  void visit(auto&) {}
};

int config_reference(const Args& args) {
  NoOptions none;
  const auto words = config::parse_command_line(none, args, "megatron docs config");
  if (!words.empty())
    throw ConfigError(rule_got_fix("docs config takes no words.", words[0], concat("leave '", words[0], "' out")));
  config::FinetuneRecipe run;
  print_text(kConfigIntroduction + config::to_markdown(config::fields_of(run)));
  return kDone;
}

}  // namespace

int docs(const Args& args) {
  return dispatch("megatron docs",
                  {{"config", "Prints docs/config.md: every option of a recipe.", config_reference},
                   {"megatron-lm", "Prints docs/from_megatron_lm.md: Megatron-LM's options here.", docs_megatron_lm},
                   {"schedules", "Writes docs/schedules: every pipeline schedule as a picture.", docs_schedules}},
                  args);
}

}  // namespace megatron::app
