#include "megatron/tasks/squad_features.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/machine/parallel.h"

namespace megatron::tasks {
namespace {

constexpr std::size_t kMaxWindows = std::size_t{1} << 26;

void check(const SquadFeatureOptions& options, const BertFrame& frame) {
  if (options.doc_stride < 1)
    throw ConfigError(rule_got_fix("the document stride must be 1 or more.", concat(options.doc_stride),
                                   "--doc-stride 128 (the default)"));
  if (options.max_query_length < 1)
    throw ConfigError(rule_got_fix("a question must have at least one token.", concat(options.max_query_length),
                                   "--max-query-length 64"));
  // Not the sum, which may overflow.
  if (options.seq_length - frame.tokens() - 1 < options.max_query_length)
    throw ConfigError(rule_got_fix(
        concat("the sequence length must leave room for a context: at least ", frame.tokens() + 1,
               " tokens more than the longest question."),
        concat("sequence length ", options.seq_length, ", questions of ", options.max_query_length, " tokens"),
        "--seq-length 384, or a smaller --max-query-length"));
}

}  // namespace

SquadFeatures::SquadFeatures(const SquadExamples& examples, const text::Tokenizer& tokenizer,
                             const SquadFeatureOptions& options, int threads)
    : examples_(&examples), options_(options), frame_(bert_frame(tokenizer)) {
  check(options, frame_);
  encode_contexts(tokenizer, threads);
  encode_questions(tokenizer, threads);
  cut_windows();
}

void SquadFeatures::encode_contexts(const text::Tokenizer& tokenizer, int threads) {
  constexpr std::size_t kBlock = 16;
  const auto& contexts = examples_->contexts;
  std::vector<text::Encoding> encodings(contexts.size());
  std::vector<std::optional<text::Encoder>> encoders(static_cast<std::size_t>(std::max(threads, 1)));
  for_each_on_threads((contexts.size() + kBlock - 1) / kBlock, threads, [&](std::size_t block, std::size_t worker) {
    auto& encoder = encoders[worker];
    if (!encoder) encoder.emplace(tokenizer.encoder());
    for (std::size_t i = block * kBlock; i < std::min(contexts.size(), (block + 1) * kBlock); ++i)
      encodings[i] = encoder->encode_with_offsets(contexts[i]);
  });
  for (text::Encoding& encoding : encodings) {
    context_ids_.insert(context_ids_.end(), encoding.ids.begin(), encoding.ids.end());
    for (const text::ByteSpan& span : encoding.bytes)
      places_.push_back({static_cast<std::uint32_t>(span.begin), static_cast<std::uint32_t>(span.end)});
    context_begins_.push_back(context_ids_.size());
    encoding = {};
  }
}

void SquadFeatures::encode_questions(const text::Tokenizer& tokenizer, int threads) {
  std::vector<std::string_view> texts;
  for (const SquadQuestion& question : examples_->questions) texts.emplace_back(question.text);
  for (const auto& ids : tokenizer.encode_batch(texts, threads)) {
    const std::size_t kept = std::min(ids.size(), static_cast<std::size_t>(options_.max_query_length));
    question_ids_.insert(question_ids_.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept));
    question_begins_.push_back(question_ids_.size());
  }
}

void SquadFeatures::cut_windows() {
  for (std::size_t question = 0; question < examples_->questions.size(); ++question) {
    window_begins_.push_back(windows_.size());
    const auto context = static_cast<std::size_t>(examples_->questions[question].context);
    const std::size_t tokens = context_begins_[context + 1] - context_begins_[context];
    if (tokens > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      throw ConfigError(rule_got_fix("a context must have fewer than 2^31 tokens.", concat(tokens)));
    const std::size_t room =
        static_cast<std::size_t>(options_.seq_length - frame_.tokens()) - question_ids(question).size();
    const std::size_t step = std::min(static_cast<std::size_t>(options_.doc_stride), room);  // so that none is left out
    for (std::size_t first = 0;; first += step) {
      const std::size_t count = std::min(room, tokens - first);
      if (windows_.size() >= kMaxWindows)
        throw ConfigError(
            rule_got_fix("contexts may have at most 2^26 windows in all.", "more", "raise the document stride"));
      windows_.push_back(
          {static_cast<std::int32_t>(question), static_cast<std::int32_t>(first), static_cast<std::int32_t>(count)});
      if (first + count == tokens) break;
    }
  }
  window_begins_.push_back(windows_.size());
}

std::span<const std::int32_t> SquadFeatures::question_ids(std::size_t question) const {
  return std::span(question_ids_)
      .subspan(question_begins_[question], question_begins_[question + 1] - question_begins_[question]);
}

std::size_t SquadFeatures::context_of(std::size_t window) const {
  return static_cast<std::size_t>(examples_->questions[static_cast<std::size_t>(windows_[window].question)].context);
}

std::span<const SquadFeatures::TextSpan> SquadFeatures::places(std::size_t context) const {
  return std::span(places_).subspan(context_begins_[context], context_begins_[context + 1] - context_begins_[context]);
}

std::int32_t SquadFeatures::fill(std::size_t window, std::span<std::int32_t> ids, std::span<std::int32_t> types) const {
  const SquadWindow& at = windows_[window];
  const std::size_t begin = context_begins_[context_of(window)] + static_cast<std::size_t>(at.first);
  return write_row(frame_, question_ids(static_cast<std::size_t>(at.question)),
                   std::span(context_ids_).subspan(begin, static_cast<std::size_t>(at.count)), ids, types);
}

bool SquadFeatures::has_most_context(std::size_t window, std::int32_t position) const {
  const std::int32_t token = windows_[window].first + position - context_position(window);
  const auto score = [&](const SquadWindow& other) {
    const std::int32_t left = token - other.first, right = other.first + other.count - 1 - token;
    return std::min(left, right) + 0.01 * other.count;  // as the original weighs them
  };
  const auto [begin, end] = windows_of(static_cast<std::size_t>(windows_[window].question));
  const double own = score(windows_[window]);
  const auto holds = [&](std::size_t other) {
    return windows_[other].first <= token && token < windows_[other].first + windows_[other].count;
  };
  for (std::size_t other = window; other-- > begin && holds(other);)
    if (score(windows_[other]) >= own) return false;
  for (std::size_t other = window + 1; other < end && holds(other); ++other)
    if (score(windows_[other]) > own) return false;
  return true;
}

SpanTarget SquadFeatures::target(std::size_t window, const SquadAnswer& answer) const {
  if (answer.begin == SquadAnswer::kNowhere) return {};
  const auto all = places(context_of(window));
  const std::size_t answer_end = answer.begin + answer.text.size();
  const auto first =
      std::partition_point(all.begin(), all.end(), [&](const TextSpan& p) { return p.end <= answer.begin; });
  const auto last = std::partition_point(first, all.end(), [&](const TextSpan& p) { return p.begin < answer_end; });
  if (first == last) return {};  // of characters that are in no token
  const SquadWindow& at = windows_[window];
  const auto start = static_cast<std::int32_t>(first - all.begin()) - at.first;
  const auto end = static_cast<std::int32_t>(last - all.begin()) - 1 - at.first;
  if (start < 0 || end >= at.count) return {};
  return {context_position(window) + start, context_position(window) + end};
}

std::string_view SquadFeatures::answer_text(std::size_t window, std::int32_t start, std::int32_t end) const {
  const SquadWindow& at = windows_[window];
  const std::size_t context = context_of(window);
  const auto all = places(context);
  const auto place = [&](std::int32_t position) {
    return all[static_cast<std::size_t>(at.first + position - context_position(window))];
  };
  const std::size_t from = place(start).begin, to = place(end).end;
  return std::string_view(examples_->contexts[context]).substr(from, to > from ? to - from : 0);
}

}  // namespace megatron::tasks
