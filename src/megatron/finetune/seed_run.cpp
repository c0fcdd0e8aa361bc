#include "megatron/finetune/seed_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/json.h"
#include "megatron/base/timer.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/config/finetune_recipe.h"
#include "megatron/config/options.h"
#include "megatron/finetune/evaluate.h"
#include "megatron/finetune/weights.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/train/data/prefetch.h"
#include "megatron/train/inputs.h"
#include "megatron/train/iteration.h"
#include "megatron/train/log/run_log.h"
#include "megatron/train/resume/resume.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::finetune {
namespace {

namespace fs = std::filesystem;

/// In the metadata of what a seed resumes from: its SeedOrigin, as JSON.
constexpr const char *kRecipe = "finetune_recipe", *kInputs = "finetune_inputs";

/// What an interrupted seed resumes from: besides the best weights, of another iteration and with the optimizer.
fs::path state_folder(const fs::path& seed_folder) { return seed_folder / "state"; }

/// Nothing resumes from the optimizer of the best weights.
std::vector<checkpoint::ShardedTensor> weights_of(const train::Engine& engine) {
  auto tensors = train::sharded_tensors(engine);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name.starts_with("optimizer."); });
  return tensors;
}

/// They are on the disk before the run continues: what is saved later may count on them.
checkpoint::Saver::Options best_options(const config::RunConfig& config) {
  return {.keep = {.last = 1, .every = 0}, .asynchronous = false, .beat = train::beat_of(config)};
}

/// As train::start_run() reads it: the seed resumes from its own state, or begins with the weights of checkpoint.load.
plan::ResolvedRun with_state(plan::ResolvedRun run) {
  run.config.checkpoint.save = state_folder(run.config.train.out).string();
  run.config.checkpoint.finetune = true;
  run.config.checkpoint.load_strict = false;  // check_weights() has looked
  return run;
}

std::string text_of(const std::vector<tasks::Metric>& metrics) {
  std::string text;
  for (const tasks::Metric& metric : metrics)
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", metric.name, metric.value);
  return text;
}

class SeedRun {
 public:
  SeedRun(const plan::ResolvedRun& run, const config::TaskConfig& task, const TaskData& data, const SeedOrigin& origin,
          const comm::Group& world, at::Device device, const train::StopRequested& stop_requested, bool quiet)
      : run_(run),
        config_(run.config),
        task_(task),
        data_(data),
        stop_requested_(stop_requested),
        first_(world.rank() == 0),
        out_(config_.train.out),
        engine_(run, world, device),
        train_(*data.train, data.form(), batch_options(run, task.pad_to_longest)),
        valid_(*data.valid, data.form(), batch_options(run, task.pad_to_longest)),
        best_saver_(train::save_folder(config_), world, best_options(config_)),
        saver_(state_folder(out_), world, train::saver_options(config_)) {
    best_ = {.seed = config_.train.seed, .task = task.name, .origin = origin, .metrics = {}};
    const bool goes_on = first_ && checkpoint::has_checkpoint(state_folder(out_));
    if (world.all_reduce_scalars({goes_on ? 1.0 : 0.0}, comm::ReduceOp::Max)[0] > 0) find_best();
    start_ = train::start_run(with_state(run), engine_);
    state_ = start_.state;
    engine_.step.before_update([this] { saver_.before_change(); });
    engine_.timers.add(train::TimerId::ModelAndOptimizerSetup, since_start_.seconds());
    world.barrier();  // nobody writes before everybody has read
    if (first_) open_folder(quiet ? stderr : stdout);
    world.barrier();  // the folder is there
    print_times(train::TimerId::ModelAndOptimizerSetup);
  }

  std::optional<SeedResult> go() {
    bool stop = false;
    if (validation_is_due()) validate();  // a stop came in between
    {
      train::Prefetcher reader(
          train::coming_microbatches(run_, engine_.context, state_),
          [this](const std::vector<std::int64_t>& places) { return batch_of(places); },
          static_cast<std::size_t>(config_.data.prefetch));
      while (!stop && !is_done()) {
        const std::int64_t tokens = first_ ? tokens_of(state_.consumed_samples) : 0;
        const train::StepResult result = train::run_iteration({run_, engine_, reader, saver_, log_ ? &*log_ : nullptr},
                                                              state_, stop_requested_(), tokens)
                                             .result;
        if (config_.train.exit_on_nan && result.skipped && !result.harmless) end_at(result);
        stop = result.stop;
        if (!stop && validation_is_due()) validate();
        const std::int64_t save_interval = config_.checkpoint.save_interval;
        if (stop || (save_interval > 0 && state_.iteration % save_interval == 0)) save();
      }
    }
    saver_.finish();
    if (stop) return std::nullopt;
    if (config_.train.train_iters == 0 && best_.metrics.empty()) validate();  // there was nothing to learn
    if (best_.metrics.empty())
      throw std::runtime_error(concat("seed ", config_.train.seed,
                                      ": no validation gave a finite loss, so that there are no weights to keep (are "
                                      "those of --load, and is the learning rate not too high?)"));
    if (!data_.further.empty()) predict_further();
    if (first_) finish();
    return best_;
  }

 private:
  bool is_done() const { return state_.iteration >= config_.train.train_iters; }

  [[noreturn]] void end_at(const train::StepResult& result) {
    saver_.finish();
    throw std::runtime_error(concat("iteration ", state_.iteration, ": loss ", result.loss, " and gradient norm ",
                                    result.grad_norm, " must be finite (train.exit_on_nan)."));
  }

  /// After the iteration that was done last, and not done yet.
  bool validation_is_due() const {
    const std::int64_t interval = config_.train.eval_interval;
    return state_.iteration > state_.validated_iteration &&
           (is_done() || (interval > 0 && state_.iteration % interval == 0));
  }

  /// What the resumed run had found: scored again, as its weights are all that is left of it. They may be of a
  /// later iteration than the one from which it resumes: then it comes to the same again. Collective over the world.
  void find_best() {
    const fs::path folder = train::save_folder(config_);
    if (!checkpoint::has_checkpoint(folder)) return;
    load_weights(folder, engine_, run_);
    TaskLogits logits = logits_of(valid_);
    const tasks::TaskScores scores = data_.valid->scores(logits.values);
    keep_scores(std::move(logits), scores, checkpoint::read_manifest(checkpoint::find_checkpoint(folder)).iteration);
  }

  void open_folder(std::FILE* console) {
    if (start_.weights_only || !start_.from)
      fs::remove_all(train::save_folder(config_));  // of a run that left no state
    fs::create_directories(out_);
    log_.emplace(run_, state_, console);
    log_->message(concat(" > ", task_.name, ", seed ", config_.train.seed, ": ", data_.train->examples(),
                         " examples to learn from, ", data_.valid->examples(), " to evaluate on; ",
                         human_count(static_cast<double>(plan::parameter_count(run_.shape))), " parameters, ",
                         plan::sizes_text(run_.grid), ", ", config_.train.dtype, " on ", config_.parallel.device));
    log_left_out("the training set", *data_.train);
    log_left_out("the validation set", *data_.valid);
    for (const FurtherSet& set : data_.further) log_left_out(set.name, *set.task);
    if (start_.weights_only || !start_.from) return;
    for (const std::string& message : start_.messages) log_->message(" > " + message);
    log_->message(concat(" > resumed from ", start_.from->string(), " at iteration ", state_.iteration));
  }

  void log_left_out(const std::string& set, const tasks::Task& task) {
    if (const std::string out = task.left_out(); !out.empty()) log_->message(concat(" > left out of ", set, ": ", out));
  }

  /// Called by the thread that reads alone.
  model::Batch batch_of(const std::vector<std::int64_t>& places) {
    std::vector<Item> items;
    for (const std::int64_t place : places) items.push_back(order_.at(place));
    return train_.get(items, row_length_of_step(places[0] / config_.train.global_batch_size));
  }

  std::int64_t row_length_of_step(std::int64_t step) {
    if (step == read_step_) return row_length_;
    std::vector<Item> items;
    for (std::int64_t k = 0; k < config_.train.global_batch_size; ++k)
      items.push_back(order_.at(step * config_.train.global_batch_size + k));
    read_step_ = step;
    return row_length_ = train_.row_length(items);
  }

  /// Tokens of the step that begins at place `first`, without padding.
  std::int64_t tokens_of(std::int64_t first) {
    std::int64_t tokens = 0;
    for (std::int64_t k = 0; k < config_.train.global_batch_size; ++k)
      if (const Item item = logged_order_.at(first + k); item.sample != Item::kNone)
        tokens += std::int64_t{data_.form().rows} * data_.train->length(static_cast<std::size_t>(item.sample));
    return tokens;
  }

  /// Collective over the world.
  void save() {
    checkpoint::Metadata metadata = train::run_metadata(state_, engine_, config::save_toml(config_));
    metadata[kRecipe] = nlohmann::json(best_.origin.recipe).dump();
    metadata[kInputs] = nlohmann::json(best_.origin.inputs).dump();
    auto timer = engine_.timers.time(train::TimerId::SaveCheckpoint);
    saver_.begin(state_.iteration, train::sharded_tensors(engine_), std::move(metadata));
    timer.stop();
    print_times(train::TimerId::SaveCheckpoint);
  }

  /// Collective over the world.
  void print_times(train::TimerId timer) { train::print_times(engine_, config_.log, log_ ? &*log_ : nullptr, {timer}); }

  TaskLogits logits_of(const TaskBatches& batches) {
    Progress progress("evaluate", "samples", static_cast<std::int64_t>(batches.task().size()),
                      first_ ? Progress::mode_of(config_.log.progress) : Progress::Mode::Off);
    return evaluate(engine_, run_, batches, [&](std::int64_t done) { progress.update(done); });
  }

  /// Evaluates, and keeps what is better than all before. Every rank decides alike. Collective over the world.
  void validate() {
    auto timer = engine_.timers.time(train::TimerId::Evaluate);
    TaskLogits logits = logits_of(valid_);
    timer.stop();
    print_times(train::TimerId::Evaluate);
    const tasks::TaskScores scores = data_.valid->scores(logits.values);
    if (log_) log_->scores(state_, logits.loss, scores.metrics);
    state_.validated_iteration = state_.iteration;
    if (!std::isfinite(logits.loss)) return;  // broken weights may score better than bad ones
    if (!best_.metrics.empty() && !(scores.metrics[0].value > best_.metrics[0].value)) return;
    keep_scores(std::move(logits), scores, state_.iteration);
    checkpoint::Metadata metadata = train::run_metadata(state_, engine_, config::save_toml(config_));
    if (const auto labels = tasks::task_labels(data_.kind); !labels.empty())
      metadata[interchange::kLabels] = interchange::labels_text(labels);
    best_saver_.begin(state_.iteration, weights_of(engine_), std::move(metadata));
  }

  void keep_scores(TaskLogits logits, const tasks::TaskScores& scores, std::int64_t iteration) {
    best_.iteration = iteration;
    best_.loss = logits.loss;
    best_.null_threshold = scores.null_threshold;
    best_.metrics = scores.metrics;
    best_logits_ = std::move(logits.values);
    best_report_ = scores.report;
  }

  /// With the best weights. Collective over the world.
  void predict_further() {
    if (best_.iteration != state_.iteration) load_weights(train::save_folder(config_), engine_, run_);
    for (const FurtherSet& set : data_.further) {
      const TaskBatches batches(*set.task, data_.form(), batch_options(run_, task_.pad_to_longest));
      const TaskLogits logits = logits_of(batches);
      if (first_) keep_further(set, logits.values);
    }
  }

  void keep_further(const FurtherSet& set, const std::vector<float>& logits) {
    const fs::path folder = out_ / set.folder;
    fs::create_directories(folder);
    const tasks::TaskScores scores =
        set.task->labelled() ? set.task->scores(logits, best_.null_threshold) : tasks::TaskScores{};
    write_predictions(folder, *set.task, logits, best_.null_threshold, scores.report);
    write_logits(out_, set.folder, logits);
    log_->message(concat(" > ", set.name, ": predictions in ", folder.string(), scores.metrics.empty() ? "" : "; ",
                         text_of(scores.metrics)));
    if (!scores.metrics.empty()) best_.further.push_back({set.name, scores.metrics});
  }

  void finish() {
    write_predictions(out_, *data_.valid, best_logits_, best_.null_threshold, best_report_);
    write_result(out_, best_, best_logits_);
    fs::remove_all(state_folder(out_));
    log_->message(concat(" > best at iteration ", best_.iteration, ": ", text_of(best_.metrics)));
  }

  const plan::ResolvedRun& run_;
  const config::RunConfig& config_;
  const config::TaskConfig& task_;
  const TaskData& data_;
  const train::StopRequested& stop_requested_;
  const bool first_;
  const fs::path out_;
  const Stopwatch since_start_;
  train::Engine engine_;
  TaskBatches train_, valid_;
  checkpoint::Saver best_saver_, saver_;  // of the best weights, and of what the run resumes from
  train::Start start_;
  train::RunState state_;
  SampleOrder order_{static_cast<std::int64_t>(data_.train->size()), task_.epochs, config_.train.seed};
  std::int64_t read_step_ = -1, row_length_ = 0;  // of the thread that reads, as is order_
  SampleOrder logged_order_ = order_;             // of the thread that trains
  SeedResult best_;
  std::vector<float> best_logits_;
  std::string best_report_;
  std::optional<train::RunLog> log_;  // of the first rank
};

}  // namespace

std::int64_t steps_of(std::int64_t samples, double epochs, std::int64_t global_batch) {
  const std::int64_t total = SampleOrder(samples, epochs, 0).total();
  return (total + global_batch - 1) / global_batch;
}

bool same_recipe(const std::string& kept, const std::string& asked) {
  if (kept == asked) return true;
  const auto values_of = [](const std::string& text) {
    config::FinetuneRecipe recipe;
    config::read_toml(config::fields_of(recipe), text, "a kept recipe");
    std::erase(recipe.task.test, "");
    return config::save_toml(std::move(recipe));
  };
  try {
    return values_of(kept) == values_of(asked);
  } catch (const ConfigError&) {
    return false;
  }
}

namespace {

/// The origin of what a seed resumes from; without a recipe where the metadata have none.
SeedOrigin saved_origin(const checkpoint::Metadata& metadata) {
  const auto value_of = [&](const char* name) {
    const auto found = metadata.find(name);
    return found == metadata.end() ? std::nullopt : try_parse_json(found->second);
  };
  SeedOrigin origin;
  if (const auto recipe = value_of(kRecipe); recipe && recipe->is_string()) origin.recipe = recipe->get<std::string>();
  if (const auto inputs = value_of(kInputs); inputs && inputs->is_object())
    for (const auto& [name, digest] : inputs->items())
      if (digest.is_string()) origin.inputs.emplace(name, digest.get<std::string>());
  return origin;
}

/// Throws ConfigError where what both know of the two differs. `what`: the result, or the state, and where it is.
void require_same_origin(const std::string& what, const SeedOrigin& kept, const SeedOrigin& asked) {
  if (!same_recipe(kept.recipe, asked.recipe))
    throw ConfigError(
        rule_got_fix(concat(what, " must be of this recipe."), "other options", "name another --train.out"));
  std::string changed;
  for (const auto& [input, digest] : kept.inputs)
    if (const auto now = asked.inputs.find(input); now != asked.inputs.end() && now->second != digest)
      changed += concat(changed.empty() ? "" : ", ", input);
  if (!changed.empty())
    throw ConfigError(rule_got_fix(concat(what, " must be of the same data, tokenizer and weights."),
                                   concat("something else under the same name: ", changed),
                                   "name another --train.out, or put back what was there"));
}

}  // namespace

std::optional<SeedResult> finished_result(const fs::path& seed_folder, const SeedOrigin& asked) {
  auto result = read_result(seed_folder);
  if (result) {
    require_same_origin(concat("The result in ", seed_folder.string()), result->origin, asked);
    return result;
  }
  const fs::path folder = state_folder(seed_folder);
  if (!checkpoint::has_checkpoint(folder)) return std::nullopt;
  for (const fs::path& candidate : checkpoint::candidates(folder)) {
    try {
      require_same_origin(concat("What the seed resumes from, ", folder.string(), ","),
                          saved_origin(checkpoint::read_manifest(candidate).metadata), asked);
      break;
    } catch (const checkpoint::Unreadable&) {  // for train::start_run(), which passes it over
    }
  }
  return std::nullopt;
}

std::optional<SeedResult> run_seed(const plan::ResolvedRun& run, const config::TaskConfig& task, const TaskData& data,
                                   const SeedOrigin& origin, const comm::Group& world, at::Device device,
                                   const train::StopRequested& stop_requested, bool quiet) {
  return SeedRun(run, task, data, origin, world, device, stop_requested, quiet).go();
}

}  // namespace megatron::finetune
