#include "app/train/finetune_options.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "app/eval/task_options.h"
#include "megatron/base/error.h"
#include "megatron/config/unused_options.h"
#include "megatron/config/value.h"
#include "megatron/tasks/task.h"
#include "megatron/tasks/task_info.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron finetune RECIPE.toml [--section.name value]…\n\n"
    "Fine-tunes a pretrained BERT or GPT (--load) on a task (--task, --train-data, --valid-data), once per seed; "
    "keeps\n"
    "the best weights and their predictions, and reports the median and the ensemble. The same command again resumes\n"
    "an interrupted run (--save-interval). The network is that of --load: the recipe need not name it. See\n"
    "docs/finetune.md.";

void refuse_options_of_text(config::FinetuneRecipe recipe) {
  config::FinetuneRecipe defaults;
  const config::Fields given = config::fields_of(recipe), usual = config::fields_of(defaults);
  std::string names, defaults_again;
  for (std::size_t i = 0; i < given.fields.size(); ++i) {
    const std::string value = config::plain_value(usual.fields[i].value);
    if (!given.fields[i].meaning.only_in_training || config::plain_value(given.fields[i].value) == value) continue;
    names += (names.empty() ? "" : ", ") + given.fields[i].path;
    defaults_again +=
        concat(names == given.fields[i].path ? "--" : " --", given.fields[i].path, value.empty() ? "=" : " " + value);
  }
  if (!names.empty())
    throw ConfigError(rule_got_fix(
        "megatron finetune takes no options of text and of its folders.", names,
        defaults_again +
            (recipe.data.sft ? "; conversations are what megatron train teaches, with --sft" : " (the default)")));
}

void check_task(const config::TaskConfig& task) {
  const tasks::TaskForm form = tasks::task_form(tasks::task_kind_of(task.name));
  const auto is_named = [](const std::string& file) { return !file.empty(); };
  for (const auto& [option, named] :
       {std::pair{"--task.train", is_named(task.train)},
        {"--task.valid", !task.valid.empty() && std::ranges::all_of(task.valid, is_named)}})
    if (!named)
      throw ConfigError(rule_got_fix(concat(option, " must name the task's file."), "none", concat(option, " FILE")));
  if (!(task.epochs >= 0 && task.epochs <= 1e4))
    throw ConfigError(
        rule_got_fix("task.epochs must be from 0 to 10000.", concat(task.epochs), "--epochs 3 (the default)"));
  const config::TaskConfig usual;
  check_task_numbers(task.name, form.head,
                     {{"task.train_limit", task.train_limit, 0},
                      {"task.valid_limit", task.valid_limit, 0},
                      {"task.doc_stride", task.doc_stride, 1, usual.doc_stride, " span "},
                      {"task.max_query_length", task.max_query_length, 0, usual.max_query_length, " span options "},
                      {"task.n_best", task.n_best, 1, usual.n_best, " span "},
                      {"task.max_answer_length", task.max_answer_length, 1, usual.max_answer_length, " span "}});
  std::vector<std::int64_t> seeds = task.seeds;
  std::ranges::sort(seeds);
  if ((!seeds.empty() && seeds.front() < 0) || std::ranges::adjacent_find(seeds) != seeds.end())
    throw ConfigError(rule_got_fix("task.seeds must be different numbers, 0 or above.", "others", "--seeds 1,2,3,4,5"));
}

/// What is left to be filled in: the network of the weights, the task's head, the tokenizer beside the weights.
void complete(config::FinetuneRecipe& recipe, const WeightsFolder& weights) {
  const tasks::TaskForm form = tasks::task_form(tasks::task_kind_of(recipe.task.name));
  if (!config::model_traits(recipe.model.architecture).two_segments && std::string_view(form.head) == "span")
    throw ConfigError(rule_got_fix("squad needs a BERT: a GPT's attention is causal.",
                                   "model.architecture " + recipe.model.architecture, "--load FOLDER, of a BERT"));
  recipe.model.head = form.head;
  recipe.model.num_classes = form.num_classes;
  recipe.model.mtp_num_layers = 0;  // a task predicts no tokens
  if (recipe.parallel.pp > 1) recipe.parallel.variable_seq_lengths = true;
  if (recipe.data.tokenizer.empty() && !recipe.checkpoint.load.empty())
    recipe.data.tokenizer = weights.tokenizer(recipe.checkpoint.load);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(rule_got_fix("data.tokenizer must name the model's tokenizer.", "none, nor one with --load",
                                   "--tokenizer FOLDER"));
}

}  // namespace

FinetuneOptions finetune_words(const Args& args) {
  FinetuneOptions options;
  config::parse_recipe_command(options, &FinetuneOptions::recipe, args, kUsage);
  const config::FinetuneRecipe& recipe = options.recipe;
  check_task(recipe.task);
  refuse_options_of_text(recipe);
  if (recipe.fp8.format != "none")
    throw ConfigError(rule_got_fix(
        "megatron finetune excludes fp8.format: the best weights are scored again without the scales that they had.",
        concat("fp8.format ", recipe.fp8.format), "--fp8-format none"));
  return options;
}

FinetuneOptions finetune_options(const Args& args, const WeightsFolder& weights) {
  const FinetuneOptions named = finetune_words(args);
  FinetuneOptions options;
  // The network of the weights comes first, what recipe and words say of it after.
  const std::string& load = named.recipe.checkpoint.load;
  if (!load.empty()) options.recipe.model = weights.network(load);
  const auto command = config::parse_recipe_command(options, &FinetuneOptions::recipe, args, kUsage,
                                                    [&] { complete(options.recipe, weights); });
  options.note = config::unread_note(options.recipe, command.given);
  return options;
}

}  // namespace megatron::app
