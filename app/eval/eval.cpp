#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

#include "app/eval/jobs.h"
#include "app/flags.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/generate/score.h"
#include "megatron/kernels/runtime.h"
#include "megatron/model/decoding/score.h"
#include "megatron/run/kept_adapters.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/train/resume/agreement.h"

namespace megatron::app {
namespace {

struct Timed {
  std::vector<tasks::WindowScore> scores;
  double seconds = 0;  ///< without reading the weights
};

Timed score_on_rank(const EvalFlags& flags, const EvalWork& work, const comm::Group& world, at::Device device) {
  const std::int64_t longest = std::ranges::max(work.windows, {}, &tasks::Window::size).size;
  const run::RankModel rank = run::load_rank(work.model, world, device, longest);
  const auto& context = rank.context;
  const model::ScoringGpt stage(rank.options, rank.part, rank.parameters, context.tensor());
  const generate::ScoreRanks ranks{.pp = context.pipeline(), .dp = context.samples()};
  generate::ScoreOptions options;
  options.batch = flags.batch_size;
  options.likeliest = work.likeliest;
  world.barrier();  // all have read their weights
  const Stopwatch since_start;
  Progress progress("eval", work.unit, static_cast<std::int64_t>(work.windows.size()),
                    world.rank() == 0 ? Progress::mode_of(flags.progress) : Progress::Mode::Off);
  auto scores = generate::score_windows(stage, ranks, rank.tensor(), work.ids, work.windows, options,
                                        [&](std::int64_t done) { progress.update(done); });
  return {std::move(scores), since_start.seconds()};
}

void check_ids(const EvalWork& work) {
  const std::int64_t vocab = work.model.run.shape.vocab;
  const auto outside = std::ranges::find_if(work.ids, [&](std::int64_t id) { return id < 0 || id >= vocab; });
  if (outside == work.ids.end()) return;
  throw ConfigError(rule_got_fix(concat("each token must be one of the model's, 0 … ", vocab - 1, "."),
                                 concat(*outside, " at position ", outside - work.ids.begin()),
                                 "the model's own tokenizer, and data made with it"));
}

/// The rule of `generate`, for what no number tells of a model.
void check_finite(const EvalWork& work, const std::vector<tasks::WindowScore>& scores) {
  const auto bad =
      std::ranges::find_if(scores, [](const tasks::WindowScore& score) { return !std::isfinite(score.nll); });
  if (bad == scores.end()) return;
  const tasks::Window& window = work.windows[static_cast<std::size_t>(bad - scores.begin())];
  throw std::runtime_error(concat("logits are not finite in the ", window.size, " tokens from position ", window.begin,
                                  " on: the loss is ", bad->nll, " (are the checkpoint's weights?)"));
}

/// What the ranks must have in common besides the recipe: the model, and what is scored.
comm::Facts facts_of(EvalFlags flags, const EvalWork& work) {
  comm::Facts facts = run::model_facts(work.model, config::fields_of(flags));
  std::string windows;
  for (const tasks::Window& window : work.windows) windows += concat(window.begin, " ", window.size, " ");
  facts.push_back(
      {"tokens of --data", concat(work.ids.size(), " tokens, ", train::digest_of(std::as_bytes(std::span(work.ids))))});
  facts.push_back(
      {"windows", concat(work.windows.size(), " windows, ", train::digest_of(std::as_bytes(std::span(windows))))});
  return facts;
}

std::int64_t tokens_of(const EvalWork& work) {
  std::int64_t tokens = 0;
  for (const tasks::Window& window : work.windows) tokens += window.size;
  return tokens;
}

}  // namespace

run::TrainedModel opened(const EvalFlags& flags) {
  run::TrainedModel model = run::open_trained_model(flags, "eval");
  run::keep_adapter(model, flags.adapter, "eval");
  return model;
}

void print_report(nlohmann::ordered_json fields, const EvalFlags& flags, const plan::ResolvedRun& run,
                  std::int64_t tokens, double seconds) {
  fields["dtype"] = run.config.train.dtype;
  fields["seconds"] = seconds;
  fields["tokens_per_s"] = static_cast<double>(tokens) / seconds;
  if (flags.json) return print_json(fields);
  for (const auto& [name, value] : fields.items()) print("{:20} {}\n", name, value.dump());
}

void check_eval_memory(const EvalFlags& flags, run::TrainedModel& model, std::int64_t samples, std::int64_t tokens) {
  tokens = std::max<std::int64_t>(1, tokens);
  samples = std::clamp<std::int64_t>(flags.batch_size, 1, std::max<std::int64_t>(1, samples));
  run::check_memory(model, {.bytes = plan::forward_bytes(model.run, samples, tokens),
                            .what = concat("a layer of ", samples, " times ", tokens, " tokens"),
                            .fix = flags.batch_size > 1 ? "a smaller --batch-size" : "a machine with more memory"});
}

int run_eval(const EvalFlags& flags, EvalWork& work, const EvalReport& report) {
  check_ids(work);
  check_eval_memory(flags, work.model, std::ssize(work.windows),
                    std::ranges::max(work.windows, {}, &tasks::Window::size).size - 1);
  kernels::install_caching_allocator();
  return run::run_on_ranks(
      work.model.run, comm::place_from(comm::process_environment()),
      [&](const comm::Group& world, at::Device device) {
        const auto [scores, seconds] = score_on_rank(flags, work, world, device);
        check_finite(work, scores);
        if (world.rank() == 0) print_report(report(scores), flags, work.model.run, tokens_of(work), seconds);
        return kDone;
      },
      facts_of(flags, work));
}

int eval(const Args& args) {
  // What they do is said by the program without libtorch (app/front/).
  const std::vector<Job> jobs = {{"loss", "", eval_loss},
                                 {"wikitext", "", eval_wikitext},
                                 {"lambada", "", eval_lambada},
                                 {"choice", "", eval_choice},
#define TASK(name, ...) {#name, "", [](const Args& words) { return eval_task(#name, words); }},
#include "megatron/config/tables/tasks.def"
                                 {"squad", "", [](const Args& words) { return eval_task("squad", words); }}};
  return run::run_job_of_ranks([&] { return dispatch("megatron eval", jobs, args); });
}

}  // namespace megatron::app
