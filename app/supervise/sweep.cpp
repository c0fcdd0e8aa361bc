#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/jobs.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/child_process.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/charts/line_chart.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"
#include "megatron/plan/rules.h"
#include "megatron/supervise/child.h"
#include "megatron/supervise/run_files.h"

// Learning rates and batch sizes tried against each other: successive halving (Jamieson & Talwalkar 2016). Every trial
// is a run of megatron train in a folder of its own, which leaves at the end of a round and resumes in the next one.
namespace megatron::app {
namespace {

namespace fs = std::filesystem;
namespace sv = supervise;
using Json = nlohmann::ordered_json;

constexpr const char* kUsage =
    "megatron sweep --lr LR,LR… [--batch N,N…] [--rounds N] -- train RECIPE.toml [--section.key value]…\n\n"
    "Tries each learning rate with each batch size, all on the same number of samples. After each round but the last "
    "the\n"
    "worse half of the trials ends; what is left trains twice as far. In train.out: a folder for each trial, "
    "sweep.json,\n"
    "sweep.svg. The same command again resumes.";

constexpr std::size_t kMaxTrials = 256, kMaxDrawn = 8;
constexpr double kNone = std::numeric_limits<double>::infinity();

struct SweepOptions {
  std::vector<std::string> lr, batch;
  int rounds = 3;
  bool json = false;

  void visit(auto& v) {
    v("lr", lr, "Learning rates (schedule.lr) to try, also joined by commas.", config::Required(), config::Common());
    v("batch", batch, "Batch sizes (train.global_batch_size) to try, also joined by commas; empty: the recipe's.",
      config::Common());
    v("rounds", rounds, "Rounds; after each but the last the worse half ends. 1: every trial runs to its end.",
      config::Common());
    v("json", json, "Print one JSON object instead of the table; what the runs print goes to stderr.",
      config::Common());
  }
};

/// A learning rate with a batch size, and how far it has come.
struct Trial {
  std::string lr;
  std::int64_t batch = 0, round_iters = 0;  ///< round_iters: of the first round
  fs::path out;
  std::vector<double> losses = {};  ///< after each round that it was in
  bool failed = false;

  double last() const { return losses.empty() ? kNone : losses.back(); }
};

double number_of(const std::string& text, const char* flag, const char* example) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || value <= 0)
    throw ConfigError(
        rule_got_fix(concat(flag, " takes numbers above 0."), "'" + text + "'", concat(flag, " ", example)));
  return value;
}

/// Words that may hold several values, joined by commas.
std::vector<std::string> values_of(const std::vector<std::string>& words) {
  std::vector<std::string> values;
  for (const std::string& word : words)
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t comma = std::min(word.find(',', begin), word.size());
      values.push_back(word.substr(begin, comma - begin));
      begin = comma + 1;
    }
  return values;
}

std::int64_t batch_of(const std::string& text) {
  const double value = number_of(text, "--batch", "32");
  if (value != std::floor(value) || value > 1e9)
    throw ConfigError(rule_got_fix("--batch takes whole numbers of samples.", text, "--batch 32"));
  return static_cast<std::int64_t>(value);
}

/// What is tried on.
struct SweptCommand {
  Args words;
  config::RunConfig config;
};

SweptCommand swept_command(const Args& words) {
  if (words.empty() || words[0] != "train")
    throw ConfigError(rule_got_fix("megatron sweep tries options of a job that trains: train.",
                                   words.empty() ? "none" : words[0],
                                   "megatron sweep --lr 1e-4,3e-4 -- train RECIPE.toml"));
  SweptCommand command{.words = words, .config = {}};
  config::parse_recipe_command(command.config, Args(words.begin() + 1, words.end()),
                               "megatron sweep --lr 1e-4,3e-4 -- train RECIPE.toml [OPTION]…");
  if (command.config.train.train_iters < 1)
    throw ConfigError(
        rule_got_fix("A sweep needs the length of its runs.", "train.train_iters 0", "--train.train_iters 1000"));
  if (command.config.train.global_batch_size < 1)
    throw ConfigError(
        rule_got_fix("A sweep needs train.global_batch_size: its trials train on as many samples as the recipe.",
                     concat(command.config.train.global_batch_size), "--global-batch-size 32"));
  if (!command.config.schedule.rampup_batch_size.empty())
    throw ConfigError(rule_got_fix("The trials of a sweep keep their batch sizes.", "schedule.rampup_batch_size",
                                   "leave --rampup-batch-size out"));
  return command;
}

/// Samples of a microbatch of all data-parallel ranks; 0 where the recipe itself is wrong, which its first run says.
std::int64_t samples_at_once(const config::RunConfig& config) {
  constexpr std::int64_t kSomeVocabulary = 32000;  // it is not read; any that is large enough stands for it
  try {
    const plan::ResolvedRun run =
        plan::resolve(config, {.tokenizer_vocab = config.model.vocab_size > 0 ? 0 : kSomeVocabulary});
    return run.config.train.global_batch_size / std::max<std::int64_t>(1, run.microbatches_per_step);
  } catch (const ConfigError&) {
    return 0;
  }
}

class Sweep {
 public:
  Sweep(SweptCommand command, const SweepOptions& options) : options_(options), command_(std::move(command)) {
    const config::TrainConfig& train = command_.config.train;
    const std::int64_t own = train.global_batch_size;
    std::vector<std::string> batches = options.batch;
    if (batches.empty()) batches.push_back(std::to_string(own));
    if (options.lr.size() * batches.size() > kMaxTrials)
      throw ConfigError(rule_got_fix(concat("A sweep has at most ", kMaxTrials, " trials."),
                                     concat(options.lr.size() * batches.size()), "fewer values of --lr and --batch"));
    const std::int64_t each = samples_at_once(command_.config);
    const std::int64_t samples = train.train_iters * own, parts = std::int64_t{1} << (options.rounds - 1);
    for (const std::string& lr : options.lr)
      for (const std::string& batch : batches) {
        const std::int64_t size = batch_of(batch), iters = (samples + size - 1) / size;
        if (each > 0 && size % each != 0)
          throw ConfigError(rule_got_fix("Each --batch must be a multiple of train.micro_batch_size x dp.",
                                         concat("--batch ", size, ", ", each, " samples at once"),
                                         concat("--batch ", std::max(each, size / each * each))));
        if (const double rate = number_of(lr, "--lr", "1e-4"); std::ranges::any_of(trials_, [&](const Trial& trial) {
              return trial.batch == size && number_of(trial.lr, "--lr", "1e-4") == rate;
            }))
          throw ConfigError(rule_got_fix("The trials of a sweep must differ.",
                                         concat("--lr ", lr, ", --batch ", size, " twice"), "name each value once"));
        trials_.push_back({.lr = lr,
                           .batch = size,
                           .round_iters = (iters + parts - 1) / parts,
                           .out = fs::path(train.out) / concat("lr_", lr, "_batch_", size)});
      }
  }

  int go() {
    check_kept();
    std::vector<Trial*> left;
    for (Trial& trial : trials_) left.push_back(&trial);
    for (int round = 0; round < options_.rounds; ++round) {
      for (Trial* trial : left)
        if (const int code = run(*trial, round); code != kDone) return code;
      std::ranges::stable_sort(left, {}, &Trial::last);
      std::erase_if(left, [](const Trial* trial) { return trial->failed; });
      if (left.empty()) throw std::runtime_error("every trial of the sweep has failed: see what they wrote above");
      if (round + 1 < options_.rounds) left.resize((left.size() + 1) / 2);
      write(*left.front());
    }
    print_result(*left.front());
    return kDone;
  }

 private:
  std::int64_t iters_after(const Trial& trial, int round) const { return trial.round_iters << round; }

  /// To the end of the round, unless it is there; what to exit with where the sweep is to end.
  int run(Trial& trial, int round) {
    const std::int64_t end = iters_after(trial, round), all = iters_after(trial, options_.rounds - 1);
    if (sv::newest_checkpoint(trial.out / "checkpoints").value_or(0) < end) {
      ProgramStart program{.path = "/proc/self/exe", .words = {"megatron"}};
      if (options_.json) program.output = STDERR_FILENO;
      program.words.insert(program.words.end(), command_.words.begin(), command_.words.end());
      const auto add = [&](const char* option, const std::string& value) {
        program.words.push_back(concat("--", option, "=", value));
      };
      add("schedule.lr", trial.lr);
      add("schedule.min_lr", formatted("{}", min_lr_of(trial)));
      add("train.global_batch_size", std::to_string(trial.batch));
      add("train.train_iters", std::to_string(all));
      add("train.exit_interval", std::to_string(end == all ? 0 : end));
      if (validates()) add("train.eval_interval", std::to_string(trial.round_iters));
      add("train.out", trial.out.string());
      add("checkpoint.save", "");
      add("checkpoint.save_interval", "0");
      add("checkpoint.keep_last", "1");
      write_line(stderr, concat("sweep: lr ", trial.lr, ", batch ", trial.batch, ": to iteration ", end, " of ", all));
      const sv::ChildEnd child = sv::run_child(
          program, signals_, [] { return false; }, 0);
      if (child.code != kWrong) keep();  // the recipe can be run
      if (child.stopped || child.code == kInterrupted) return kInterrupted;
      if (child.code == kFaulty) return kFaulty;  // so would ranks of the other trials
      const bool first = &trial == &trials_.front() && trial.losses.empty();
      if (child.code == kWrong && first) return kWrong;  // it has said why, of all of them
      trial.failed = child.code != kDone;
    }
    trial.losses.push_back(trial.failed ? kNone : loss_at(trial, end));
    trial.failed = trial.failed || !std::isfinite(trial.last());
    return kDone;
  }

  fs::path kept_file() const { return fs::path(command_.config.train.out) / "sweep_recipe.json"; }

  /// What all trials have in common.
  config::RunConfig common_recipe() const {
    config::RunConfig recipe = command_.config;
    config::ScheduleConfig& schedule = recipe.schedule;
    schedule.min_lr = schedule.lr > 0 ? schedule.min_lr / schedule.lr : 0;  // the share alone counts
    schedule.lr = 1;
    recipe.train.exit_interval = 0;
    recipe.train.out = recipe.checkpoint.save = "";
    recipe.checkpoint.save_interval = 0;
    recipe.checkpoint.keep_last = 1;
    if (validates()) recipe.train.eval_interval = 1;
    recipe.parallel = {};  // no result depends on the layout
    return recipe;
  }

  /// For the same command again: trials of another recipe would be compared with these.
  void keep() const {
    if (fs::exists(kept_file())) return;
    make_folder(kept_file().parent_path());
    const Json kept = {{"rounds", options_.rounds}, {"recipe", config::save_toml(common_recipe())}};
    write_file(kept_file(), kept.dump(2) + "\n");
  }

  void check_kept() const {
    const fs::path path = kept_file();
    if (!fs::exists(path)) return;
    const auto object = try_parse_json(read_file(path, std::uint64_t{1} << 24));
    if (!object || !object->is_object() || !object->value("recipe", nlohmann::json()).is_string() ||
        !object->value("rounds", nlohmann::json()).is_number_integer())
      throw ConfigError(rule_got_fix(path.string() + " must be what a sweep keeps.", "something else",
                                     "another folder in train.out"));
    config::RunConfig theirs, ours = common_recipe();
    config::read_toml(config::fields_of(theirs), (*object)["recipe"].get<std::string>(), path.string());
    const config::Fields before = config::fields_of(theirs), now = config::fields_of(ours);
    std::string changed;
    const auto add = [&](const std::string& name, const std::string& was, const std::string& is) {
      if (was != is) changed += concat(changed.empty() ? "" : "\n        ", name, ": ", was, " -> ", is);
    };
    add("--rounds", std::to_string((*object)["rounds"].get<std::int64_t>()), std::to_string(options_.rounds));
    for (std::size_t i = 0; i < now.fields.size(); ++i)
      if (now.fields[i].meaning.affects != config::Affects::Nothing)
        add(now.fields[i].path, config::plain_value(before.fields[i].value), config::plain_value(now.fields[i].value));
    if (!changed.empty())
      throw ConfigError(rule_got_fix(
          concat("The trials of a sweep must be of one recipe, as those in ", path.parent_path().string(), "."),
          changed, "another folder in train.out; or the options as they were"));
  }

  /// The least rate is the recipe's share of the rate.
  double min_lr_of(const Trial& trial) const {
    const config::ScheduleConfig& schedule = command_.config.schedule;
    return schedule.lr > 0 ? schedule.min_lr / schedule.lr * number_of(trial.lr, "--lr", "1e-4") : 0;
  }
  bool validates() const { return command_.config.train.eval_interval > 0; }
  const char* measure() const { return validates() ? "valid_loss" : "loss"; }

  std::vector<std::pair<double, double>> points_of(const Trial& trial) const {
    std::vector<std::pair<double, double>> points;
    sv::LineTail tail(trial.out / "metrics.jsonl");
    for (const std::string& line : tail.next().lines) {
      const auto object = try_parse_json(line);
      if (!object || !object->is_object() || !object->contains(measure()) || !object->contains("iteration")) continue;
      const auto& iteration = (*object)["iteration"];
      const auto& loss = (*object)[measure()];
      if (iteration.is_number())
        points.emplace_back(iteration.get<double>(), loss.is_number() ? loss.get<double>() : kNone);
    }
    std::ranges::stable_sort(points, {}, &std::pair<double, double>::first);
    return points;
  }

  /// The validation's, or without one the mean of the training's over the last tenth of a round.
  double loss_at(const Trial& trial, std::int64_t iteration) const {
    const double from = validates() ? static_cast<double>(iteration)
                                    : static_cast<double>(iteration) - 0.1 * static_cast<double>(trial.round_iters);
    double sum = 0, count = 0;
    for (const auto& [at, loss] : points_of(trial))
      if (at <= static_cast<double>(iteration) && at >= from) sum += loss, ++count;
    return count > 0 ? sum / count : kNone;
  }

  Json as_json(const Trial& best) const {
    Json all = Json::array();
    for (const Trial& trial : trials_) {
      Json losses = Json::array();
      for (const double loss : trial.losses) losses.push_back(std::isfinite(loss) ? Json(loss) : Json());
      all.push_back(
          {{"lr", trial.lr},
           {"batch", trial.batch},
           {"out", trial.out.string()},
           {"iterations", trial.losses.empty() ? 0 : iters_after(trial, static_cast<int>(trial.losses.size()) - 1)},
           {"losses", losses},
           {"failed", trial.failed}});
    }
    return {{"measure", measure()}, {"best", {{"lr", best.lr}, {"batch", best.batch}}}, {"trials", all}};
  }

  void write(const Trial& best) const {
    const fs::path out = command_.config.train.out;
    write_file(out / "sweep.json", as_json(best).dump(2) + "\n");
    std::vector<const Trial*> drawn;
    for (const Trial& trial : trials_) drawn.push_back(&trial);
    std::ranges::stable_sort(drawn, [](const Trial* a, const Trial* b) {
      return a->losses.size() != b->losses.size() ? a->losses.size() > b->losses.size() : a->last() < b->last();
    });
    std::vector<charts::Curve> curves;
    for (const Trial* trial : drawn) {
      charts::Curve curve{.name = concat("lr ", trial->lr, ", batch ", trial->batch), .points = {}};
      bool finite = false;
      for (const auto& [iteration, loss] : points_of(*trial)) {
        curve.points.emplace_back(iteration * static_cast<double>(trial->batch), loss);
        finite = finite || std::isfinite(loss);
      }
      if (finite && curves.size() < kMaxDrawn) curves.push_back(std::move(curve));
    }
    if (!curves.empty())
      write_file(out / "sweep.svg",
                 charts::draw_curves("Learning rates and batch sizes", "samples", measure(), curves));
  }

  void print_result(const Trial& best) const {
    if (options_.json) return print("{}\n", as_json(best).dump());
    print("{:>12} {:>8} {:>10}", "lr", "batch", "iteration");
    for (int round = 0; round < options_.rounds; ++round) print(" {:>10}", concat("round ", round + 1));
    print("\n");
    for (const Trial& trial : trials_) {
      print("{:>12} {:>8} {:>10}", trial.lr, trial.batch,
            trial.losses.empty() ? 0 : iters_after(trial, static_cast<int>(trial.losses.size()) - 1));
      for (const double loss : trial.losses)
        print(" {:>10}", std::isfinite(loss) ? formatted("{:.4f}", loss) : std::string("failed"));
      print("{}\n", &trial == &best ? "  best" : "");
    }
    print("best: lr {}, batch {}, {} {:.4f}, in {}\n", best.lr, best.batch, measure(), best.last(), best.out.string());
  }

  const SweepOptions options_;
  SweptCommand command_;
  const HeldSignals signals_;
  std::vector<Trial> trials_;
};

}  // namespace

int sweep(const Args& args) {
  SweepOptions options;
  const Args words = config::parse_command_line(options, args, kUsage);
  options.lr = values_of(options.lr);
  options.batch = values_of(options.batch);
  if (options.lr.empty()) throw ConfigError(rule_got_fix("--lr must be given.", "nothing", "--lr 1e-4,3e-4,1e-3"));
  if (options.rounds < 1 || options.rounds > 16)
    throw ConfigError(rule_got_fix("--rounds must be from 1 to 16.", concat(options.rounds), "--rounds 3"));
  return Sweep(swept_command(words), options).go();
}

}  // namespace megatron::app
