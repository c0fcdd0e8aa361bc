#include "app/eval/eval_options.h"

#include <utility>
#include <vector>

#include "app/eval/task_options.h"
#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/base/files/atomic_folder.h"
#include "megatron/base/progress.h"
#include "megatron/tasks/published/lambada.h"
#include "megatron/tasks/task_info.h"

namespace megatron::app {
namespace {

constexpr const char* kLossUsage =
    "megatron eval loss --load DIR --data F [OPTION]…\n\n"
    "Loss per token of the text F, or of the tokens of a .bin/.idx pair F (as one stream), in windows of W tokens "
    "that\n"
    "begin S tokens apart. S = W: every token but the first of a window is scored. S < W: every token once, given at\n"
    "least W - S tokens before it. The confidence interval is that of 95 %, with windows as independent draws.";
constexpr const char* kWikitextUsage =
    "megatron eval wikitext --load DIR --data F [OPTION]…\n\n"
    "As `eval loss` for a file of WikiText, with the perplexity per word as well. --paper is the evaluation of "
    "Shoeybi\n"
    "et al. 2019, appendix E: detokenized, windows of 1024 tokens and the one after them, that begin 32 apart, and\n"
    "words as that paper counts them (T_o: separated by spaces in F, 245,566 in WikiText-103's test set), as with\n"
    "--detokenize. Else words are separated by white space. Bits per byte are of the text as the model reads it.";

constexpr const char* kLambadaUsage =
    "megatron eval lambada --load DIR --data F [OPTION]…\n\n"
    "How often the last word of a passage, what follows its last space, is predicted: right where each of its tokens "
    "is\n"
    "the likeliest, given the true ones before it (Shoeybi et al. 2019, appendix E.2). The text is taken as it is.\n"
    "Perplexity is that of a last word, token_perplexity that of a token of one.";
constexpr const char* kChoiceUsage =
    "megatron eval choice --load DIR --data F [OPTION]…\n\n"
    "Each line of F is {\"context\": \"…\", \"choices\": [\"…\", …], \"label\": 0}. Chosen is the answer that is "
    "likeliest\n"
    "after the context, its log likelihood divided by its tokens (accuracy), by its bytes (accuracy_bytes), or as it "
    "is\n"
    "(accuracy_sum). A space goes between where neither has white space there.";

std::string task_usage() {
  return "megatron eval " + config::task_choices() +
         "|squad --load DIR --data F [OPTION]…\n\n"
         "What a fine-tuned model scores on the task's file as it is published: OUT/seed_N of megatron finetune, or a\n"
         "Hugging Face folder that has the head. --output keeps the predictions, which need no labels. What OUT/seed_N "
         "was "
         "fine-tuned\n"
         "with holds here too, the null threshold of SQuAD 2.0 as well: 0 where none is known. docs/finetune.md.";
}

/// Throws ConfigError for words that are no options, and flags that no job of these can have.
void check_eval_flags(const EvalFlags& flags, const std::vector<std::string>& rest, const std::string& usage) {
  if (!rest.empty())
    throw ConfigError(
        rule_got_fix(concat(command_of(usage), " takes options alone."), rest[0], concat("leave '", rest[0], "' out")));
  if (flags.data.empty())
    throw ConfigError(rule_got_fix("eval: --data must name what is scored.", "none", "--data FILE"));
  Progress::mode_of(flags.progress);
  for (const auto& [flag, value] : {std::pair{"--limit", flags.limit}, {"--batch-size", flags.batch_size}})
    if (value < 0)
      throw ConfigError(rule_got_fix(concat("eval: ", flag, " must be 0 or above."), concat(value),
                                     concat(flag, " 0 (the default)")));
}

void check_windows(const TextFlags& flags) {
  for (const auto& [flag, value] :
       {std::pair{"--window", flags.window}, {"--stride", flags.stride}, {"--limit-tokens", flags.limit_tokens}})
    if (value < 0)
      throw ConfigError(rule_got_fix(concat("eval: ", flag, " must be 0 or above."), concat(value),
                                     concat(flag, " 0 (the default)")));
}

void check_task_flags(const TaskFlags& flags, const std::string& task) {
  const char* const head = tasks::task_form(tasks::task_kind_of(task)).head;
  check_task_numbers(task, head,
                     {{"--batch-size", flags.batch_size, 0},
                      {"--seq-length", flags.seq_length, 0},
                      {"--doc-stride", flags.doc_stride, 0, 0, " span "},
                      {"--max-query-length", flags.max_query_length, 0, 0, " span options "},
                      {"--n-best", flags.n_best, 0, 0, " span "},
                      {"--max-answer-length", flags.max_answer_length, 0, 0, " span "}});
  if (!flags.adapter.empty())
    throw ConfigError(rule_got_fix(concat("eval ", task, ": --adapter is for what scores texts."), flags.adapter,
                                   "leave --adapter out"));
  if (!flags.output.empty()) AtomicFolder::check(flags.output);
}

/// The flags of a job, which `check_own` checks with the job's own rules before what all models have in common.
template <class Flags>
Flags parsed(const Args& args, const std::string& usage, const auto& check_own) {
  Flags flags;
  check_eval_flags(flags, config::parse_command_line(flags, args, usage), usage);
  check_own(flags);
  recipe::check_model_flags(flags, "eval");
  return flags;
}

}  // namespace

TextFlags eval_loss_flags(const Args& args) { return parsed<TextFlags>(args, kLossUsage, check_windows); }

WikitextFlags eval_wikitext_flags(const Args& args) {
  return parsed<WikitextFlags>(args, kWikitextUsage, check_windows);
}

LambadaFlags eval_lambada_flags(const Args& args) {
  return parsed<LambadaFlags>(args, kLambadaUsage,
                              [](const LambadaFlags& flags) { (void)tasks::lambada_format_of(flags.format); });
}

EvalFlags eval_choice_flags(const Args& args) {
  return parsed<EvalFlags>(args, kChoiceUsage, [](const EvalFlags&) {});
}

TaskFlags eval_task_flags(const std::string& task, const Args& args) {
  // Both versions of SQuAD read the same options.
  return parsed<TaskFlags>(args, task_usage(),
                           [&](const TaskFlags& flags) { check_task_flags(flags, task == "squad" ? "squad1" : task); });
}

}  // namespace megatron::app
