#include "megatron/base/files/file.h"
#include "megatron/tasks/families/common.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/scores/span_decoding.h"
#include "megatron/tasks/scores/squad_scores.h"
#include "megatron/tasks/squad_features.h"

namespace megatron::tasks {
namespace {

SquadFeatureOptions feature_options(const TaskOptions& options) {
  return {.seq_length = options.seq_length,
          .doc_stride = options.doc_stride,
          .max_query_length =
              options.max_query_length > 0 ? options.max_query_length : usual_query_length(TaskKind::Squad1)};
}

class SquadSpans final : public Task {
 public:
  SquadSpans(SquadExamples examples, const text::Tokenizer& tokenizer, const TaskOptions& options)
      : examples_(std::move(examples)),
        features_(examples_, tokenizer, feature_options(options), options.threads),
        decoding_{.n_best = options.n_best, .max_answer_tokens = options.max_answer_tokens} {
    for (std::size_t window = 0; window < features_.windows().size(); ++window)
      if (!options.to_learn || can_be_learned(question_of(window))) windows_.push_back(window);
  }

  std::size_t size() const override { return windows_.size(); }
  std::size_t examples() const override { return examples_.questions.size(); }
  std::string left_out() const override {
    const std::size_t windows = features_.windows().size() - windows_.size();
    return windows == 0 ? "" : concat(windows, " windows of questions whose answer is not where the file says");
  }
  std::int32_t length(std::size_t sample) const override {
    const std::size_t window = windows_[sample];
    return features_.context_position(window) + features_.windows()[window].count + 1;
  }
  std::int32_t fill(std::size_t sample, int, std::span<std::int32_t> ids,
                    std::span<std::int32_t> types) const override {
    return features_.fill(windows_[sample], ids, types);
  }
  std::array<std::int64_t, 2> target(std::size_t sample) const override {
    if (!labelled()) return {-1, -1};
    const auto& answers = question_of(windows_[sample]).answers;
    const SpanTarget span = answers.empty() ? SpanTarget{} : features_.target(windows_[sample], answers[0]);
    return {span.start, span.end};
  }
  bool labelled() const override { return examples_.labelled; }
  std::size_t width() const override { return 2 * static_cast<std::size_t>(features_.options().seq_length); }

  TaskScores scores(std::span<const float> logits, std::optional<double> null_threshold) const override {
    const auto decoded = decode(logits, 0);
    std::vector<std::string_view> texts;
    std::vector<double> null_odds;
    for (const DecodedAnswer& answer : decoded) {
      texts.push_back(answer.text);
      null_odds.push_back(answer.null_odds);
    }
    const auto matches = match_answers(examples_, texts);
    if (examples_.version == SquadVersion::V1) {
      const SquadScores squad = squad_scores(examples_, matches);
      return {.metrics = {{"f1", squad.all.f1}, {"exact_match", squad.all.exact}},
              .report = squad_report(examples_.version, squad, {})};
    }
    const NullThresholds best = best_null_thresholds(examples_, matches, texts, null_odds);
    const double threshold = null_threshold.value_or(best.f1.threshold);
    const SquadScores squad = squad_scores(examples_, with_null_threshold(examples_, matches, null_odds, threshold));
    return {.metrics = {{"f1", squad.all.f1}, {"exact", squad.all.exact}},
            .null_threshold = threshold,
            .report = squad_report(examples_.version, squad, best)};
  }

  std::vector<PredictionFile> predictions(std::span<const float> logits, double null_threshold) const override {
    const auto decoded = decode(logits, null_threshold);
    std::vector<PredictionFile> files{{"predictions.json", squad_predictions(examples_, decoded)},
                                      {"nbest_predictions.json", squad_n_best(examples_, decoded)}};
    if (examples_.version == SquadVersion::V2) files.push_back({"null_odds.json", squad_null_odds(examples_, decoded)});
    return files;
  }

 private:
  const SquadQuestion& question_of(std::size_t window) const {
    return examples_.questions[static_cast<std::size_t>(features_.windows()[window].question)];
  }
  static bool can_be_learned(const SquadQuestion& question) {
    return question.answers.empty() || question.answers[0].begin != SquadAnswer::kNowhere;
  }

  /// All windows must be samples.
  std::vector<DecodedAnswer> decode(std::span<const float> logits, double null_threshold) const {
    const std::size_t row = width() / 2;
    std::vector<float> starts, ends;
    starts.reserve(size() * row);
    ends.reserve(size() * row);
    for (std::size_t sample = 0; sample < size(); ++sample) {
      const auto both = logits.subspan(sample * width(), width());
      starts.insert(starts.end(), both.begin(), both.begin() + static_cast<std::ptrdiff_t>(row));
      ends.insert(ends.end(), both.begin() + static_cast<std::ptrdiff_t>(row), both.end());
    }
    SpanDecodingOptions options = decoding_;
    options.null_threshold = null_threshold;
    return decode_spans(features_, starts, ends, options);
  }

  SquadExamples examples_;
  SquadFeatures features_;
  SpanDecodingOptions decoding_;
  std::vector<std::size_t> windows_;  // of the features, that are samples
};

template <SquadVersion version>
std::unique_ptr<const Task> open_squad(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                       const TaskOptions& options) {
  SquadExamples examples = read_squad(path, version);
  keep_first(examples.questions, options.limit);
  return std::make_unique<SquadSpans>(std::move(examples), tokenizer, options);
}

template <SquadVersion version>
TaskRows squad_rows(const std::filesystem::path& path, const text::Tokenizer& tokenizer, const TaskOptions& options) {
  TaskRows rows;
  const auto examples = read_timed([&] { return read_squad(path, version); }, rows);
  const Stopwatch watch;
  const auto features =
      std::make_shared<const SquadFeatures>(*examples, tokenizer, feature_options(options), options.threads);
  rows.encode_s = watch.seconds();
  rows.examples = static_cast<std::int64_t>(examples->questions.size());
  rows.count = features->windows().size();
  rows.fill = [features](auto row, auto ids, auto types) { return features->fill(row, ids, types); };
  rows.describe = [examples, features](std::size_t row) {
    const SquadWindow& window = features->windows()[row];
    const SquadQuestion& question = examples->questions[static_cast<std::size_t>(window.question)];
    const SpanTarget target = question.answers.empty() ? SpanTarget{} : features->target(row, question.answers[0]);
    return nlohmann::ordered_json{{"id", question.id},     {"first", window.first},
                                  {"count", window.count}, {"context", features->context_position(row)},
                                  {"start", target.start}, {"end", target.end}};
  };
  return rows;
}

template <SquadVersion version>
std::string report_of(const PredictionPaths& paths, const std::function<void(const std::string&)>& note) {
  auto examples = read_squad(paths.data, version);
  keep_first(examples.questions, paths.limit);
  need_labels(examples.labelled, paths.data);
  const auto answers = parse_squad_predictions(read_file(paths.predictions), paths.predictions, examples);
  const std::vector<std::string_view> views(answers.texts.begin(), answers.texts.end());
  auto matches = match_answers(examples, views);
  for (std::size_t i = 0; i < matches.size(); ++i)
    if (!answers.found[i]) matches[i] = {};
  if (const auto missing = std::ranges::count(answers.found, false); missing > 0)
    note(concat(missing, " questions have no answer"));
  if (paths.null_odds.empty()) return squad_report(version, squad_scores(examples, matches), {});
  const auto odds = parse_squad_null_odds(read_file(paths.null_odds), paths.null_odds, examples);
  const auto kept = with_null_threshold(examples, matches, odds, paths.null_threshold);
  return squad_report(version, squad_scores(examples, kept), best_null_thresholds(examples, matches, views, odds));
}

template <SquadVersion version>
constexpr TaskInfo squad_info() {
  return {.form = {"span", 0, 1, 2, "f1"},
          .open = open_squad<version>,
          .rows = squad_rows<version>,
          .report = report_of<version>,
          .has_null_odds = version == SquadVersion::V2};
}

}  // namespace

extern const TaskInfo kSquad1, kSquad2;
constinit const TaskInfo kSquad1 = squad_info<SquadVersion::V1>(), kSquad2 = squad_info<SquadVersion::V2>();

}  // namespace megatron::tasks
