#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "app/json_line.h"
#include "app/ranks.h"
#include "app/trained_model.h"
#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/generate/perplexity.h"
#include "megatron/kernels/runtime.h"
#include "megatron/text/detokenize.h"

namespace megatron::app {
namespace {

constexpr const char* kLossUsage =
    "megatron eval loss --load DIR --data F [OPTION]…\n\n"
    "The loss a token of the text F, read through windows of W tokens that begin S tokens apart. S = W: every token "
    "but\n"
    "the first of a window is scored. S < W: every token once, given at least W - S tokens before it.";
constexpr const char* kWikitextUsage =
    "megatron eval wikitext --load DIR --data F [OPTION]…\n\n"
    "As `eval loss` for a file of WikiText, with the perplexity a word as well: words are what white space separates "
    "in\n"
    "F, as it is.";

struct EvalFlags : ModelFlags {
  std::string data;
  std::int64_t window = 0, stride = 0, limit_tokens = 0, batch_size = 0;
  bool detokenize = false;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    ModelFlags::visit(v);
    v("dp", dp, "Ranks that share the windows.");
    v("data", data, "Text file.");
    v("window", window, "Tokens that the model sees at once; 0: 1024, or its context where that is less.");
    v("stride", stride, "Tokens from the start of a window to that of the next; 0: window.");
    v("limit_tokens", limit_tokens, "Only the first tokens of the text; 0: all.");
    v("batch_size", batch_size, "Windows that are computed at once; 0: as many as hold 4096 tokens.");
    v("detokenize", detokenize, "Undo WikiText's tokenization first: \" @-@ \", blanks before signs.");
    v("progress", progress, "Progress with rate and ETA: auto, on, off.");
    v("json", json, "One JSON object on stdout.");
  }
};

std::int64_t count_words(std::string_view text) {
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return words;
}

/// What is scored, and how.
struct Task {
  EvalFlags flags;
  TrainedModel model;
  std::vector<std::int64_t> ids;
  std::vector<generate::Window> windows;
  std::int64_t words = 0;  ///< of the text as it is in the file, as far as it is read
};

Task prepare(const Args& args, const char* usage) {
  EvalFlags flags;
  const auto rest = config::parse_command_line(flags, args, usage);
  if (!rest.empty()) throw ConfigError(rule_got_fix("eval takes options alone.", rest[0], usage));
  if (flags.data.empty()) throw ConfigError(rule_got_fix("eval: --data must name a text.", "none", "--data FILE"));
  Progress::mode_of(flags.progress);
  if (flags.limit_tokens < 0 || flags.batch_size < 0 || flags.window < 0 || flags.stride < 0)
    throw ConfigError(rule_got_fix("eval: --window, --stride, --limit-tokens and --batch-size must be 0 or above.",
                                   "a negative number"));
  TrainedModel model = open_trained_model(flags, "eval");
  const std::int64_t context = model.run.shape.max_positions + 1;  // the last token is only a label
  if (flags.window == 0) flags.window = std::min<std::int64_t>(1024, context);
  if (flags.window > context)
    throw ConfigError(rule_got_fix(concat("--window must be at most ", context, ", which the model's positions hold."),
                                   concat(flags.window)));
  if (flags.stride == 0) flags.stride = flags.window;
  if (flags.batch_size == 0) flags.batch_size = std::max<std::int64_t>(1, 4096 / flags.window);
  const std::string raw = read_file(flags.data);
  const std::string text = flags.detokenize ? text::detokenize_wikitext(raw) : raw;
  std::vector<std::int32_t> ids;
  model.tokenizer.encoder().encode_append(text, ids);
  double share = 1;
  if (flags.limit_tokens > 0 && static_cast<std::size_t>(flags.limit_tokens) < ids.size()) {
    ids.resize(static_cast<std::size_t>(flags.limit_tokens));
    share = static_cast<double>(model.tokenizer.decode(ids).size()) / static_cast<double>(text.size());
  }
  // With a limit the words of what is read; detokenizing moves them, so there their share of the whole.
  const std::int64_t words = share < 1 && !flags.detokenize
                                 ? count_words(std::string_view(raw).substr(0, model.tokenizer.decode(ids).size()))
                                 : std::llround(share * static_cast<double>(count_words(raw)));
  auto windows = generate::windows(static_cast<std::int64_t>(ids.size()), flags.window, flags.stride);
  return {std::move(flags), std::move(model), {ids.begin(), ids.end()}, std::move(windows), words};
}

generate::TextLoss run_rank(const Task& task, const comm::Group& world, at::Device device) {
  const RankModel rank = load_rank(task.model, world, device, task.flags.window);
  const auto& context = rank.context;
  const model::Gpt stage(rank.options, rank.part, rank.parameters, context.group(plan::Axis::Tp));
  const generate::LossRanks ranks{.pp = context.group(plan::Axis::Pp), .dp = context.group(plan::Axis::Dp)};
  Progress progress("eval", "windows", static_cast<std::int64_t>(task.windows.size()),
                    world.rank() == 0 ? Progress::mode_of(task.flags.progress) : Progress::Mode::Off);
  return generate::text_loss(stage, ranks, rank.tensor(), task.ids, task.windows, task.flags.batch_size,
                             [&](std::int64_t done) { progress.update(done); });
}

void report(const Task& task, const generate::TextLoss& loss, double seconds, bool words) {
  nlohmann::ordered_json fields{{"loss", loss.mean()},
                                {"perplexity", std::exp(loss.mean())},
                                {"scored_tokens", loss.scored_tokens},
                                {"nll_sum", loss.nll},
                                {"tokens", task.ids.size()},
                                {"windows", task.windows.size()},
                                {"window", task.flags.window},
                                {"stride", task.flags.stride},
                                {"dtype", task.model.run.config.train.dtype}};
  if (words) {
    fields["word_perplexity"] = std::exp(loss.nll / static_cast<double>(std::max<std::int64_t>(1, task.words)));
    fields["words"] = task.words;
  }
  fields["seconds"] = seconds;
  if (task.flags.json) return print_json(fields);
  for (const auto& [name, value] : fields.items()) std::printf("%-16s %s\n", name.c_str(), value.dump().c_str());
}

int evaluate(const Args& args, const char* usage, bool words) {
  const Task task = prepare(args, usage);
  kernels::install_caching_allocator();
  const Stopwatch since_start;
  return run_on_ranks(task.model.run, comm::place_from(environment()),
                      [&](const comm::Group& world, at::Device device) {
                        const auto loss = run_rank(task, world, device);
                        if (world.rank() == 0) report(task, loss, since_start.seconds(), words);
                        return kDone;
                      });
}

}  // namespace

int eval(const Args& args) {
  return dispatch(
      "megatron eval",
      {{"loss", "Loss and perplexity of a text.", [](const Args& a) { return evaluate(a, kLossUsage, false); }},
       {"wikitext", "The same of WikiText, with the perplexity a word.",
        [](const Args& a) { return evaluate(a, kWikitextUsage, true); }}},
      args);
}

}  // namespace megatron::app
