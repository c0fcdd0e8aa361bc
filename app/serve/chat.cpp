#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/generate/chat_template.h"
#include "app/jobs.h"
#include "app/print.h"
#include "app/serve/chat_options.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/generate/serving/engine.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/kv_cache.h"
#include "megatron/run/kept_adapters.h"
#include "megatron/run/ranks.h"
#include "megatron/run/trained_model.h"
#include "megatron/serve/answer_text.h"
#include "megatron/text/chat_template.h"

namespace megatron::app {
namespace {

// A signal handler can reach nothing else.
std::atomic<bool> interrupted = false;

/// Prints an answer as it is written.
class Printed : public serve::TextListener {
 public:
  Printed(const run::TrainedModel& model, const std::vector<std::int64_t>& prompt)
      : text_(model.tokenizer, prompt, model.ends, {}) {}

  bool on_token(const serve::ScoredToken& token) override {
    show(text_.push(token.id));
    return !interrupted;
  }
  void on_end(serve::Finish /*finish*/) override {
    show(text_.finish());
    ended_ = true;
  }
  void on_error(int /*status*/, const std::string& message) override {
    error_ = message;
    ended_ = true;
  }
  bool gone() const override { return false; }

  bool ended() const { return ended_; }
  const std::string& answer() const { return answer_; }
  const std::string& error() const { return error_; }

 private:
  void show(const std::string& text) {
    answer_ += text;
    print_text(text);
    std::fflush(stdout);
  }

  serve::AnswerText text_;
  std::string answer_, error_;
  bool ended_ = false;
};

/// Lines of standard input, while whose end is waited for the other ranks are told that nothing is to be done: who
/// hears nothing for long takes the first rank for lost.
class Lines {
 public:
  explicit Lines(generate::SlotModel& slots) : slots_(slots) {}

  /// False at the end of input.
  bool next(std::string& line) {
    for (std::size_t end = 0;;) {
      end = held_.find('\n');
      if (end != std::string::npos || (ended_ && !held_.empty())) {
        line = held_.substr(0, end);
        held_.erase(0, end == std::string::npos ? end : end + 1);
        return true;
      }
      if (ended_) return false;
      wait();
    }
  }

 private:
  void wait() {
    constexpr int kBetweenMs = 5000;
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = poll(&input, 1, kBetweenMs);
    if (ready == 0) slots_.idle();
    if (ready <= 0) return;
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (count > 0) held_.append(bytes, static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) ended_ = true;
  }

  generate::SlotModel& slots_;
  std::string held_;
  bool ended_ = false;
};

/// One conversation, on the first rank.
class Conversation {
 public:
  Conversation(const ChatFlags& flags, const run::TrainedModel& model, const text::ChatTemplate& chat,
               std::int64_t context, generate::SlotModel& slots)
      : flags_(flags),
        model_(model),
        chat_(chat),
        lines_(slots),
        context_(context),
        engine_(slots, queue_, metrics_, {.slots = 1}) {
    serve::declare_metrics(metrics_);
    begin(flags.system);
  }

  /// Reads lines until the end of input or /quit. Its exit code: kFailed where nobody who could mend it has seen that a
  /// message was left out, as standard input is no terminal.
  int run();

 private:
  void begin(const std::string& system) {
    system_ = system;
    messages_.clear();
    if (!system.empty()) messages_.push_back({"system", system});
  }
  /// False where it ends the conversation.
  bool command(const std::string& line);
  void answer(const std::string& line);
  /// The tokens of the conversation; none where its template refuses it, which is said.
  std::optional<std::vector<std::int64_t>> prompt() const;
  /// Takes the last message back, which is `line` and was refused; where that is for /system's message, that one.
  void leave_out(const std::string& line);

  struct Before {
    std::string system;
    std::vector<text::ChatMessage> messages;
  };

  const ChatFlags& flags_;
  const run::TrainedModel& model_;
  const text::ChatTemplate& chat_;
  Lines lines_;
  std::int64_t context_;
  serve::TaskQueue queue_{serve::QueueLimits{}};
  serve::Metrics metrics_;
  generate::Engine engine_;
  std::string system_;
  std::vector<text::ChatMessage> messages_;
  bool left_out_ = false;         // a message
  std::optional<Before> before_;  // /system, until a message follows it
};

bool Conversation::command(const std::string& line) {
  const std::string word = line.substr(0, line.find(' '));
  if (word == "/quit" || word == "/exit") return false;
  if (word == "/clear") {
    before_.reset();
    begin(system_);
  } else if (word == "/system") {
    if (!before_) before_ = Before{system_, messages_};
    begin(line.size() > word.size() ? line.substr(word.size() + 1) : "");
  } else if (word == "/undo") {
    if (messages_.size() >= 2) messages_.resize(messages_.size() - 2);
  } else {
    write_line(stderr, "commands: /clear /system TEXT /undo /quit");
  }
  return true;
}

std::optional<std::vector<std::int64_t>> Conversation::prompt() const {
  try {
    const auto ids = model_.tokenizer.encode(chat_.prompt(messages_), text::Specials::Recognised);
    std::vector<std::int64_t> tokens(ids.begin(), ids.end());
    run::check_tokens(model_, tokens, "chat");
    return tokens;
  } catch (const ConfigError& error) {
    write_line(stderr, error.what());
    return std::nullopt;
  }
}

void Conversation::leave_out(const std::string& line) {
  left_out_ = true;
  messages_.pop_back();
  try {
    if (before_) chat_.prompt(std::vector<text::ChatMessage>{{"user", line}});
  } catch (const ConfigError&) {
    before_.reset();  // refused without the system message too: that one is not at fault
  }
  if (before_) {
    system_ = std::move(before_->system);
    messages_ = std::move(before_->messages);
    before_.reset();
    write_line(stderr, "the system message is left out: the conversation before it continues");
  } else {
    write_line(stderr, "the message is left out: the conversation continues");
  }
}

void Conversation::answer(const std::string& line) {
  messages_.push_back({"user", line});
  auto tokens = prompt();
  if (!tokens) return leave_out(line);
  before_.reset();
  serve::TextTask task{
      .prompt = *std::move(tokens), .adapter = model_.usual_adapter, .ends = model_.ends, .seed = flags_.seed};
  task.max_tokens = std::min(flags_.max_new_tokens, context_ - std::ssize(task.prompt));
  if (task.max_tokens < 1) {
    write_line(stderr, concat("the conversation fills the context of ", context_, " tokens: /clear or /undo"));
    messages_.pop_back();
    left_out_ = true;
    return;
  }
  task.sampling.temperature = flags_.temperature;
  task.sampling.top_k = flags_.top_k;
  task.sampling.top_p = flags_.top_p;
  task.sampling.min_p = flags_.min_p;
  task.sampling.repetition_penalty = flags_.repetition_penalty;
  const auto printed = std::make_shared<Printed>(model_, task.prompt);
  task.listener = printed;
  task.arrived = serve::Clock::now();
  task.deadline = serve::Clock::time_point::max();
  interrupted = false;
  queue_.submit({std::move(task)});
  while (!printed->ended()) engine_.step();
  print_text("\n");
  std::fflush(stdout);
  if (!printed->error().empty()) throw std::runtime_error(printed->error());
  messages_.push_back({"assistant", printed->answer()});
}

int Conversation::run() {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  for (std::string line;;) {
    if (terminal) print_text("> ");
    std::fflush(stdout);
    if (!lines_.next(line)) break;
    if (line.empty()) continue;
    if (line[0] != '/')
      answer(line);
    else if (!command(line))
      break;
  }
  return left_out_ && !terminal ? kFailed : kDone;
}

/// Room for the conversation and for one before it, in at most a quarter of the free memory; on a GPU, of which nothing
/// is known here, for the conversation alone.
plan::CachePool conversation_pool(const plan::ResolvedRun& run) {
  if (run.config.parallel.device == "cuda") return plan::cache_pool_of_tokens(run, run.shape.max_positions);
  const plan::CachePool two = plan::cache_pool_of_tokens(run, 2 * run.shape.max_positions);
  const auto memory = machine_memory();
  if (!memory || two.bytes <= static_cast<std::int64_t>(memory->bytes / 4)) return two;
  const plan::CachePool share = plan::cache_pool_of_bytes(run, static_cast<std::int64_t>(memory->bytes / 4));
  return share.blocks > 0 ? share : plan::cache_pool_of_tokens(run, 1);
}

int run_chat(const Args& args) {
  ChatFlags flags = chat_flags(args);
  run::TrainedModel model = run::open_trained_model(flags, "chat");
  run::keep_adapter(model, flags.adapter, "chat");
  const text::ChatTemplate chat = chat_template_of(flags);
  const plan::CachePool cache = conversation_pool(model.run);
  run::check_memory(model, {.bytes = cache.bytes, .what = "keys and values", .fix = "a machine with more memory"});
  kernels::install_caching_allocator();
  std::signal(SIGINT, [](int) {
    if (interrupted.exchange(true)) std::_Exit(130);  // a second time, while nothing is written
  });
  return run::run_on_ranks(
      model.run, comm::place_from(comm::process_environment()),
      [&](const comm::Group& world, at::Device device) {
        const run::RankModel rank = run::load_rank(model, world, device, model.run.shape.max_positions);
        const generate::StagedModel staged(
            model::CachedGpt(rank.options, rank.part, rank.parameters, rank.context.tensor()), rank.context.pipeline(),
            rank.tensor());
        generate::RankSlots slots(staged, world, device, cache.blocks);
        if (world.rank() > 0) {
          slots.follow();
          return kDone;
        }
        const int code =
            Conversation(flags, model, chat, std::min(model.run.shape.max_positions, slots.tokens()), slots).run();
        slots.stop();
        return code;
      },
      run::model_facts(model, config::fields_of(flags)));
}

}  // namespace

int chat(const Args& args) {
  return run::run_job_of_ranks([&] { return run_chat(args); });
}

}  // namespace megatron::app
