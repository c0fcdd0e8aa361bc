#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/eval/jobs.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/files/atomic_folder.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/timer.h"
#include "megatron/config/finetune_recipe.h"
#include "megatron/config/options.h"
#include "megatron/config/tables/tasks.h"
#include "megatron/finetune/evaluate.h"
#include "megatron/finetune/results.h"
#include "megatron/finetune/weights.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/kernels/runtime.h"
#include "megatron/run/ranks.h"
#include "megatron/tasks/task_info.h"
#include "megatron/train/resume/agreement.h"

// `megatron eval mnli` and the other tasks of `megatron finetune`: what a fine-tuned model scores on a file.
namespace megatron::app {
namespace {

struct TaskWork {
  std::string name;
  run::TrainedModel model;
  std::unique_ptr<const tasks::Task> task;
  tasks::TaskForm form;
  double null_threshold = 0;  ///< of SQuAD 2.0: the fine-tuning's
};

/// The task of a job: "squad" is squad1 or squad2, as the file is. Labelled files of version 2.0, and they alone, say
/// of each question whether it can be answered; published ones name their version. A file without either is taken for
/// what the model was fine-tuned for.
std::string task_name(const std::string& job, const std::string& data, const std::string& load) {
  if (job != "squad") return job;
  const std::string text = read_file(data);
  if (text.find("\"is_impossible\"") != std::string::npos) return "squad2";
  const auto object = try_parse_json(text);
  const nlohmann::json version = object && object->is_object() ? object->value("version", nlohmann::json()) : nullptr;
  const std::string named = version.is_string() ? version.get<std::string>() : "";
  if (named.starts_with("v2") || named.starts_with('2')) return "squad2";
  if (!named.empty()) return "squad1";
  const auto trained = finetune::read_result(load);
  return trained && trained->task == "squad2" ? "squad2" : "squad1";
}

/// `trained`: with what the model was fine-tuned, or the defaults.
tasks::TaskOptions task_options(const TaskFlags& flags, tasks::TaskKind kind, const run::TrainedModel& model,
                                const config::TaskConfig& trained) {
  const auto asked = [](std::int64_t flag, std::int64_t otherwise) {
    return static_cast<int>(flag > 0 ? flag : otherwise);
  };
  return {.kind = kind,
          .frames_pairs = config::model_traits(model.run.config.model.architecture).two_segments,
          .seq_length = static_cast<int>(model.run.config.data.seq_length),
          .doc_stride = asked(flags.doc_stride, trained.doc_stride),
          .max_query_length = asked(flags.max_query_length, trained.max_query_length),
          .n_best = asked(flags.n_best, trained.n_best),
          .max_answer_tokens = asked(flags.max_answer_length, trained.max_answer_length),
          .limit = flags.limit,
          .to_learn = false,
          .threads = usable_cores()};
}

/// The model's head must be there and be the task's.
void check_head(const std::string& folder, const std::string& task, tasks::TaskKind kind,
                const plan::ResolvedRun& run) {
  finetune::check_labels(folder, tasks::task_labels(kind));
  finetune::check_weights(folder, run);
  const auto missing =
      checkpoint::compare_weights(*interchange::open_weights_for(folder, run.config.model), run.shape, false).missing;
  if (!missing.empty())
    throw ConfigError(rule_got_fix(concat("The model in ", folder, " must have the head of ", task, "."),
                                   concat("no ", missing[0]),
                                   concat("fine-tune it first: megatron finetune RECIPE.toml --task ", task,
                                          " --train-data FILE --valid-data FILE --load ", folder)));
}

TaskWork open_work(const TaskFlags& flags, const std::string& job) {
  const std::string name = task_name(job, flags.data, flags.load);
  const tasks::TaskKind kind = tasks::task_kind_of(name);
  const tasks::TaskForm form = tasks::task_form(kind);
  run::TrainedModel model = run::open_task_model(flags, "eval",
                                                 {.head = form.head,
                                                  .num_classes = form.num_classes,
                                                  .seq_length = flags.seq_length,
                                                  .usual_length = tasks::usual_seq_length(kind),
                                                  .microbatch_size = flags.batch_size});
  check_head(flags.load, name, kind, model.run);
  const auto trained = finetune::read_result(flags.load);
  config::FinetuneRecipe recipe;
  if (trained && trained->task == name)
    config::read_toml(config::fields_of(recipe), trained->origin.recipe, flags.load + "/result.json");
  auto task = tasks::open_task(flags.data, model.tokenizer, task_options(flags, kind, model, recipe.task));
  if (!task->labelled() && flags.output.empty())
    throw ConfigError(rule_got_fix(flags.data + " must have a label for each example.", "some have none",
                                   "--output DIR writes predictions, which need none"));
  return {.name = name,
          .model = std::move(model),
          .task = std::move(task),
          .form = form,
          .null_threshold = trained ? trained->null_threshold : 0};
}

void report(const TaskFlags& flags, const TaskWork& work, const finetune::TaskLogits& logits, double seconds) {
  const tasks::Task& task = *work.task;
  const tasks::TaskScores scores = task.labelled() ? task.scores(logits.values, work.null_threshold)
                                                   : tasks::TaskScores{.null_threshold = work.null_threshold};
  if (!flags.output.empty()) {
    AtomicFolder output(flags.output);
    finetune::write_predictions(output.temporary_path(), task, logits.values, scores.null_threshold, scores.report);
    output.commit();
  }
  nlohmann::ordered_json fields = {{"task", work.name}, {"examples", task.examples()}};
  for (const tasks::Metric& metric : scores.metrics) fields[metric.name] = metric.value;
  if (!scores.report.empty()) fields.update(nlohmann::ordered_json::parse(scores.report));  // best_f1, HasAns_f1, …
  if (task.labelled()) fields["loss"] = logits.loss;
  if (tasks::task_info(tasks::task_kind_of(work.name)).has_null_odds) fields["null_threshold"] = scores.null_threshold;
  std::int64_t tokens = 0;
  for (std::size_t sample = 0; sample < task.size(); ++sample)
    tokens += std::int64_t{work.form.rows} * task.length(sample);
  print_report(std::move(fields), flags, work.model.run, tokens, seconds);
}

}  // namespace

int eval_task(const std::string& job, const Args& args) {
  TaskFlags flags = eval_task_flags(job, args);
  TaskWork work = open_work(flags, job);
  const auto place = comm::place_from(comm::process_environment());
  if (const std::string out = work.task->left_out(); !out.empty() && (!place || place->rank == 0))
    write_line(stderr, "left out: " + out);
  run::check_start(work.model.run, place);
  check_eval_memory(flags, work.model, std::ssize(*work.task), work.model.run.config.data.seq_length);
  kernels::install_caching_allocator();
  comm::Facts facts = run::model_facts(work.model, config::fields_of(flags));
  facts.push_back(train::file_fact(flags.data));
  const auto score = [&](const comm::Group& world, at::Device device) {
    train::Engine engine(work.model.run, world, device);
    run::keep_copies(work.model, engine.parameters);
    finetune::load_weights(flags.load, engine, work.model.run);
    world.barrier();  // all have read their weights
    const Stopwatch since_start;
    const finetune::TaskBatches batches(*work.task, work.form, finetune::batch_options(work.model.run, true));
    Progress progress("eval", "samples", static_cast<std::int64_t>(work.task->size()),
                      world.rank() == 0 ? Progress::mode_of(flags.progress) : Progress::Mode::Off);
    const auto logits =
        finetune::evaluate(engine, work.model.run, batches, [&](std::int64_t done) { progress.update(done); });
    if (world.rank() == 0) report(flags, work, logits, since_start.seconds());
    return kDone;
  };
  return run::run_on_ranks(work.model.run, place, score, facts);
}

}  // namespace megatron::app
