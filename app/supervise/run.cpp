#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "app/jobs.h"
#include "app/supervise/hosts.h"
#include "app/train/train_options.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/child_process.h"
#include "megatron/base/machine/environment.h"
#include "megatron/base/progress.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/options.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/resolve.h"
#include "megatron/supervise/child.h"
#include "megatron/supervise/events.h"
#include "megatron/supervise/layouts.h"
#include "megatron/supervise/memory_folder.h"
#include "megatron/supervise/pulse.h"
#include "megatron/supervise/ranks/attempts.h"
#include "megatron/supervise/ranks/meeting.h"
#include "megatron/supervise/restart.h"
#include "megatron/supervise/run_files.h"

// A job that trains, started again when it fails.
namespace megatron::app {
namespace {

namespace fs = std::filesystem;
namespace sv = supervise;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "megatron run [OPTION]… -- train RECIPE.toml [--section.key value]…\n\n"
    "Runs a job that trains (train, pretrain_gpt, pretrain_bert, pretrain_t5) and starts it again, from its newest "
    "whole\ncheckpoint, when it fails or hangs; with fewer ranks where it fails again and again. Under torchrun, "
    "MPI or Slurm each\nprocess supervises one rank, and all restart together, without those that are gone. With "
    "--nnodes it starts\nthe ranks of this host itself. What happened is in train.out/events.jsonl.\nSIGINT and "
    "SIGTERM let the job save and end; a second one ends it at once. SIGUSR1 "
    "lets it save, SIGUSR2\nwrite what its ranks do.";

struct RunOptions {
  int max_restarts = 100, tries = 3, min_ranks = 1;
  double backoff_s = 1, max_backoff_s = 300, hang_s = 0, dump_s = 3;
  HostOptions host;

  void visit(auto& v) {
    v("max_restarts", max_restarts, "Restarts in all; the next failure ends the job.", config::Common());
    v("tries", tries, "Failures without a new checkpoint between them, after which fewer ranks are tried.",
      config::Common());
    v("min_ranks", min_ranks, "Fewest ranks to continue with.", config::Common());
    v("backoff_s", backoff_s, "Seconds before a restart; twice as long after each failure without a new checkpoint.");
    v("max_backoff_s", max_backoff_s, "Longest such time.");
    v("hang_s", hang_s,
      "Seconds without any operation of the first rank after which the job is ended and started again; 0: 60 s more "
      "than parallel.timeout_s, after which ranks give up by themselves.");
    v("dump_s", dump_s, "Seconds that the ranks of a job that hangs have to write what they do.");
    host.visit(v);
  }
};

void check(const RunOptions& options) {
  const auto need = [](bool holds, const std::string& rule, const auto& got, const char* fix) {
    if (!holds) throw ConfigError(rule_got_fix(rule, concat(got), fix));
  };
  need(options.max_restarts >= 0, "--max-restarts must be at least 0.", options.max_restarts, "--max-restarts 100");
  need(options.tries >= 1, "--tries must be at least 1.", options.tries, "--tries 3");
  need(options.min_ranks >= 1, "--min-ranks must be at least 1.", options.min_ranks, "--min-ranks 1");
  need(options.backoff_s >= 0 && options.backoff_s <= 1e6, "--backoff-s must be from 0 to 1000000.", options.backoff_s,
       "--backoff-s 1");
  need(options.max_backoff_s >= 0 && options.max_backoff_s <= 1e6, "--max-backoff-s must be from 0 to 1000000.",
       options.max_backoff_s, "--max-backoff-s 300");
  need(options.hang_s >= 0 && options.hang_s <= 1e7, "--hang-s must be from 0 to 10000000.", options.hang_s,
       "--hang-s 0");
  check(options.host);
  need(options.dump_s >= 0 && options.dump_s <= 600, "--dump-s must be from 0 to 600.", options.dump_s, "--dump-s 3");
}

/// What is supervised.
struct TrainingCommand {
  Args words;                ///< the job's name and its words
  config::RunConfig config;  ///< what they say
  int ranks = 1;

  fs::path out() const { return config.train.out; }
  fs::path checkpoints() const {
    return config.checkpoint.save.empty() ? out() / "checkpoints" : fs::path(config.checkpoint.save);
  }
  /// On the disk or in memory.
  std::optional<std::int64_t> newest_checkpoint() const {
    const auto on_disk = sv::newest_checkpoint(checkpoints());
    if (config.checkpoint.memory_interval <= 0) return on_disk;
    return std::max(on_disk, sv::newest_in_memory(config.checkpoint.memory_folder, checkpoints()));
  }
};

using OptionalRank = std::optional<LaunchedRank>;

TrainingCommand command_of(const Args& words, const OptionalRank& place) {
  const std::vector<std::string>& programs = config::megatron_programs();
  TrainingCommand command{.words = words, .config = {}};
  const Args rest(words.begin() + (words.empty() ? 0 : 1), words.end());
  if (!words.empty() && words[0] == "train") {
    TrainOptions options;
    config::parse_recipe_command(options, &TrainOptions::run, rest, "megatron run -- train RECIPE.toml [OPTION]…");
    command.config = options.run;
  } else if (!words.empty() && std::ranges::find(programs, words[0]) != programs.end()) {
    const config::MegatronArguments arguments(rest);
    config::parse_words(config::fields_of(command.config), arguments.own_words(), "");
    const int ranks = place ? place->world_size : std::max(1, command.config.parallel.world_size);
    const config::MegatronLaunch launch{.world_size = ranks, .device = "cpu"};
    auto translation = config::translate_megatron_arguments(words[0], rest, launch);
    config::parse_words(config::fields_of(translation.config), translation.own, "");
    command.config = translation.config;
  } else {
    throw ConfigError(
        rule_got_fix("megatron run takes a job that trains: train, pretrain_gpt, pretrain_bert, "
                     "pretrain_t5.",
                     words.empty() ? "none" : words[0], "megatron run -- train RECIPE.toml"));
  }
  const config::ParallelConfig& parallel = command.config.parallel;
  const int model = std::max(1, parallel.tp) * std::max(1, parallel.cp) * std::max(1, parallel.pp);
  command.ranks = place                     ? place->world_size
                  : parallel.world_size > 0 ? parallel.world_size
                                            : model * std::max(1, parallel.dp);
  if (command.config.log.heartbeat_s == 0) {  // what a hang is known by
    command.words.insert(command.words.end(), {"--log.heartbeat_s", "1"});
  }
  return command;
}

ProgramStart program_of(const TrainingCommand& command) {
  ProgramStart program{.path = "/proc/self/exe", .words = {"megatron"}};
  program.words.insert(program.words.end(), command.words.begin(), command.words.end());
  return program;
}

double hang_s_of(const RunOptions& options, const TrainingCommand& command) {
  return options.hang_s > 0 ? options.hang_s : command.config.parallel.timeout_s + 60;
}

sv::RankLimits limits_of(const RunOptions& options, const TrainingCommand& command) {
  return {.join_s = command.config.parallel.timeout_s, .hang_s = hang_s_of(options, command), .dump_s = options.dump_s};
}

std::string ranks_text(int ranks) { return concat(ranks, ranks == 1 ? " rank" : " ranks"); }
std::string restarts_text(int restarts) { return concat(restarts, restarts == 1 ? " restart" : " restarts"); }

/// Of a job, or of all ranks of a launcher: at its rank 0, or where `from` says so at another.
class Supervisor {
 public:
  using Inheritance = std::optional<sv::Inheritance>;

  Supervisor(const TrainingCommand& command, const RunOptions& options, const OptionalRank& place,
             const Inheritance& from = {})
      : options_(options),
        whole_(command),
        command_(command),
        is_lone_rank_(place && place->world_size == 1),
        policy_({.max_restarts = options.max_restarts,
                 .tries = options.tries,
                 .backoff_s = options.backoff_s,
                 .max_backoff_s = options.max_backoff_s,
                 .restarts = from ? from->last.restarts : 0}),
        events_(command_.out() / "events.jsonl", "supervisor", [this] { return is_own_folder(); }),
        run_events_(command_.out() / "events.jsonl"),
        pulse_(hang_s_of(options, command_)),
        predecessor_(from ? from->from : -1),
        attempt_(from ? from->last.attempt : 0) {
    if (place && place->world_size > 1) ranks_.emplace(*place, signals_, limits_of(options, command_), from);
  }

  int go() {
    try {
      const int code = run();
      ended_ = true;
      events_.flush();
      if (ranks_) ranks_->finish(code);
      return code;
    } catch (...) {
      if (ranks_) ranks_->finish(kFailed);
      throw;
    }
  }

 private:
  int run() {
    run_events_.next();
    if (predecessor_ >= 0) {
      say(concat("the one of rank ", predecessor_, " is gone, and that of rank ", ranks_->rank(), " takes its place"));
      if (const auto code = after_failure({.code = kFailed, .last_errors = "", .rank = predecessor_, .lost = true})) {
        gather_to_finish();
        return *code;
      }
    }
    while (true) {
      const sv::ChildEnd end = run_once();
      if (const auto code = final_code(end)) return *code;
      if (const auto code = after_failure(end)) return *code;
    }
  }

  /// Those that follow this supervisor are still on their way to it, and hear finish() once they have come.
  void gather_to_finish() {
    try {
      (void)ranks_->gather();
    } catch (const std::exception&) {  // too few to continue: they do not
    }
  }

  sv::ChildEnd run_once() {
    if (ranks_) {
      if (const auto end = ranks_->gather()) return *end;
      fit();
    }
    Json words = Json::array();
    for (const std::string& word : command_.words) words.push_back(word);
    events_.write("started", {{"attempt", attempt_}, {"ranks", command_.ranks}, {"command", words}});
    ProgramStart program = program_of(ranks_ ? whole_ : command_);
    program.variables[kSupervisorVariable] = name_;
    if (is_lone_rank_) program.variables[kAttemptVariable] = std::to_string(attempt_);  // run/stop.h
    pulse_.start(heartbeat(), Clock::now());
    const auto is_stuck = [this, waited = ranks_.has_value()]() mutable {
      if (std::exchange(waited, false)) pulse_.start(heartbeat(), Clock::now());  // for the others: they are here now
      events_.flush();
      return pulse_.has_stopped(heartbeat(), Clock::now());
    };
    if (!ranks_) return sv::run_child(program, signals_, is_stuck, options_.dump_s);
    const auto first_own = command_.words.begin() + static_cast<std::ptrdiff_t>(whole_.words.size());
    return ranks_->run(
        program, {.attempt = attempt_, .restarts = policy_.restarts(), .words = Args(first_own, command_.words.end())},
        command_.ranks, is_stuck);
  }

  /// Whether a job of this supervisor's was the last to hold the run's folder: until then nothing is written there. Or,
  /// once there is no job that could find it taken, nobody holds it.
  bool is_own_folder() const {
    return sv::small_file(command_.out() / ".lock") == name_ || (ended_ && sv::is_free(command_.out()));
  }

  std::optional<sv::Heartbeat> heartbeat() const { return sv::read_heartbeat(command_.out() / "heartbeat.json"); }

  void say(const std::string& text) const { write_line(stderr, concat("supervisor: ", text)); }

  /// The run has decided to end, for somebody to look at: starting it again would change nothing.
  bool run_has_stopped() {
    bool stopped = false;
    for (const std::string& line : run_events_.next().lines) {
      const auto object = try_parse_json(line);
      stopped = stopped || (object && object->is_object() && object->value("source", Json()) == "run" &&
                            object->value("event", Json()) == "stopped");
    }
    return stopped;
  }

  std::optional<int> final_code(const sv::ChildEnd& end) {
    const auto checkpoint = command_.newest_checkpoint();
    const bool well = !end.hung && (end.code == kDone || end.code == kInterrupted);
    if (well && end.code == kDone) {
      events_.write("done", {{"restarts", policy_.restarts()}, {"ranks", command_.ranks}});
      if (policy_.restarts() > 0) say(concat("done, after ", restarts_text(policy_.restarts())));
      return kDone;
    }
    if (well || end.stopped) {
      events_.write("interrupted", {{"exit_code", end.code}, {"checkpoint", checkpoint.value_or(-1)}});
      say(concat("interrupted", end.code == kInterrupted ? " and saved" : ""));
      return end.code;
    }
    const bool stopped = run_has_stopped();  // reads on in the events, whatever the code
    if (!stopped && end.code != kFaulty) return std::nullopt;
    say("the run has stopped by itself: see events.jsonl");
    return leave_as_it_is(end.code == kFaulty ? kFaulty : kFailed, "the run has stopped by itself");
  }

  /// Starting the job again would change nothing.
  int leave_as_it_is(int code, const char* why) {
    events_.write("not_restarted", {{"exit_code", code}, {"why", why}});
    return code;
  }

  /// Prepares the next attempt and waits for its time; or what to exit with.
  std::optional<int> after_failure(const sv::ChildEnd& end) {
    const auto checkpoint = command_.newest_checkpoint();
    const auto beat = heartbeat();
    const std::string how = end.lost         ? "is gone with its supervisor"
                            : end.hung       ? "hung, and was ended"
                            : end.signal > 0 ? concat("was ended by signal ", end.signal)
                                             : concat("failed with exit code ", end.code);
    const std::string who = end.rank < 0 ? "the job" : concat("rank ", end.rank);
    Json details = {{"attempt", attempt_},
                    {"exit_code", end.code},
                    {"signal", end.signal},
                    {"iteration", beat ? beat->iteration : 0},
                    {"checkpoint", checkpoint.value_or(-1)},
                    {"last_line", sv::last_line(end.last_errors)}};
    if (end.rank >= 0) details["rank"] = end.rank;
    events_.write(end.lost ? "lost" : end.hung ? "hung" : "failed", details);
    const bool refused = !end.hung && end.code == kWrong;
    const sv::Decision decision = policy_.failed({.checkpoint = checkpoint, .refused = refused, .lost = end.lost});
    if (decision.what == sv::Decision::What::GiveUp) {
      events_.write("gave_up", {{"restarts", policy_.restarts()}});
      say(concat(who, " ", how, "; --max-restarts allows no more than ", restarts_text(policy_.restarts())));
      return kFailed;
    }
    const bool shrinks = decision.what == sv::Decision::What::Shrink && !end.lost;  // fit() sees what is left
    const bool is_other = shrinks && shrink(refused);
    if (is_other && ranks_) {
      ranks_->leave_out(end.rank);
      most_ranks_ = command_.ranks;
    }
    if (refused && !is_other) return leave_as_it_is(kWrong, "the job's command is wrong");  // and it has said why
    ++attempt_;
    const std::string from = checkpoint ? concat("iteration ", *checkpoint) : "the beginning";
    events_.write("restart", {{"attempt", attempt_},
                              {"ranks", command_.ranks},
                              {"checkpoint", checkpoint.value_or(-1)},
                              {"delay_s", decision.delay_s}});
    say(concat(who, " ", how, "; restart ", policy_.restarts(), " of ", options_.max_restarts, " from ", from, " on ",
               end.lost ? "those that are there" : ranks_text(command_.ranks), " in ",
               human_duration(decision.delay_s)));
    return wait(decision.delay_s);
  }

  /// Fewer ranks, if the run can continue in a layout of them; whether there is one. `refused`: the one that was tried
  /// last is none.
  bool shrink(bool refused) {
    const std::string tried = options_.tries == 1
                                  ? "the job failed"
                                  : concat("the job failed ", options_.tries, " times without a new checkpoint");
    return take_layout_below(command_.ranks, refused ? "these ranks cannot continue the run" : tried);
  }

  /// The layout of the ranks that are there.
  void fit() {
    const int most = std::min(most_ranks_, ranks_->available());
    const int before = std::exchange(fitted_, most);
    if (most >= command_.ranks && most == before) return;
    if (most == whole_.ranks) {
      if (command_.ranks < most) tell_layout(whole_, "all are there again");
      command_ = whole_;
    } else if (!take_layout_below(most + 1, concat(ranks_text(most), most == 1 ? " is" : " are", " left"))) {
      throw std::runtime_error(rule_got_fix(
          "A run continues with fewer ranks where the rules allow a layout of them.",
          concat(most, " of ", ranks_text(whole_.ranks), ", and no layout of ", options_.min_ranks, " to ", most),
          "start all ranks again: the run resumes; or a smaller --min-ranks, or a --global-batch-size that more "
          "numbers of ranks divide"));
    }
  }

  /// The one of the most ranks below `ranks`; whether there is one. `why`, for who reads.
  bool take_layout_below(int ranks, const std::string& why) {
    const config::RunConfig config = resolved();
    const plan::Facts facts = facts_of(config);
    const auto smaller = sv::smaller_layout(config, ranks, options_.min_ranks, [&](const config::RunConfig& tried) {
      return plan::broken_rules(tried, facts).empty();
    });
    if (!smaller) {
      events_.write("no_smaller_layout", {{"ranks", ranks}, {"min_ranks", options_.min_ranks}});
      return false;
    }
    TrainingCommand command = whole_;
    command.ranks = smaller->ranks;
    command.config = smaller->config;
    command.words.insert(command.words.end(), smaller->words.begin(), smaller->words.end());
    tell_layout(command, why);
    command_ = std::move(command);
    return true;
  }

  /// What rules ask of files. A run that was lost before it has resolved its vocabulary may have any.
  static plan::Facts facts_of(const config::RunConfig& config) {
    constexpr std::int64_t kSomeVocabulary = 32000;
    plan::Facts facts{.tokenizer_vocab = config.model.vocab_size > 0 ? 0 : kSomeVocabulary};
    try {
      facts.schedule_file = recipe::read_schedule_file(config.parallel.pp_schedule);
    } catch (const ConfigError&) {  // then no layout with a pipeline is allowed, as the job would say
    }
    if (config.model.vocab_size < 1) return facts;  // a teacher has others
    try {
      facts.teacher = recipe::read_teacher(config.distill.teacher);
    } catch (const ConfigError&) {  // then the job says what is wrong with it
    }
    return facts;
  }

  void tell_layout(const TrainingCommand& next, const std::string& why) {
    const config::ParallelConfig& now = next.config.parallel;
    if (next.ranks == command_.ranks) return;
    events_.write(next.ranks < command_.ranks ? "shrunk" : "grown",
                  {{"from_ranks", command_.ranks}, {"ranks", next.ranks}, {"tp", now.tp}, {"pp", now.pp}});
    say(concat(why, ": ", ranks_text(next.ranks), " (tp ", now.tp, ", pp ", now.pp, ") instead of ", command_.ranks));
  }

  /// As the run has resolved it, in the layout that its command names.
  config::RunConfig resolved() {
    config::RunConfig config = whole_.config;
    try {
      const fs::path recipe = command_.out() / "recipe.toml";
      if (fs::exists(recipe)) config::load_toml(config, recipe.string());
    } catch (const ConfigError& error) {
      say(error.what());
    }
    // Which layers a rank recomputes is chosen anew where the command says fit.
    config.train.recompute_layers = whole_.config.train.recompute_layers;
    config::ParallelConfig& parallel = config.parallel = whole_.config.parallel;
    parallel.tp = std::max(1, parallel.tp);
    parallel.cp = std::max(1, parallel.cp);
    parallel.pp = std::max(1, parallel.pp);
    if (config.train.global_batch_size == 0)
      config.train.global_batch_size =
          config.train.micro_batch_size * whole_.ranks / (parallel.tp * parallel.cp * parallel.pp);
    return config;
  }

  /// Nothing once the time is over; what to exit with where a signal comes first.
  std::optional<int> wait(double seconds) {
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    for (double left = seconds; left > 0; left = std::chrono::duration<double>(until - Clock::now()).count()) {
      if (ranks_) ranks_->listen(static_cast<int>(std::min(left, 1.) * 1000));
      int signal = signals_.take(ranks_ ? 0 : left);
      if (ranks_ && ranks_->is_asked_to_end()) signal = SIGTERM;
      if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP) continue;
      events_.write("interrupted", {{"exit_code", 128 + signal}});
      say("interrupted while it waited for a restart");
      return 128 + signal;
    }
    return std::nullopt;
  }

  const RunOptions options_;
  const std::string name_ = random_secret();
  bool ended_ = false;
  const TrainingCommand whole_;  ///< as it was typed
  TrainingCommand command_;      ///< in the layout of the attempt
  const bool is_lone_rank_;      ///< of a launcher, which starts no other
  const HeldSignals signals_;
  std::optional<sv::Attempts> ranks_;  ///< of a launcher
  sv::RestartPolicy policy_;
  sv::EventLog events_;
  sv::LineTail run_events_;
  sv::Pulse pulse_;
  const int predecessor_;  ///< the rank whose supervisor's place this one has taken; -1: none
  int most_ranks_ = std::numeric_limits<int>::max();  ///< that have not failed again and again
  int fitted_ = 0;                                    ///< the ranks that fit() saw last
  int attempt_;
};

/// The words of options that are declared as theirs are; options without a value have none.
struct WordWriter {
  Args words = {"run"};
  void operator()(const char* name, const auto& value, const auto&...) {
    if (const std::string text = concat(value); !text.empty()) words.push_back(concat("--", name, "=", text));
  }
};

/// What each rank of this host is started with: the same without the host's options.
Args words_of_rank(RunOptions options, const Args& job) {
  options.host = {};
  WordWriter writer;
  options.visit(writer);
  writer.words.emplace_back("--");
  writer.words.insert(writer.words.end(), job.begin(), job.end());
  return writer.words;
}

int supervise_command(const Args& words, const RunOptions& options) {
  const OptionalRank place = place_from(process_environment());
  const TrainingCommand command = command_of(words, place);
  if (!place || place->rank == 0) return Supervisor(command, options, place).go();
  const auto end = [&] {
    const HeldSignals signals;
    return sv::follow(*place, program_of(command), signals, limits_of(options, command));
  }();
  if (const int* code = std::get_if<int>(&end)) return *code;
  return Supervisor(command, options, place, std::get<sv::Inheritance>(end)).go();
}

/// How often a job is to be started again, as its own words say, and the words without these.
struct RestartWords {
  int restarts = 0;
  Args others;
};

int restarts_in(const std::string& text) {
  int restarts = -1;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, restarts);
  if (error != std::errc() || end != last || restarts < 0)
    throw ConfigError(rule_got_fix("--restart must be followed by a number of restarts.", text.empty() ? "none" : text,
                                   "--restart 100"));
  return restarts;
}

RestartWords restarts_of_train(const Args& words) {
  constexpr std::string_view kName = "--restart";
  if (std::ranges::find(words, "--help") != words.end()) return {.others = words};
  RestartWords result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with(concat(kName, "=")))
      result.restarts = restarts_in(words[i].substr(kName.size() + 1));
    else if (words[i] == kName)
      result.restarts = restarts_in(++i < words.size() ? words[i] : "");
    else
      result.others.push_back(words[i]);
  }
  return result;
}

/// --inprocess-restart, with as many attempts as --inprocess-max-iterations says.
RestartWords restarts_of_megatron(const Args& words) {
  const config::MegatronArguments arguments(words);
  RestartWords result;
  if (!arguments.errors().empty() || arguments.asks_for_help()) return {.others = words};  // which the job says
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--inprocess-restart" || words[i].starts_with("--inprocess-max-iterations=")) continue;
    if (words[i] == "--inprocess-max-iterations")
      ++i;
    else
      result.others.push_back(words[i]);
  }
  if (!arguments.has("inprocess-restart")) return result;
  result.restarts = RunOptions().max_restarts;
  if (!arguments.has("inprocess-max-iterations")) return result;
  const std::int64_t attempts = arguments.integer("inprocess-max-iterations");
  if (attempts < 1)
    throw ConfigError(
        rule_got_fix("--inprocess-max-iterations must be at least 1.", concat(attempts), "leave it out: 101"));
  result.restarts = static_cast<int>(std::min<std::int64_t>(attempts - 1, std::numeric_limits<int>::max()));
  return result;
}

}  // namespace

int run_supervised(const Args& args) {
  RunOptions options;
  Args words = config::parse_command_line(options, args, kUsage);
  check(options);
  if (!words.empty()) {  // a job's words may ask for what already is
    const Args rest(words.begin() + 1, words.end());
    const Args others = words[0] == "train" ? restarts_of_train(rest).others : restarts_of_megatron(rest).others;
    words.resize(1);
    words.insert(words.end(), others.begin(), others.end());
  }
  if (!options.host.is_given()) return supervise_command(words, options);
  (void)command_of(words, first_rank_of(options.host));  // what is wrong is said once
  return run_on_host(options.host, words_of_rank(options, words));
}

int run_training(const std::string& job, const Args& args, Check check) {
  const RestartWords asked = job == "train" ? restarts_of_train(args) : restarts_of_megatron(args);
  if (asked.restarts == 0) return run_with_libtorch({job}, asked.others, check);
  Args words = {job};
  words.insert(words.end(), asked.others.begin(), asked.others.end());
  RunOptions options;
  options.max_restarts = asked.restarts;
  return supervise_command(words, options);
}

}  // namespace megatron::app
