#include "megatron/serve/answer_text.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/text/texts.h"
#include "megatron/text/vocabulary.h"
#include "tests/testing/folders.h"

namespace megatron::serve {
namespace {

TEST(StopSequences, LetTheTextBeforeTheFirstOfThemThroughHoweverItComes) {
  std::mt19937 random(3);
  const auto drawn = [&](std::size_t most) {
    std::string text(1 + random() % most, ' ');
    for (char& c : text) c = "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::string text = drawn(30);
    std::vector<std::string> stops;
    for (std::size_t i = random() % 4; i > 0; --i) stops.push_back(drawn(4));
    // Where the earliest ends first: what is there then is judged.
    std::string expected = text;
    bool stopped = false;
    for (std::size_t end = 1; end <= text.size() && !stopped; ++end)
      for (const std::string& stop : stops)
        if (text.substr(0, end).ends_with(stop) && (!stopped || end - stop.size() < expected.size())) {
          expected = text.substr(0, end - stop.size());
          stopped = true;
        }
    StopSequences sequences(stops);
    std::string got;
    for (std::size_t at = 0; at < text.size();) {
      const std::string piece = text.substr(at, random() % 5);
      at += piece.size();
      got += sequences.push(piece);
      EXPECT_TRUE(text.starts_with(got));
    }
    got += sequences.finish();
    EXPECT_EQ(got, expected) << text << " stops at " << ::testing::PrintToString(stops);
    EXPECT_EQ(sequences.stopped(), stopped);
  }
}

TEST(StopSequences, HoldBackNoMoreThanMayBeOne) {
  StopSequences sequences({"\n\n", "END"});
  EXPECT_EQ(sequences.push("one\n"), "one");
  EXPECT_EQ(sequences.push("two EN"), "\ntwo ");
  EXPECT_EQ(sequences.push("J"), "ENJ");
  EXPECT_EQ(sequences.push("\n\nthree"), "");
  EXPECT_TRUE(sequences.stopped());
  EXPECT_EQ(sequences.push("more") + sequences.finish(), "");
}

text::Tokenizer bytes() {
  text::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  return text::Tokenizer(vocabulary);
}

TEST(AnswerText, GivesWholeCharactersAndNoEnds) {
  AnswerText text(bytes(), {'a', 0xE2}, {0}, {});
  EXPECT_EQ(text.push(0x82), "");
  EXPECT_EQ(text.push(0xAC), "\xE2\x82\xAC");  // which the prompt began
  EXPECT_EQ(text.push(0), "");
  EXPECT_EQ(text.push(999), "");  // of no text
  EXPECT_EQ(text.push('b'), "b");
  EXPECT_EQ(text.push(0xE2), "");
  EXPECT_EQ(text.finish(), "\xE2");
}

TEST(AnswerText, KnowsWhereEachTokenBegins) {
  AnswerText text(bytes(), {'x', 0xE2}, {0}, {});
  std::string whole;
  const auto begins = [&](std::int64_t token) {
    whole += text.push(token);
    return text.offset();
  };
  EXPECT_EQ(begins(0x82), 0);
  EXPECT_EQ(begins(0xAC), 0);
  EXPECT_EQ(begins('a'), 1);
  EXPECT_EQ(begins(0), 2);  // an end has no text
  EXPECT_EQ(begins(0xC3), 2);
  EXPECT_EQ(begins(0xA4), 2);
  EXPECT_EQ(begins('b'), 3);
  EXPECT_EQ(whole, "€aäb");
  AnswerText passed(bytes(), {}, {'e'}, {"b"});
  EXPECT_EQ(passed.pass('e') + passed.pass('b'), "eb");
  EXPECT_EQ(passed.offset(), 1);
  EXPECT_EQ(passed.push('c'), "c");
  EXPECT_EQ(passed.offset(), 2);
}

TEST(AnswerText, CountsBytesThatAreNoCharacterAsJsonWritesThem) {
  text::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  vocabulary.tokens.emplace_back("ab\xE2");
  const text::Tokenizer tokenizer(vocabulary);
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    AnswerText text(tokenizer, {'x'}, {}, {});
    std::vector<std::int64_t> tokens, offsets;
    for (int i = 0; i < 8; ++i) {
      tokens.push_back(
          std::vector<std::int64_t>{'a', 'b', 0xE2, 0x82, 0xAC, 0xFF, 0xF0, 0x9F, 0xC3, 256}[random() % 10]);
      text.push(tokens.back());
      offsets.push_back(text.offset());
    }
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      // A token that begins a character itself stands behind all that was before it.
      if (tokens[i] >= 0x80 && tokens[i] < 0xC0) continue;
      std::string before;
      for (std::size_t k = 0; k < i; ++k) before += vocabulary.tokens[static_cast<std::size_t>(tokens[k])];
      const std::string json = nlohmann::json(before).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      const auto characters = std::ranges::count_if(json, [](char c) { return (c & 0xC0) != 0x80; }) - 2;
      EXPECT_EQ(offsets[i], characters) << ::testing::PrintToString(tokens) << " at " << i;
    }
  }
}

/// The three bytes of a euro sign, and two letters behind it: each token's offset, whatever the prompt is.
void expect_euro_and_letters(const std::vector<std::int64_t>& prompt) {
  text::Vocabulary vocabulary;
  vocabulary.tokens = {"<0xE2>", "<0x82>", "<0xAC>", "a"};
  vocabulary.characters.emplace();
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->decoders = {text::decoder::ByteFallback(), text::decoder::Fuse()};
  AnswerText text(text::Tokenizer(vocabulary), prompt, {}, {});
  std::string whole;
  std::vector<std::int64_t> offsets;
  for (const std::int64_t token : {0, 1, 2, 3, 3}) {
    whole += text.push(token);
    offsets.push_back(text.offset());
  }
  EXPECT_EQ(whole, "€aa");
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 0, 0, 1, 2}));
}

TEST(AnswerText, KnowsWhereATokenBeginsThatMakesBytesBeforeItCertain) { expect_euro_and_letters({}); }

TEST(AnswerText, KnowsWhereTokensOfWordsWithASuffixBegin) {
  text::Vocabulary vocabulary;
  vocabulary.tokens = {"a</w>", "un", "dog</w>", "<end>"};
  vocabulary.characters.emplace().suffix = "</w>";
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->decoders = {text::decoder::BpeSuffix()};
  const text::Tokenizer tokenizer(vocabulary);
  std::string whole;
  std::vector<std::int64_t> offsets;
  const auto answer = [&](const std::vector<std::int64_t>& prompt, const std::vector<std::int64_t>& tokens) {
    AnswerText text(tokenizer, prompt, {3}, {});
    whole.clear();
    offsets.clear();
    for (const std::int64_t token : tokens) {
      whole += text.push(token);
      offsets.push_back(text.offset());
    }
    whole += text.finish();
  };
  answer({}, {0, 1, 2, 2, 3});
  EXPECT_EQ(whole, "a undog dog");
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 2, 4, 8, 11}));
  answer({0, 2}, {1, 2, 3});  // "a dog" is the prompt's
  EXPECT_EQ(whole, " undog");
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{1, 3, 6}));
  answer({0, 2}, {3});
  EXPECT_EQ(whole, "");
  EXPECT_EQ(offsets, std::vector<std::int64_t>{0});
}

TEST(AnswerText, BeginsBehindBytesOfThePromptThatTheFirstTokenMakesCertain) { expect_euro_and_letters({3, 0, 1, 2}); }

TEST(AnswerText, IsWhatTokensAddToTheDecodedPromptWhereverTheyMeet) {
  const std::filesystem::path goldens = std::filesystem::path(tests_folder()) / "golden/tokenizers";
  const auto files = nlohmann::json::parse(read_file(goldens / "cases.json"));
  std::size_t tried = 0;
  for (const char* file :
       {"clip.json", "bert.json", "llama.json", "bpe.model", "unigram.model", "t5.json", "qwen.json"}) {
    const auto tokenizer = text::Tokenizer::load(goldens / file);
    for (const auto& golden : files.at(file)) {
      const std::vector<std::int32_t> ids = golden["ids"];
      for (std::size_t cut = 0; cut <= ids.size(); ++cut, ++tried) {
        const std::span<const std::int32_t> prompt = std::span(ids).first(cut), added = std::span(ids).subspan(cut);
        AnswerText text(tokenizer, {prompt.begin(), prompt.end()}, {}, {});
        std::string got;
        for (const std::int32_t token : added) got += text.push(token);
        got += text.finish();
        ASSERT_EQ(got, text::text_after(tokenizer, prompt, added)) << file << " at " << cut;
      }
    }
  }
  EXPECT_GT(tried, 300u);
}

TEST(AnswerText, EndsAtAStopSequenceThatTokensShare) {
  AnswerText text(bytes(), {'a'}, {}, {"xy"});
  EXPECT_EQ(text.push('b'), "b");
  EXPECT_EQ(text.push('x'), "");
  EXPECT_FALSE(text.stopped());
  EXPECT_EQ(text.push('y'), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.finish(), "");
}

}  // namespace
}  // namespace megatron::serve
