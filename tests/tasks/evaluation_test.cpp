#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <random>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/tasks/eval_texts.h"
#include "megatron/tasks/published/choice.h"
#include "megatron/tasks/published/lambada.h"
#include "megatron/tasks/published/wikitext.h"
#include "megatron/tasks/scores/eval_scores.h"
#include "megatron/tasks/windows.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::tasks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

/// What a ConfigError says; "" where none is thrown.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string shared_file(const std::string& name) { return unpacked_folder() + "/data/" + name; }

TEST(Windows, FollowOneAnotherOrOverlapAndScoreEachTokenOnce) {
  EXPECT_THAT(windows(10, 4, 4), ElementsAre(Window{0, 4, 1}, Window{4, 4, 5}, Window{8, 2, 9}));
  EXPECT_THAT(windows(9, 4, 4), ElementsAre(Window{0, 4, 1}, Window{4, 4, 5}));  // the last token has nothing before it
  EXPECT_THAT(windows(9, 4, 2), ElementsAre(Window{0, 4, 1}, Window{2, 4, 4}, Window{4, 4, 6}, Window{6, 3, 8}));
  EXPECT_THAT(windows(3, 8, 2), ElementsAre(Window{0, 3, 1}));
  for (std::int64_t tokens : {2, 6, 7, 57})
    for (std::int64_t stride = 1; stride < 6; ++stride) {
      std::vector<int> times(static_cast<std::size_t>(tokens), 0);
      for (const Window& window : windows(tokens, 6, stride)) {
        EXPECT_LE(window.size, 6);
        for (std::int64_t t = window.first_scored; t < window.begin + window.size; ++t) {
          ++times[static_cast<std::size_t>(t)];
          EXPECT_GE(t - window.begin, std::min<std::int64_t>(t, 6 - stride)) << "too little before " << t;
        }
      }
      EXPECT_EQ(times.front(), 0);
      EXPECT_THAT(std::vector<int>(times.begin() + 1, times.end()), ::testing::Each(1)) << tokens << " " << stride;
    }
}

TEST(Windows, RefuseWhatScoresNothing) {
  EXPECT_THROW(windows(10, 1, 1), ConfigError);
  EXPECT_THROW(windows(10, 4, 5), ConfigError);
  EXPECT_THROW(windows(10, 4, 0), ConfigError);
  EXPECT_THROW(windows(1, 4, 4), ConfigError);
}

TEST(WindowBatches, HaveEachWindowOnceAndHoldWhatIsAskedFor) {
  std::mt19937 random(5);
  std::vector<Window> some(40);
  for (Window& window : some) window.size = 2 + static_cast<std::int64_t>(random() % 30);
  const auto check = [&](std::int64_t most, std::int64_t tokens, const auto& holds) {
    std::vector<int> times(some.size(), 0);
    std::int64_t padded = 0;
    for (const WindowBatch& batch : window_batches(some, most, tokens)) {
      std::int64_t longest = 0;
      for (const std::int64_t i : batch.windows) {
        ++times[static_cast<std::size_t>(i)];
        longest = std::max(longest, some[static_cast<std::size_t>(i)].size);
        padded += batch.size - some[static_cast<std::size_t>(i)].size;
      }
      EXPECT_EQ(batch.size, longest);
      EXPECT_TRUE(holds(batch)) << batch.windows.size() << " of " << batch.size;
    }
    EXPECT_THAT(times, ::testing::Each(1));
    EXPECT_LE(padded, 40 * 4) << "neighbours in size belong together";
  };
  check(7, 0, [](const WindowBatch& batch) { return batch.windows.size() <= 7; });
  check(1, 1000, [](const WindowBatch& batch) { return batch.windows.size() == 1; });
  check(0, 100, [](const WindowBatch& batch) {
    const auto rows = static_cast<std::int64_t>(batch.windows.size());
    return rows * batch.size <= 100;
  });
  check(0, 0, [](const WindowBatch& batch) { return batch.windows.size() == 1; });
  const auto equal = window_batches(windows(1000, 100, 50), 4, 0);
  EXPECT_THAT(equal.front().windows, ElementsAre(0, 1, 2, 3));
}

TEST(LossEstimate, IsTheMeanATokenWithTheErrorOfARatio) {
  const std::vector<Window> cut{{0, 5, 1}, {5, 3, 6}, {8, 9, 9}};  // 4, 2 and 8 tokens
  const std::vector<WindowScore> scores{{8, false}, {6, false}, {14, false}};
  const auto loss = loss_estimate(cut, scores);
  EXPECT_DOUBLE_EQ(loss.nll, 28);
  EXPECT_EQ(loss.scored_tokens, 14);
  EXPECT_DOUBLE_EQ(loss.mean, 2);
  EXPECT_DOUBLE_EQ(loss.standard_error, std::sqrt(1.5 * (0 + 4 + 4)) / 14);  // off by 0, 2, -2
  EXPECT_DOUBLE_EQ(loss.high() - loss.low(), 2 * 1.96 * loss.standard_error);
  EXPECT_TRUE(std::isnan(loss_estimate({cut[0]}, std::vector<WindowScore>{scores[0]}).standard_error));
}

TEST(LossEstimate, HoldsTheTrueMeanAboutAsOftenAsItSays) {
  std::mt19937 random(11);
  std::normal_distribution<double> noise(3, 1);
  int inside = 0;
  for (int repeat = 0; repeat < 1000; ++repeat) {
    std::vector<Window> cut(60);
    std::vector<WindowScore> scores(60);
    for (std::size_t i = 0; i < cut.size(); ++i) {
      cut[i].size = 1 + static_cast<std::int64_t>(random() % 9);
      for (std::int64_t t = 0; t < cut[i].size; ++t) scores[i].nll += noise(random);
    }
    const auto loss = loss_estimate(cut, scores);
    inside += loss.low() <= 3 && 3 <= loss.high() ? 1 : 0;
  }
  EXPECT_NEAR(inside, 945, 20);
}

TEST(LikeliestAnswer, DependsOnWhatItsLikelihoodIsDividedBy) {
  const std::vector<AnswerScore> answers{{6, 2, 12}, {8, 4, 10}, {5, 1, 5}};
  EXPECT_EQ(likeliest_answer(answers, Normalization::Sum), 2U);
  EXPECT_EQ(likeliest_answer(answers, Normalization::Token), 1U);
  EXPECT_EQ(likeliest_answer(answers, Normalization::Byte), 0U);
  EXPECT_EQ(likeliest_answer(std::vector<AnswerScore>{{4, 2, 2}, {2, 1, 1}}, Normalization::Token), 0U);
  EXPECT_EQ(likeliest_answer(std::vector<AnswerScore>{{std::nan(""), 1, 1}, {900, 1, 1}}, Normalization::Sum), 1U);
  EXPECT_DOUBLE_EQ(standard_error_of_share(0.5, 26), 0.1);
}

TEST(CountWords, HasThePapersNumberForWikiText103) {
  EXPECT_EQ(count_words(" \n = A b = \n \n c .\n", WordCount::WhiteSpace), 6);
  EXPECT_EQ(count_words(" \n = A b = \n \n c .\n", WordCount::Paper), 8);  // =, A, b, =, "\n", "\n", c, "."
  EXPECT_EQ(count_words("a  b", WordCount::Paper), 3);
  const auto file = whole_data("wikitext/wikitext-103.wiki.test.tokens");
  if (file.empty()) GTEST_SKIP() << "needs whole data: MEGATRON_TEST_DATA is not set";
  const auto text = read_file(file);
  EXPECT_EQ(count_words(text, WordCount::Paper), 245566);
  EXPECT_EQ(count_words(text, WordCount::WhiteSpace), 241211);
}

TEST(Wikitext, HasThePapersNumberOfTokensOnlyInThePapersWay) {
  const auto file = whole_data("wikitext/wikitext-103.wiki.test.tokens");
  if (file.empty()) GTEST_SKIP() << "needs whole data: MEGATRON_TEST_DATA is not set";
  const auto tokenizer = text::Tokenizer::load(shared_file("gpt2"));
  const auto raw = read_file(file);
  const auto paper = wikitext(raw, false, true), undone = wikitext(raw, true, false),
             as_is = wikitext(raw, false, false);
  EXPECT_EQ(tokenizer.encode(paper.text).size(), 270329U);
  EXPECT_EQ(paper.words, 245566);
  EXPECT_TRUE(undone.text.starts_with("\n= Robert Boulter =\n"));
  EXPECT_EQ(undone.words, 245566);
  EXPECT_EQ(as_is.text, raw);
  EXPECT_EQ(as_is.words, 241211);
}

TEST(Lambada, SplitsAtTheLastBlank) {
  const auto passage = split_last_word("he said  \"no signs");
  EXPECT_EQ(passage.context, "he said  \"no");
  EXPECT_EQ(passage.last_word, " signs");
  for (const char* wrong : {"", "word", " word", "ends in one "})
    EXPECT_THROW(split_last_word(wrong), ConfigError) << wrong;
  EXPECT_THROW(lambada_format_of("json"), ConfigError);
}

TEST(Lambada, IsReadInBothFormats) {
  const TemporaryFolder folder;
  const std::string lines = folder.path() / "a.jsonl", plain = folder.path() / "a.txt";
  write_file(lines, "{\"text\": \"A b.\\n\\n\\\"C d\"}\n{\"x\": 1, \"text\": \"e f\"}\n");
  write_file(plain, "a b c\nd e\n");
  const auto first = read_lambada(lines, data::TextFormat::Jsonl, 0);
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0].context, "A b.\n\n\"C");
  EXPECT_EQ(first[1].last_word, " f");
  EXPECT_EQ(read_lambada(plain, data::TextFormat::Lines, 0)[0].context, "a b");
  EXPECT_THAT(read_lambada(plain, data::TextFormat::Lines, 1), SizeIs(1));
  write_file(plain, "a b\nword\n");
  EXPECT_THAT(error_of([&] { read_lambada(plain, data::TextFormat::Lines, 0); }), HasSubstr("a.txt, passage 2: "));
  EXPECT_THAT(error_of([&] { read_lambada(plain, data::TextFormat::Jsonl, 0); }), HasSubstr("a.txt"));
  write_file(plain, "");
  EXPECT_THROW(read_lambada(plain, data::TextFormat::Lines, 0), ConfigError);
}

TEST(Choice, ReadsQuestions) {
  EXPECT_EQ(parse_choice(R"({"context": "a", "choices": ["b", "c"], "label": 1, "more": [2]})"),
            (ChoiceQuestion{"a", {"b", "c"}, 1}));
  EXPECT_EQ(parse_choice(R"({"context": "", "choices": ["b", "c"], "label": "0"})").label, 0);
  const TemporaryFolder folder;
  const std::string file = folder.path() / "q.jsonl";
  const std::string line = "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 1}\n";
  write_file(file, line + "\n" + line);
  EXPECT_THAT(read_choices(file, 0), SizeIs(2));
  EXPECT_THAT(read_choices(file, 1), SizeIs(1));
  write_file(file, line + "\n[1]\n");
  EXPECT_THAT(error_of([&] { read_choices(file, 0); }), HasSubstr("q.jsonl, line 3: "));
  EXPECT_NO_THROW(read_choices(file, 1));
}

TEST(Choice, RefusesWhatIsNoQuestion) {
  for (const char* wrong :
       {"", "[]", "{", "{\"context\": \"a\"", R"({"context": "a", "choices": ["b", "c"]})",
        R"({"choices": ["b", "c"], "label": 0})", R"({"context": "a", "label": 0})",
        R"({"context": 1, "choices": ["b", "c"], "label": 0})", R"({"context": "a", "choices": "bc", "label": 0})",
        R"({"context": "a", "choices": ["b"], "label": 0})", R"({"context": "a", "choices": ["b", ""], "label": 0})",
        R"({"context": "a", "choices": ["b", 2], "label": 0})",
        R"({"context": "a", "choices": ["b", "c"], "label": 2})",
        R"({"context": "a", "choices": ["b", "c"], "label": -1})",
        R"({"context": "a", "choices": ["b", "c"], "label": 1.5})",
        R"({"context": "a", "choices": ["b", "c"], "label": "1x"})",
        R"({"context": "a", "choices": ["b", "c"], "label": 18446744073709551615})",
        "{\"context\": \"\xff\", \"choices\": [\"b\", \"c\"], \"label\": 0}"})
    EXPECT_THROW(parse_choice(wrong), ConfigError) << wrong;
}

TEST(Choice, PutsABlankBetweenWhereThereIsNone) {
  const auto parts = [](const char* context, const char* choice) {
    const auto made = continuation(context, choice);
    return made.context + "|" + made.answer;
  };
  EXPECT_EQ(parts("a b", "c"), "a b| c");
  EXPECT_EQ(parts("a b", " c"), "a b| c");
  EXPECT_EQ(parts("a b ", "c"), "a b| c");
  EXPECT_EQ(parts("a b\n", "c"), "a b|\nc");
}

TEST(EvalTexts, ScoreWhatTheBeginningAloneHasNot) {
  if (!std::filesystem::exists(shared_file("gpt2"))) GTEST_SKIP() << "GPT-2's vocabulary is not there";
  const auto tokenizer = text::Tokenizer::load(shared_file("gpt2"));
  EvalTexts texts(tokenizer.encoder(), 5);
  texts.add("one two", " three");
  texts.add("the in", "side out");  // " inside" is one token, of which "the in" has nothing
  EXPECT_THAT(texts.ids(), ElementsAre(505, 734, 1115, 1169, 2641, 503));
  EXPECT_THAT(texts.windows(), ElementsAre(Window{0, 3, 2}, Window{3, 3, 4}));
  EXPECT_EQ(texts.shortened(), 0);
  texts.add("one two three four five six", " seven eight");
  EXPECT_THAT(texts.windows().back(), (Window{6, 5, 9}));
  EXPECT_EQ(texts.ids()[6], 1440) << "\"four\" is the first that is left";
  EXPECT_EQ(texts.shortened(), 1);
  EXPECT_THROW(texts.add("", "one"), ConfigError);
  EXPECT_THROW(texts.add("in", "side out"), ConfigError);  // nothing before "inside"
  EXPECT_THROW(texts.add("one", ""), ConfigError);
  EXPECT_THROW(texts.add("a", " b c d e f"), ConfigError);
  EXPECT_THAT(texts.windows(), SizeIs(3)) << "what is refused adds nothing";
}

}  // namespace
}  // namespace megatron::tasks
