#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>

#include "app/eval/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/config/options.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/tasks/published/wikitext.h"

// `megatron eval loss` and `wikitext`: a text, or the tokens of a .bin/.idx pair, through windows.
namespace megatron::app {
namespace {

/// The prefix of the .bin/.idx pair that `data` names, if it names one.
std::optional<std::string> pair_of(const std::string& data) {
  namespace fs = std::filesystem;
  for (const char* end : {".idx", ".bin"})
    if (data.ends_with(end) && fs::exists(data.substr(0, data.size() - 4) + ".idx"))
      return data.substr(0, data.size() - 4);
  if (!fs::exists(data) && fs::exists(data + ".idx")) return data;
  return std::nullopt;
}

/// The first `limit` tokens of a pair, its sequences one after another; 0: all.
std::vector<std::int64_t> read_pair(const std::string& prefix, std::int64_t limit) {
  const data::IndexedDataset pair(prefix);
  const auto stored = pair.bin_bytes() / static_cast<std::int64_t>(data::item_size(pair.dtype()));
  const std::int64_t tokens = pair.verify();
  if (tokens > stored)
    throw ConfigError(rule_got_fix(concat(prefix, ": sequences must not overlap."),
                                   concat(tokens, " tokens, of which ", stored, " are stored"),
                                   "make the pair again: megatron data preprocess"));
  std::vector<std::int64_t> ids;
  const std::int64_t wanted = limit > 0 ? std::min(limit, tokens) : tokens;
  ids.resize(static_cast<std::size_t>(wanted));
  std::int64_t done = 0;
  for (std::int64_t i = 0; i < pair.size() && done < wanted; ++i) {
    const std::int64_t length = std::min(pair.length(i), wanted - done);
    pair.read(i, 0, std::span(ids).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(length)));
    done += length;
  }
  return ids;
}

struct TextTask {
  TextFlags flags;
  EvalWork work;
  std::optional<tasks::EvalText> text;  ///< nothing where tokens are read
  std::size_t bytes = 0;                ///< of the text as far as it is read
  bool words_estimated = false;         ///< of a text that is not read to its end, by its share of the bytes
};

/// What is left of words and bytes where not all tokens are read.
void cut_text(TextTask& task, bool paper_words) {
  const auto& tokenizer = task.work.model.tokenizer;
  const std::vector<std::int32_t> ids(task.work.ids.begin(), task.work.ids.end());
  task.bytes = std::min(tokenizer.decode(ids).size(), task.text->text.size());
  // Detokenizing moves words, so there their share of the whole.
  task.words_estimated = paper_words;
  const double share = static_cast<double>(task.bytes) / static_cast<double>(task.text->text.size());
  task.text->words = paper_words ? std::llround(share * static_cast<double>(task.text->words))
                                 : tasks::count_words(std::string_view(task.text->text).substr(0, task.bytes),
                                                      tasks::WordCount::WhiteSpace);
}

/// The paper's model reads 1024 tokens for the one that is scored last, which is the window's 1025th.
void choose_windows(TextFlags& flags, const run::TrainedModel& model, bool paper) {
  const std::int64_t context = longest_window(model), usual_stride = paper ? 32 : 0;
  if (flags.window == 0) flags.window = std::min<std::int64_t>(paper ? 1025 : 1024, context);
  if (flags.window < 2 || flags.window > context)
    throw ConfigError(
        rule_got_fix(concat("--window must be from 2 to ", context, ", the most that the model's positions hold."),
                     concat(flags.window), concat("--window ", context)));
  if (flags.stride == 0) flags.stride = usual_stride > 0 ? std::min(usual_stride, flags.window) : flags.window;
}

TextTask prepare(TextFlags flags, bool paper) {
  TextTask task{.flags = {}, .work = {.model = opened(flags), .ids = {}, .windows = {}}, .text = {}};
  EvalWork& work = task.work;
  choose_windows(flags, work.model, paper);
  if (const auto pair = pair_of(flags.data)) {
    if (flags.detokenize || paper)
      throw ConfigError(
          rule_got_fix("eval: --detokenize and --paper are for texts.", "the tokens of " + *pair,
                       paper ? "leave --paper and --detokenize out, or name the text" : "leave --detokenize out"));
    work.ids = read_pair(*pair, flags.limit_tokens);
  } else {
    task.text = tasks::wikitext(read_file(flags.data), flags.detokenize, paper);
    task.bytes = task.text->text.size();
    std::vector<std::int32_t> ids;
    work.model.tokenizer.encoder().encode_append(task.text->text, ids);
    work.ids.assign(ids.begin(), ids.end());
  }
  const std::size_t all = work.ids.size();
  if (flags.limit_tokens > 0) work.ids.resize(std::min(all, static_cast<std::size_t>(flags.limit_tokens)));
  work.windows = tasks::windows(static_cast<std::int64_t>(work.ids.size()), flags.window, flags.stride);
  if (flags.limit > 0 && static_cast<std::size_t>(flags.limit) < work.windows.size()) {
    work.windows.resize(static_cast<std::size_t>(flags.limit));
    work.ids.resize(static_cast<std::size_t>(work.windows.back().begin + work.windows.back().size));
  }
  if (task.text && work.ids.size() < all) cut_text(task, flags.detokenize || paper);
  task.flags = std::move(flags);
  return task;
}

nlohmann::ordered_json report(const TextTask& task, const std::vector<tasks::WindowScore>& scores, bool words) {
  const auto loss = tasks::loss_estimate(task.work.windows, scores);
  nlohmann::ordered_json fields{{"loss", loss.mean},
                                {"loss_low", loss.low()},
                                {"loss_high", loss.high()},
                                {"standard_error", loss.standard_error},
                                {"perplexity", std::exp(loss.mean)},
                                {"perplexity_low", std::exp(loss.low())},
                                {"perplexity_high", std::exp(loss.high())},
                                {"scored_tokens", loss.scored_tokens},
                                {"nll_sum", loss.nll},
                                {"tokens", task.work.ids.size()}};
  if (task.text) {
    const double tokens_a_byte = static_cast<double>(task.work.ids.size()) / static_cast<double>(task.bytes);
    fields["bytes"] = task.bytes;
    fields["bits_per_byte"] = loss.mean * tokens_a_byte / std::numbers::ln2;
    if (words) {
      fields["words"] = task.text->words;
      if (task.words_estimated) fields["words_estimated"] = true;
      fields["word_perplexity"] = std::exp(loss.nll / static_cast<double>(std::max<std::int64_t>(1, task.text->words)));
    }
  }
  fields["windows"] = task.work.windows.size();
  fields["window"] = task.flags.window;
  fields["stride"] = task.flags.stride;
  return fields;
}

int run(TextTask task, bool words) {
  return run_eval(task.flags, task.work,
                  [&](const std::vector<tasks::WindowScore>& scores) { return report(task, scores, words); });
}

}  // namespace

int eval_loss(const Args& args) { return run(prepare(eval_loss_flags(args), false), false); }

int eval_wikitext(const Args& args) {
  const WikitextFlags flags = eval_wikitext_flags(args);
  return run(prepare(flags, flags.paper), true);
}

}  // namespace megatron::app
