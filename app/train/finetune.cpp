#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "app/jobs.h"
#include "app/print.h"
#include "app/train/finetune_options.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/comm/agreement.h"
#include "megatron/config/finetune_recipe.h"
#include "megatron/config/options.h"
#include "megatron/finetune/seed_run.h"
#include "megatron/finetune/set_names.h"
#include "megatron/finetune/weights.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/recipe/resolve.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/run/stop.h"
#include "megatron/tasks/scores/seeds.h"
#include "megatron/train/resume/agreement.h"
#include "megatron/train/resume/run_folders.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;

/// The network of the weights in a folder.
config::ModelConfig network_of(const std::string& load) {
  config::ModelConfig network = interchange::model_config_of(load);
  if (interchange::format_of(load).config_json == nullptr) {  // a recipe's dropout was for training from the start
    const config::ModelConfig usual;
    network.hidden_dropout = usual.hidden_dropout;
    network.attention_dropout = usual.attention_dropout;
  }
  return network;
}

std::string tokenizer_of(const std::string& load) { return interchange::companion_folder(load).string(); }

/// What a seed's result depends on: the layout of ranks, the log and the other seeds are not among it.
std::string result_recipe(config::FinetuneRecipe recipe) {
  const config::OptimizerConfig usual;
  recipe.optimizer.bucket_size = usual.bucket_size;
  recipe.optimizer.overlap_grad_reduce = usual.overlap_grad_reduce;
  recipe.optimizer.use_distributed_optimizer = usual.use_distributed_optimizer;
  recipe.optimizer.data_parallel_sharding_strategy = usual.data_parallel_sharding_strategy;
  recipe.optimizer.overlap_param_gather = usual.overlap_param_gather;
  const std::string load = recipe.checkpoint.load;
  recipe.checkpoint = {};
  recipe.checkpoint.load = load;
  recipe.parallel = {};
  recipe.log = {};
  recipe.train.out = {};
  recipe.train.micro_batch_size = 1;
  recipe.train.seed = 0;
  recipe.task.seeds = {};
  recipe.task.ensemble = false;
  recipe.data.prefetch = 0;
  return config::save_toml(std::move(recipe));
}

struct Work {
  FinetuneOptions options;
  plan::ResolvedRun run;
  text::Tokenizer tokenizer;
  finetune::TaskData data;
  std::vector<std::uint64_t> seeds;
  finetune::SeedOrigin origin;        ///< of the seeds' results
  std::vector<std::string> messages;  ///< of options without effect, and of the weights

  fs::path out() const { return options.recipe.train.out; }
};

/// Those of task.test that name a file.
std::vector<std::string> test_sets(const config::TaskConfig& task) {
  std::vector<std::string> files = task.test;
  std::erase(files, "");
  return files;
}

finetune::TaskData open_data(const config::FinetuneRecipe& recipe, const text::Tokenizer& tokenizer) {
  const config::TaskConfig& task = recipe.task;
  tasks::TaskOptions options{.kind = tasks::task_kind_of(task.name),
                             .frames_pairs = config::model_traits(recipe.model.architecture).two_segments,
                             .seq_length = static_cast<int>(recipe.data.seq_length),
                             .doc_stride = static_cast<int>(task.doc_stride),
                             .max_query_length = static_cast<int>(task.max_query_length),
                             .n_best = static_cast<int>(task.n_best),
                             .max_answer_tokens = static_cast<int>(task.max_answer_length),
                             .limit = task.train_limit,
                             .to_learn = true,
                             .threads = usable_cores()};
  finetune::TaskData data{.kind = options.kind, .train = tasks::open_task(task.train, tokenizer, options), .valid = {}};
  options.to_learn = false;
  options.limit = task.valid_limit;
  const std::vector<std::string> tests = test_sets(task);
  std::vector<std::string> files = task.valid;
  files.insert(files.end(), tests.begin(), tests.end());
  const std::vector<std::string> names = finetune::set_names(files);
  for (std::size_t i = 0; i < task.valid.size(); ++i) {
    auto valid = tasks::open_task(task.valid[i], tokenizer, options);
    if (!valid->labelled())
      throw ConfigError(rule_got_fix(task.valid[i] + " must have a label for each example.", "some have none",
                                     "name it --task.test, and a set with labels --task.valid"));
    if (i > 0)
      data.further.push_back({.name = names[i], .folder = fs::path("valid") / names[i], .task = std::move(valid)});
    else
      data.valid = std::move(valid);
  }
  data.valid_name = names[0];
  options.limit = 0;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    const std::string& name = names[task.valid.size() + i];
    data.further.push_back({.name = name,
                            .folder = tests.size() > 1 ? fs::path("test") / name : "test",
                            .task = tasks::open_task(tests[i], tokenizer, options)});
  }
  return data;
}

/// What the user should know of the weights that the run begins with.
std::vector<std::string> check_loaded(const config::FinetuneRecipe& recipe, const plan::ResolvedRun& run) {
  if (recipe.checkpoint.load.empty()) return {"new weights: checkpoint.load names none"};
  finetune::check_labels(recipe.checkpoint.load, tasks::task_labels(tasks::task_kind_of(recipe.task.name)));
  return finetune::check_weights(recipe.checkpoint.load, run);
}

/// Of the files that the recipe names, by how a message names them.
std::map<std::string, std::string> input_digests(const config::FinetuneRecipe& recipe,
                                                 const text::Tokenizer& tokenizer) {
  const config::TaskConfig& task = recipe.task;
  std::map<std::string, std::string> digests = {{"tokenizer", tokenizer.fingerprint()}};
  std::vector<std::string> files = {task.train};
  for (const auto& sets : {task.valid, test_sets(task)}) files.insert(files.end(), sets.begin(), sets.end());
  for (const std::string& file : files) digests.emplace("file " + file, train::file_fact(file).value);
  if (const std::string& load = recipe.checkpoint.load; !load.empty())
    digests.emplace("model in " + load, train::model_fact("", load).value);
  return digests;
}

Work make_job(const Args& args, const std::optional<comm::LaunchedRank>& place) {
  FinetuneOptions options = finetune_options(args, {.network = network_of, .tokenizer = tokenizer_of});
  config::FinetuneRecipe& recipe = options.recipe;
  const plan::Facts facts{.launched_world_size = place ? place->world_size : 0};
  auto [resolved, tokenizer] = recipe::resolve_with_tokenizer(recipe, facts);
  finetune::TaskData data = open_data(recipe, *tokenizer);
  const std::int64_t steps = finetune::steps_of(static_cast<std::int64_t>(data.train->size()), recipe.task.epochs,
                                                resolved.config.train.global_batch_size);
  const std::int64_t usual = config::TrainConfig().train_iters;
  if (recipe.train.train_iters != usual && recipe.train.train_iters != steps)
    throw ConfigError(rule_got_fix("train.train_iters follows from task.epochs.",
                                   concat(recipe.train.train_iters, ", and ", steps, " follow"),
                                   "leave --train-iters out, or choose --epochs"));
  recipe.train.train_iters = steps;
  resolved = plan::resolve(recipe, {.launched_world_size = facts.launched_world_size,
                                    .tokenizer_vocab = recipe::needed_rows(*tokenizer, recipe.model)});
  run::check_start(resolved, place);
  std::vector<std::string> messages = check_loaded(recipe, resolved);
  if (recipe.task.ensemble && recipe.task.seeds.size() < 2) {
    recipe.task.ensemble = false;
    messages.emplace_back("note: one seed makes no ensemble: task.ensemble is ignored");
  }
  if (!options.note.empty()) messages.insert(messages.begin(), options.note);
  std::vector<std::uint64_t> seeds(recipe.task.seeds.begin(), recipe.task.seeds.end());
  if (seeds.empty()) seeds.push_back(recipe.train.seed);
  static_cast<config::RunConfig&>(recipe) = resolved.config;
  finetune::SeedOrigin origin{.recipe = result_recipe(recipe), .inputs = input_digests(recipe, *tokenizer)};
  return {.options = std::move(options),
          .run = std::move(resolved),
          .tokenizer = std::move(*tokenizer),
          .data = std::move(data),
          .seeds = std::move(seeds),
          .origin = std::move(origin),
          .messages = std::move(messages)};
}

std::optional<finetune::SeedResult> finished(const Work& job, std::uint64_t seed) {
  return finetune::finished_result(finetune::seed_folder(job.out(), seed), job.origin);
}

/// The run of one seed, in its folder.
plan::ResolvedRun seed_run(const Work& job, std::uint64_t seed) {
  plan::ResolvedRun run = job.run;
  run.config.train.seed = seed;
  run.config.train.out = finetune::seed_folder(job.out(), seed).string();
  return run;
}

/// The scores of the mean of all seeds' logits of a set, whose predictions are written into its folder. `set`: see
/// finetune::read_logits(). `null_threshold`: see tasks::Task::scores().
tasks::TaskScores score_ensemble(const Work& job, const std::vector<finetune::SeedResult>& results,
                                 const tasks::Task& task, const fs::path& set, std::optional<double> null_threshold) {
  std::vector<std::vector<float>> logits;
  for (const finetune::SeedResult& result : results)
    logits.push_back(
        finetune::read_logits(finetune::seed_folder(job.out(), result.seed), task.size() * task.width(), set));
  const auto mean = tasks::mean_logits(logits);
  tasks::TaskScores scores = task.labelled() ? task.scores(mean, null_threshold)
                                             : tasks::TaskScores{.null_threshold = null_threshold.value_or(0)};
  const fs::path folder = job.out() / "ensemble" / set;
  fs::create_directories(folder);
  finetune::write_predictions(folder, task, mean, scores.null_threshold, scores.report);
  return scores;
}

/// The scores of the seeds on each data set with labels.
tasks::SeedTable seed_table(const Work& job, const std::vector<finetune::SeedResult>& results) {
  tasks::SeedTable table{.task = job.options.recipe.task.name, .metrics = {}, .runs = {}, .ensemble = {}};
  const auto add_columns = [&](const std::string& set, const std::vector<tasks::Metric>& metrics) {
    for (const tasks::Metric& metric : metrics) {
      table.metrics.push_back(metric.name);
      table.sets.push_back(set);
    }
  };
  add_columns(job.data.valid_name, results.at(0).metrics);
  for (const finetune::SetScores& scores : results[0].further) add_columns(scores.set, scores.metrics);
  if (results[0].further.empty()) table.sets.clear();
  for (const finetune::SeedResult& result : results) {
    auto& run = table.runs.emplace_back();
    run.seed = static_cast<std::int64_t>(result.seed);
    for (const tasks::Metric& metric : result.metrics) run.values.push_back(metric.value);
    for (const finetune::SetScores& scores : result.further)
      for (const tasks::Metric& metric : scores.metrics) run.values.push_back(metric.value);
  }
  return table;
}

/// Medians and the ensemble of the results, into the run's folder and onto stdout.
void report(const Work& job, const std::vector<finetune::SeedResult>& results) {
  tasks::SeedTable table = seed_table(job, results);
  if (job.options.recipe.task.ensemble) {
    const auto add = [&](const tasks::TaskScores& scores) {
      for (const tasks::Metric& metric : scores.metrics) table.ensemble.push_back(metric.value);
      return scores.null_threshold;
    };
    const double threshold = add(score_ensemble(job, results, *job.data.valid, {}, std::nullopt));
    for (const finetune::FurtherSet& set : job.data.further)
      add(score_ensemble(job, results, *set.task, set.folder, threshold));
  }
  write_file(job.out() / "results.md", table.markdown());
  write_file(job.out() / "results.json", table.json());
  print_text(job.options.json ? table.json() : "\n" + table.markdown());
}

/// What ranks must have in common besides the recipe of a run: the task, and the files that it reads.
comm::Facts facts_of(const Work& job) {
  config::TaskConfig task = job.options.recipe.task;
  comm::Facts facts;
  for (comm::Fact& fact : train::option_facts(config::fields_of(task)))
    facts.push_back({"task." + fact.name, std::move(fact.value)});
  for (const auto& [input, digest] : job.origin.inputs) facts.push_back({input, digest});
  return facts;
}

constexpr const char* kFix = "name another --train.out";

/// Throws ConfigError where a seed in the run's folder is of another origin.
void check_seeds(const Work& job) {
  for (const std::uint64_t seed : job.seeds) {
    finished(job, seed);
    train::check_metrics_file(finetune::seed_folder(job.out(), seed) / "metrics.jsonl");
  }
}

/// The lock of the run's folder, which is made. Throws ConfigError where another run holds it, or a seed in it is of
/// another origin.
checkpoint::FolderLock take_folder(const Work& job) {
  make_folder(job.out());
  checkpoint::FolderLock lock(job.out(), kFix);
  check_seeds(job);
  return lock;
}

/// Writes the seeds' folders, their tokenizers and the recipe, before the first seed runs.
void write_beginning(const Work& job) {
  for (const std::uint64_t seed : job.seeds) {
    const fs::path folder = finetune::seed_folder(job.out(), seed);
    make_folder(folder);
    interchange::keep_tokenizer(job.tokenizer, folder, job.run.config.checkpoint.load);
  }
  write_file(job.out() / "recipe.toml", config::save_toml(job.options.recipe));
}

/// Every seed that is not finished, one after the other. Collective over `world`.
int run_seeds(const Work& job, const comm::Group& world, at::Device device) {
  std::vector<finetune::SeedResult> results;
  for (const std::uint64_t seed : job.seeds) {
    auto result = finished(job, seed);
    world.barrier();  // everybody has looked before anybody writes
    if (result && world.rank() == 0) write_line(stderr, concat("seed ", seed, ": its result is there"));
    if (!result) {
      const plan::ResolvedRun run = seed_run(job, seed);
      result = finetune::run_seed(run, job.options.recipe.task, job.data, job.origin, world, device,
                                  run::stop_requested, job.options.json);
    }
    if (!result) return kInterrupted;
    results.push_back(std::move(*result));
  }
  if (world.rank() == 0) report(job, results);
  return kDone;
}

int run_finetune(const Args& args) {
  const auto place = comm::place_from(comm::process_environment());
  const Work job = make_job(args, place);
  const config::TrainConfig& train = job.run.config.train;
  if (train.kernels != "auto") kernels::force_instruction_set(train.kernels);
  kernels::set_matmul_precision(train.matmul_precision);
  run::check_memory(job.run, place, plan::Holding::Training);
  const bool starts = run::starts_processes(job.run, place);
  if (starts) train::try_folder(job.out(), kFix, [&] { check_seeds(job); });  // the first rank's process will hold it
  std::optional<checkpoint::FolderLock> lock;                                 // held until the run ends
  const auto begin = [&] {
    lock.emplace(take_folder(job));
    write_beginning(job);
    for (const std::string& message : job.messages) write_line(stderr, message);
  };
  kernels::install_caching_allocator();
  const bool meets = place && place->world_size > 1;  // while a rank waits for others a signal ends it
  if (!starts && !meets) run::stop_on_signals();
  return run::run_on_ranks(
      job.run, place,
      [&](const comm::Group& world, at::Device device) {
        if (meets) run::stop_on_signals();
        run::check_gpu_memory(job.run, world, device, plan::Holding::Training);
        if (meets) train::require_shared_folder(seed_run(job, job.seeds[0]).config, world);
        comm::run_together(
            world, world.rank() == 0 ? std::function<void()>(begin) : [] {});
        return run::with_planned_memory(job.run, world, device, [&] { return run_seeds(job, world, device); });
      },
      facts_of(job));
}

}  // namespace

int finetune(const Args& args) {
  return run::run_job_of_ranks([&] { return run_finetune(args); });
}

}  // namespace megatron::app
