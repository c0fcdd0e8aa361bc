#include "megatron/tasks/scores/span_decoding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <unordered_set>

#include "megatron/base/error.h"

namespace megatron::tasks {
namespace {

struct Span {
  std::size_t window = 0;
  std::int32_t start = 0, end = 0;  // positions of the row; 0: no answer
  double start_logit = 0, end_logit = 0;
  double score() const { return start_logit + end_logit; }
};

/// Positions of the `count` largest values, largest first; of equal ones the first. What is no number comes last.
std::vector<std::int32_t> best_positions(std::span<const float> values, int count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::int32_t i) {
    const float v = values[static_cast<std::size_t>(i)];
    return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v;
  };
  const auto kept =
      order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), static_cast<std::size_t>(count)));
  std::partial_sort(order.begin(), kept, order.end(),
                    [&](std::int32_t a, std::int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  order.erase(kept, order.end());
  return order;
}

void add_spans(const SquadFeatures& features, std::size_t window, std::span<const float> start_logits,
               std::span<const float> end_logits, const SpanDecodingOptions& options, std::vector<Span>& spans) {
  const std::int32_t first = features.context_position(window), past = first + features.windows()[window].count;
  const auto inside = [&](std::int32_t position) { return position >= first && position < past; };
  const auto ends = best_positions(end_logits, options.n_best);
  for (const std::int32_t start : best_positions(start_logits, options.n_best)) {
    if (!inside(start) || !features.has_most_context(window, start)) continue;
    for (const std::int32_t end : ends)
      if (inside(end) && end >= start && end - start < options.max_answer_tokens)
        spans.push_back({window, start, end, start_logits[static_cast<std::size_t>(start)],
                         end_logits[static_cast<std::size_t>(end)]});
  }
}

void set_probabilities(std::vector<SpanCandidate>& candidates) {
  const auto score = [](const SpanCandidate& c) { return c.start_logit + c.end_logit; };
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const SpanCandidate& candidate : candidates) largest = std::max(largest, score(candidate));
  for (SpanCandidate& candidate : candidates) sum += candidate.probability = std::exp(score(candidate) - largest);
  for (SpanCandidate& candidate : candidates) candidate.probability /= sum;
}

/// The best spans with different texts, and, where there may be none, no answer.
std::vector<SpanCandidate> candidates_of(const SquadFeatures& features, std::vector<Span> spans, bool may_be_none,
                                         const Span& none, std::size_t n_best) {
  if (may_be_none) spans.push_back(none);
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.score() > b.score(); });
  std::vector<SpanCandidate> candidates;
  std::unordered_set<std::string_view> seen;
  for (const Span& span : spans) {
    if (candidates.size() == n_best) break;
    const std::string_view text =
        span.start == 0 ? std::string_view() : features.answer_text(span.window, span.start, span.end);
    if ((text.empty() && span.start != 0) || !seen.insert(text).second) continue;
    candidates.push_back({.text = text, .start_logit = span.start_logit, .end_logit = span.end_logit});
  }
  if (may_be_none && !seen.contains(std::string_view()))
    candidates.push_back({.start_logit = none.start_logit, .end_logit = none.end_logit});
  if (candidates.empty()) candidates.push_back({.text = "empty"});
  return candidates;
}

}  // namespace

DecodedAnswer decode_spans(const SquadFeatures& features, std::size_t question, std::span<const float> start_logits,
                           std::span<const float> end_logits, const SpanDecodingOptions& options) {
  if (options.n_best < 1 || options.max_answer_tokens < 1)
    throw ConfigError(rule_got_fix("the number of best answers and the tokens of an answer must be 1 or more.",
                                   concat(options.n_best, " and ", options.max_answer_tokens),
                                   "--n-best 20 --max-answer-length 30 (the defaults)"));
  const auto [begin, end] = features.windows_of(question);
  const auto row = static_cast<std::size_t>(features.options().seq_length);
  if (start_logits.size() != (end - begin) * row || end_logits.size() != start_logits.size())
    throw std::logic_error("decode_spans: logits must be [windows, seq_length]");
  const bool may_be_none = features.examples().version == SquadVersion::V2;
  std::vector<Span> spans;
  Span none;
  for (std::size_t window = begin; window < end; ++window) {
    const auto starts = start_logits.subspan((window - begin) * row, row);
    const auto ends = end_logits.subspan((window - begin) * row, row);
    const Span cls{.window = window, .start_logit = starts[0], .end_logit = ends[0]};
    if (window == begin || cls.score() < none.score()) none = cls;
    add_spans(features, window, starts, ends, options, spans);
  }
  DecodedAnswer decoded;
  decoded.n_best =
      candidates_of(features, std::move(spans), may_be_none, none, static_cast<std::size_t>(options.n_best));
  set_probabilities(decoded.n_best);
  const auto found = std::find_if(decoded.n_best.begin(), decoded.n_best.end(),
                                  [](const SpanCandidate& candidate) { return !candidate.text.empty(); });
  if (found != decoded.n_best.end()) decoded.text = found->text;
  decoded.answer = decoded.text;
  if (!may_be_none) return decoded;
  decoded.null_odds = none.score();
  if (found != decoded.n_best.end()) decoded.null_odds = none.score() - found->start_logit - found->end_logit;
  if (decoded.null_odds > options.null_threshold) decoded.answer = {};
  return decoded;
}

std::vector<DecodedAnswer> decode_spans(const SquadFeatures& features, std::span<const float> start_logits,
                                        std::span<const float> end_logits, const SpanDecodingOptions& options) {
  const auto row = static_cast<std::size_t>(features.options().seq_length);
  if (start_logits.size() != features.windows().size() * row || end_logits.size() != start_logits.size())
    throw std::logic_error("decode_spans: logits must be [windows, seq_length]");
  std::vector<DecodedAnswer> decoded;
  for (std::size_t question = 0; question < features.examples().questions.size(); ++question) {
    const auto [begin, end] = features.windows_of(question);
    decoded.push_back(decode_spans(features, question, start_logits.subspan(begin * row, (end - begin) * row),
                                   end_logits.subspan(begin * row, (end - begin) * row), options));
  }
  return decoded;
}

}  // namespace megatron::tasks
