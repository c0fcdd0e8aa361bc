#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/tasks/published/squad_examples.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/scores/span_decoding.h"
#include "megatron/tasks/scores/squad_scores.h"
#include "megatron/tasks/squad_features.h"
#include "tests/tasks/support.h"
#include "tests/testing/folders.h"

namespace megatron::tasks {
namespace {

using testing::HasSubstr;

using Json = nlohmann::json;

/// Braces around one value would copy it.
Json list(std::vector<Json> items) { return items; }

/// A file with one paragraph.
std::string squad_json(const std::string& context, const Json& questions) {
  const Json paragraph = {{"context", context}, {"qas", questions}}, article = {{"paragraphs", list({paragraph})}};
  return Json{{"data", list({article})}}.dump();
}

Json answer_json(const std::string& text, const Json& start) { return {{"text", text}, {"answer_start", start}}; }

Json question_json(const std::string& id, std::vector<Json> answers) {
  return {{"id", id}, {"question", "who"}, {"answers", list(std::move(answers))}};
}

/// Letters with a space now and then: of each letter the tokenizer makes a token.
std::string random_context(std::mt19937& random, std::size_t letters) {
  std::string context;
  for (std::size_t i = 0; i < letters; ++i) {
    if (i > 0 && random() % 4 == 0) context += ' ';
    context += static_cast<char>('a' + random() % 26);
  }
  return context;
}

/// Where the tokens of such a text stand.
std::vector<std::size_t> letters_of(const std::string& context) {
  std::vector<std::size_t> letters;
  for (std::size_t i = 0; i < context.size(); ++i)
    if (context[i] != ' ') letters.push_back(i);
  return letters;
}

struct RandomSquad {
  SquadExamples examples;
  SquadFeatureOptions options;
};

RandomSquad random_squad(std::mt19937& random, SquadVersion version) {
  RandomSquad squad;
  squad.examples.version = version;
  for (int i = 0; i < 3; ++i) {
    squad.examples.contexts.push_back(random_context(random, random() % 40));
    for (int k = 0; k < 2; ++k)
      squad.examples.questions.push_back(
          {.id = concat(i, '-', k), .text = random_context(random, random() % 8), .context = i, .answers = {}});
  }
  squad.options.max_query_length = 1 + static_cast<int>(random() % 6);
  squad.options.seq_length = squad.options.max_query_length + 4 + static_cast<int>(random() % 12);
  squad.options.doc_stride = 1 + static_cast<int>(random() % 14);
  return squad;
}

/// The windows of a question as the original finds them: first token and count.
std::vector<std::pair<int, int>> original_windows(int tokens, int room, int stride) {
  std::vector<std::pair<int, int>> windows;
  for (int start = 0; start < tokens;) {
    const int length = std::min(tokens - start, room);
    windows.emplace_back(start, length);
    if (start + length == tokens) break;
    start += std::min(length, stride);
  }
  if (windows.empty()) windows.emplace_back(0, 0);  // the original has no row for such a question
  return windows;
}

/// The window of the token that the original calls its maximum context.
std::size_t original_best_window(const std::vector<std::pair<int, int>>& windows, int token) {
  std::size_t best = 0;
  double best_score = -1;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const auto [first, count] = windows[i];
    if (token < first || token >= first + count) continue;
    const double score = std::min(token - first, first + count - 1 - token) + 0.01 * count;
    if (score > best_score) best_score = score, best = i;
  }
  return best;
}

TEST(SquadFeatures, WindowsAndTheirBestContextAreThoseOfTheOriginal) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const RandomSquad squad = random_squad(random, SquadVersion::V1);
    const SquadFeatures features(squad.examples, letter_tokenizer(), squad.options, 1 + round % 3);
    for (std::size_t q = 0; q < squad.examples.questions.size(); ++q) {
      const SquadQuestion& question = squad.examples.questions[q];
      const auto letters = letters_of(squad.examples.contexts[static_cast<std::size_t>(question.context)]);
      const int query = std::min(static_cast<int>(letters_of(question.text).size()), squad.options.max_query_length);
      const auto expected = original_windows(static_cast<int>(letters.size()), squad.options.seq_length - 3 - query,
                                             squad.options.doc_stride);
      const auto [begin, end] = features.windows_of(q);
      ASSERT_EQ(end - begin, expected.size());
      for (std::size_t w = begin; w < end; ++w) {
        ASSERT_EQ(features.windows()[w].first, expected[w - begin].first);
        ASSERT_EQ(features.windows()[w].count, expected[w - begin].second);
        ASSERT_EQ(features.context_position(w), query + 2);
        for (int i = 0; i < expected[w - begin].second; ++i)
          ASSERT_EQ(features.has_most_context(w, query + 2 + i),
                    original_best_window(expected, expected[w - begin].first + i) == w - begin);
      }
    }
  }
}

TEST(SquadFeatures, TargetsAreTheTokensOfTheAnswerOrNone) {
  std::mt19937 random(2);
  int inside = 0, outside = 0;
  for (int round = 0; round < 100; ++round) {
    const RandomSquad squad = random_squad(random, SquadVersion::V1);
    const SquadFeatures features(squad.examples, letter_tokenizer(), squad.options, 1);
    for (std::size_t w = 0; w < features.windows().size(); ++w) {
      const SquadWindow& window = features.windows()[w];
      const auto& question = squad.examples.questions[static_cast<std::size_t>(window.question)];
      const std::string& context = squad.examples.contexts[static_cast<std::size_t>(question.context)];
      const auto letters = letters_of(context);
      if (letters.empty()) continue;
      const std::size_t first = random() % letters.size(), last = first + random() % (letters.size() - first);
      const std::size_t begin = letters[first], size = letters[last] + 1 - begin;
      const SpanTarget target = features.target(w, {.text = context.substr(begin, size), .begin = begin});
      const auto before = static_cast<std::size_t>(window.first),
                 past = before + static_cast<std::size_t>(window.count);
      if (first < before || last >= past) {
        EXPECT_EQ(target, SpanTarget());
        ++outside;
        continue;
      }
      ++inside;
      EXPECT_EQ(features.answer_text(w, target.start, target.end), context.substr(begin, size));
      EXPECT_EQ(target.start, features.context_position(w) + static_cast<std::int32_t>(first - before));
    }
  }
  EXPECT_GT(inside, 100);
  EXPECT_GT(outside, 100);
}

TEST(SquadFeatures, RowsAreQuestionAndWindow) {
  SquadExamples examples;
  examples.contexts = {
      "ab c\xC3\xA9"
      "d"};  // an accent that the tokens leave out
  examples.questions = {{.id = "1", .text = "xyz", .context = 0, .answers = {}}};
  const SquadFeatures features(examples, letter_tokenizer(), {.seq_length = 8, .doc_stride = 2, .max_query_length = 2},
                               1);
  ASSERT_EQ(features.windows().size(), 2u);
  std::vector<std::int32_t> ids(8), types(8);
  EXPECT_EQ(features.fill(0, ids, types), 8);
  EXPECT_THAT(ids, testing::ElementsAre(2, 28, 55, 3, 5, 32, 7, 3));
  EXPECT_THAT(types, testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(features.fill(1, ids, types), 8);
  EXPECT_THAT(ids, testing::ElementsAre(2, 28, 55, 3, 7, 35, 34, 3));
  EXPECT_EQ(features.answer_text(1, 4, 5), "c\xC3\xA9");
  EXPECT_EQ(features.target(1, {.text = "\xC3\xA9", .begin = 4}), (SpanTarget{5, 5}));
  EXPECT_EQ(features.target(1, {.text = " ", .begin = 2}), SpanTarget());
  EXPECT_EQ(features.target(1, {.text = "d"}), SpanTarget());
}

TEST(SquadFeatures, RefuseOptionsThatLeaveNoRoom) {
  const SquadExamples examples;
  const auto error = [&](const SquadFeatureOptions& options) {
    return error_of([&] { SquadFeatures(examples, letter_tokenizer(), options, 1); });
  };
  EXPECT_THAT(error({.seq_length = 67, .doc_stride = 1, .max_query_length = 64}), HasSubstr("room for a context"));
  EXPECT_THAT(error({.seq_length = 68, .doc_stride = 0, .max_query_length = 64}), HasSubstr("stride"));
  EXPECT_THAT(error({.seq_length = 68, .doc_stride = 1, .max_query_length = 0}), HasSubstr("at least one token"));
  const int most = std::numeric_limits<int>::max();
  EXPECT_THAT(error({.seq_length = most, .doc_stride = 1, .max_query_length = most}), HasSubstr("room for a context"));
}

TEST(SquadExamples, AnswersAreFoundByCharactersOrCountedAsMisplaced) {
  const std::string context = "\xF0\x9F\x98\x80 \xC3\xA9 word";
  const SquadExamples read =
      parse_squad(squad_json(context, list({question_json("1", {answer_json("word", 4), answer_json("word", 5)}),
                                            question_json("2", {answer_json("\xC3\xA9", 2)})})),
                  "dev.json", SquadVersion::V1);
  ASSERT_EQ(read.questions.size(), 2u);
  EXPECT_TRUE(read.labelled);
  EXPECT_EQ(read.questions[0].answers[0].begin, 8u);
  EXPECT_EQ(read.questions[0].answers[1].begin, SquadAnswer::kNowhere);
  EXPECT_EQ(read.questions[1].answers[0].begin, 5u);
  EXPECT_EQ(read.misplaced, 1);
  const Json bare = {{"id", "3"}, {"question", "who"}};
  EXPECT_FALSE(parse_squad(squad_json("x", list({bare})), "test.json", SquadVersion::V1).labelled);
}

TEST(SquadExamples, RefuseWhatIsNoSuchFileByItsPlace) {
  const auto error = [](const std::string& text, SquadVersion version = SquadVersion::V1) {
    return error_of([&] { parse_squad(text, "x.json", version); });
  };
  EXPECT_THAT(error(""), HasSubstr("x.json: the text must be JSON"));
  EXPECT_THAT(error("\"\xFF\""), HasSubstr("x.json: the text must be JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("x.json: an object with a \"data\""));
  EXPECT_THAT(error(R"({"data": [{"paragraphs": [{"qas": []}]}]})"),
              HasSubstr("x.json: data[0]: paragraphs[0]: the object must have a \"context\""));
  const Json answer = answer_json("a", 0);
  const auto with_start = [&](const Json& start) {
    return squad_json("ab", list({question_json("1", {answer}), question_json("2", {answer_json("a", start)})}));
  };
  EXPECT_THAT(error(with_start(3)), HasSubstr("qas[1]: answers[0]: answer_start must be 0 to 2"));
  EXPECT_THAT(error(with_start(-1)), HasSubstr("answer_start must be 0 to 2"));
  EXPECT_THAT(error(with_start(1.5)), HasSubstr("must be a whole number"));
  EXPECT_THAT(error(with_start(1e300)), HasSubstr("must be a whole number"));
  EXPECT_THAT(error(squad_json("a", list({question_json("1", {answer}), question_json("1", {answer})}))),
              HasSubstr("again"));
  const std::string none = squad_json("a", list({question_json("1", {})}));
  EXPECT_THAT(error(none), HasSubstr("must have an answer"));
  EXPECT_EQ(parse_squad(none, "x.json", SquadVersion::V2).questions.size(), 1u);
  const Json bare = {{"id", "2"}, {"question", "who"}};
  EXPECT_THAT(error(squad_json("a", list({question_json("1", {answer}), bare}))), HasSubstr("all questions must have"));
}

/// What the original's code says, without any thought of speed.
struct Expected {
  std::vector<std::string> texts;
  std::vector<double> starts, ends;
  double null_odds = 0;
};

Expected original_answer(const SquadFeatures& features, std::size_t question, const std::vector<float>& starts,
                         const std::vector<float>& ends, const SpanDecodingOptions& options) {
  struct Candidate {
    std::string text;
    double start, end;
  };
  const auto [first, past] = features.windows_of(question);
  const int row = features.options().seq_length;
  const auto at = [&](const std::vector<float>& values, std::size_t w, int i) {
    return values[(w - first) * static_cast<std::size_t>(row) + static_cast<std::size_t>(i)];
  };
  const auto among_best = [&](const std::vector<float>& values, std::size_t w, int i) {
    int better = 0;
    for (int k = 0; k < row; ++k)
      better += at(values, w, k) > at(values, w, i) || (at(values, w, k) == at(values, w, i) && k < i);
    return better < options.n_best;
  };
  const bool v2 = features.examples().version == SquadVersion::V2;
  std::vector<std::tuple<double, std::size_t, double, int, double, int, Candidate>> all;
  Candidate none{"", 1e6, 0};
  for (std::size_t w = first; w < past; ++w) {
    if (at(starts, w, 0) + static_cast<double>(at(ends, w, 0)) < none.start + none.end)
      none = {"", at(starts, w, 0), at(ends, w, 0)};
    const int from = features.context_position(w), to = from + features.windows()[w].count;
    for (int s = from; s < to; ++s)
      for (int e = s; e < std::min(to, s + options.max_answer_tokens); ++e)
        if (features.has_most_context(w, s) && among_best(starts, w, s) && among_best(ends, w, e)) {
          const double start = at(starts, w, s), end = at(ends, w, e);
          // Equal sums stand in the order in which the original meets them: windows, then its lists of the best.
          all.emplace_back(-(start + end), w, -start, s, -end, e,
                           Candidate{std::string(features.answer_text(w, s, e)), start, end});
        }
  }
  if (v2) all.emplace_back(-(none.start + none.end), past, 0, 0, 0, 0, none);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    const auto key = [](const auto& t) {
      return std::tuple(std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t), std::get<4>(t), std::get<5>(t));
    };
    return key(a) < key(b);
  });
  Expected expected;
  const auto keep = [&](const Candidate& c) {
    expected.texts.push_back(c.text), expected.starts.push_back(c.start), expected.ends.push_back(c.end);
  };
  for (const auto& entry : all) {
    const Candidate& c = std::get<6>(entry);
    if (static_cast<int>(expected.texts.size()) < options.n_best &&
        std::count(expected.texts.begin(), expected.texts.end(), c.text) == 0)
      keep(c);
  }
  if (v2 && std::count(expected.texts.begin(), expected.texts.end(), "") == 0) keep(none);
  if (expected.texts.empty()) keep({"empty", 0, 0});
  expected.null_odds = v2 ? none.start + none.end : 0;
  for (std::size_t i = 0; v2 && i < expected.texts.size(); ++i)
    if (!expected.texts[i].empty()) {
      expected.null_odds -= expected.starts[i] + expected.ends[i];
      break;
    }
  return expected;
}

TEST(SpanDecoding, FindsTheAnswersOfTheOriginal) {
  std::mt19937 random(4);
  for (int round = 0; round < 150; ++round) {
    const RandomSquad squad = random_squad(random, round % 2 == 0 ? SquadVersion::V1 : SquadVersion::V2);
    const SquadFeatures features(squad.examples, letter_tokenizer(), squad.options, 1);
    const SpanDecodingOptions options{.n_best = 1 + static_cast<int>(random() % 8),
                                      .max_answer_tokens = 1 + static_cast<int>(random() % 6),
                                      .null_threshold = static_cast<double>(random() % 5) - 2};
    for (std::size_t q = 0; q < squad.examples.questions.size(); ++q) {
      const auto [begin, end] = features.windows_of(q);
      std::vector<float> starts((end - begin) * static_cast<std::size_t>(squad.options.seq_length)),
          ends(starts.size());
      for (float& value : starts) value = static_cast<float>(random() % 7) - 3;  // many are equal
      for (float& value : ends) value = static_cast<float>(random() % 7) - 3;
      const DecodedAnswer decoded = decode_spans(features, q, starts, ends, options);
      const Expected expected = original_answer(features, q, starts, ends, options);
      ASSERT_EQ(decoded.n_best.size(), expected.texts.size()) << round;
      double sum = 0;
      for (std::size_t i = 0; i < expected.texts.size(); ++i) sum += std::exp(expected.starts[i] + expected.ends[i]);
      std::string best;
      for (std::size_t i = 0; i < expected.texts.size(); ++i) {
        ASSERT_EQ(decoded.n_best[i].text, expected.texts[i]) << round;
        ASSERT_EQ(decoded.n_best[i].start_logit, expected.starts[i]);
        ASSERT_EQ(decoded.n_best[i].end_logit, expected.ends[i]);
        ASSERT_NEAR(decoded.n_best[i].probability, std::exp(expected.starts[i] + expected.ends[i]) / sum, 1e-12);
        if (best.empty()) best = expected.texts[i];
      }
      ASSERT_EQ(decoded.text, best);
      ASSERT_EQ(decoded.null_odds, expected.null_odds);
      const bool answers = squad.examples.version == SquadVersion::V1 || decoded.null_odds <= options.null_threshold;
      ASSERT_EQ(decoded.answer, answers ? best : "");
    }
  }
}

TEST(SpanDecoding, TakesWhatIsNoNumberForTheLeast) {
  SquadExamples examples;
  examples.contexts = {"abcd"};
  examples.questions = {{.id = "1", .text = "x", .context = 0, .answers = {}}};
  const SquadFeatures features(examples, letter_tokenizer(), {.seq_length = 8, .doc_stride = 4, .max_query_length = 2},
                               1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> starts = {0, 0, 0, nan, 2, nan, 1, nan}, ends = {nan, 0, 0, nan, 1, 3, 2, nan};
  EXPECT_EQ(decode_spans(features, starts, ends, {.n_best = 1})[0].answer, "bc");
  EXPECT_THROW(decode_spans(features, std::span(starts).first(7), ends, {}), std::logic_error);
  EXPECT_THAT(error_of([&] { decode_spans(features, starts, ends, {.n_best = 0}); }), HasSubstr("1 or more"));
}

TEST(PredictionFiles, OfSquadAreThoseOfTheOriginalAndReadBack) {
  SquadExamples examples{.version = SquadVersion::V2};
  examples.contexts = {"caf\xC3\xA9 \"x\""};
  for (const char* id : {"b", "a"}) examples.questions.push_back({.id = id, .text = "?", .context = 0, .answers = {}});
  std::vector<DecodedAnswer> decoded(2);
  decoded[0] = {.n_best = {{.text = "caf\xC3\xA9", .probability = 0.75, .start_logit = 1, .end_logit = 2.5}},
                .text = "caf\xC3\xA9",
                .null_odds = -1.5,
                .answer = "caf\xC3\xA9"};
  decoded[1] = {.n_best = {{.probability = 1}}, .text = "\"x\"", .null_odds = 2};
  const std::string predictions = squad_predictions(examples, decoded), odds = squad_null_odds(examples, decoded);
  EXPECT_EQ(predictions, "{\n    \"b\": \"caf\\u00e9\",\n    \"a\": \"\"\n}\n");
  EXPECT_EQ(odds, "{\n    \"b\": -1.5,\n    \"a\": 2.0\n}\n");
  EXPECT_THAT(
      squad_n_best(examples, decoded),
      HasSubstr("    \"b\": [\n        {\n            \"text\": \"caf\\u00e9\",\n            \"probability\": "
                "0.75,\n            \"start_logit\": 1.0,\n            \"end_logit\": 2.5\n        }\n    ],\n"));
  EXPECT_THAT(parse_squad_predictions(predictions, "p.json", examples).texts, testing::ElementsAre("caf\xC3\xA9", ""));
  EXPECT_THAT(parse_squad_null_odds(odds, "o.json", examples), testing::ElementsAre(-1.5, 2.0));
  EXPECT_THAT(error_of([&] { parse_squad_predictions(R"({"a": "x"})", "p.json", examples); }),
              HasSubstr("p.json: every question must have its line"));
  EXPECT_THAT(error_of([&] { parse_squad_predictions(R"({"a": 1})", "p.json", examples); }),
              HasSubstr("p.json: \"a\" must be a text"));
  EXPECT_THAT(error_of([&] { parse_squad_null_odds(R"({"a": "x"})", "o.json", examples); }),
              HasSubstr("must be a number"));
  examples.version = SquadVersion::V1;
  const SquadAnswers answers = parse_squad_predictions(R"({"a": "x", "z": 1})", "p.json", examples);
  EXPECT_THAT(answers.texts, testing::ElementsAre("", "x"));
  EXPECT_THAT(answers.found, testing::ElementsAre(false, true));
}

TEST(Squad, GoldAnswersOfThePublishedFilesAreFoundAndRight) {
  const auto folder = std::filesystem::path(unpacked_folder()) / "data";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto tokenizer = text::Tokenizer::load(folder / "bert/vocab.txt");
  for (const auto& [name, version] :
       {std::pair("dev-v1.1.json", SquadVersion::V1), std::pair("dev-v2.0.cs224n-half.json", SquadVersion::V2)}) {
    const SquadExamples examples = read_squad(folder / "squad" / name, version);
    EXPECT_EQ(examples.misplaced, 0) << name;
    std::vector<std::string_view> golds;
    for (const SquadQuestion& question : examples.questions)
      golds.emplace_back(question.answers.empty() ? std::string_view() : question.answers.back().text);
    const SquadMean mean = squad_scores(examples, match_answers(examples, golds)).all;
    // In each file one question's last answer has no word but "the": 1.1 gives two such no F1, 2.0 leaves it out.
    const double all_but_one = 100 - 100 / static_cast<double>(examples.questions.size());
    EXPECT_NEAR(mean.exact, version == SquadVersion::V1 ? 100 : all_but_one, 1e-9) << name;
    EXPECT_NEAR(mean.f1, all_but_one, 1e-9) << name;
    const SquadFeatures features(examples, tokenizer, {}, 1);
    std::vector<std::string_view> found(examples.questions.size());
    for (std::size_t w = 0; w < features.windows().size(); ++w) {
      const auto q = static_cast<std::size_t>(features.windows()[w].question);
      if (examples.questions[q].answers.empty() || !found[q].empty()) continue;
      const SpanTarget target = features.target(w, examples.questions[q].answers.back());
      if (target.start > 0) found[q] = features.answer_text(w, target.start, target.end);
    }
    // Not all: an answer may be part of a token ("30s" of "1930s").
    EXPECT_GT(squad_scores(examples, match_answers(examples, found)).all.exact, 99) << name;
    std::size_t questions = 0;
    const auto file = nlohmann::json::parse(read_file(folder / "squad" / name));
    for (const auto& article : file["data"])
      for (const auto& paragraph : article["paragraphs"]) questions += paragraph["qas"].size();
    EXPECT_EQ(examples.questions.size(), questions) << name;
  }
}

}  // namespace
}  // namespace megatron::tasks
