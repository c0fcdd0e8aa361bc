#include "megatron/text/texts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "megatron/base/files/file.h"
#include "megatron/text/vocabulary.h"
#include "tests/testing/folders.h"

namespace megatron::text {
namespace {

std::filesystem::path goldens() { return std::filesystem::path(tests_folder()) / "golden/tokenizers"; }

TEST(Texts, OfAPromptAndItsAnswerAreTheDecodedWholeWhereverTheyMeet) {
  const auto files = nlohmann::json::parse(read_file(goldens() / "cases.json"));
  std::size_t tried = 0;
  for (const char* file : {"llama.json", "bpe.model", "unigram.model", "t5.json", "qwen.json"}) {
    const auto tokenizer = Tokenizer::load(goldens() / file);
    for (const auto& golden : files.at(file)) {
      const std::vector<std::int32_t> ids = golden["ids"];
      for (std::size_t cut = 0; cut <= ids.size(); ++cut, ++tried) {
        const std::span<const std::int32_t> all(ids);
        const std::string whole = golden["decoded"], after = text_after(tokenizer, all.first(cut), all.subspan(cut));
        ASSERT_TRUE(whole.ends_with(after)) << file << " at " << cut << ": " << after;
        // A prompt that ends between characters and the rest are the whole.
        const std::string before = tokenizer.decode(all.first(cut));
        if (whole.starts_with(before) && (static_cast<unsigned char>(whole[before.size()]) & 0xC0) != 0x80) {
          EXPECT_EQ(before + after, whole) << file << " at " << cut;
        }
      }
    }
  }
  EXPECT_GT(tried, 300u);
}

TEST(Texts, BeginWithAByteThatBelongsToNoCharacterBehindAWholeOne) {
  Vocabulary vocabulary;
  for (const char* bytes : {"\xc3", "\xa9", "\x80", "a", "\xc3\xa9"}) vocabulary.tokens.emplace_back(bytes);
  const Tokenizer tokenizer(vocabulary);
  using Ids = std::vector<std::int32_t>;
  const auto after = [&](const Ids& prompt, const Ids& added) { return text_after(tokenizer, prompt, added); };
  EXPECT_EQ(after({4}, {2, 3}),
            "\x80"
            "a");
  EXPECT_EQ(after({3, 0, 1}, {1}), "\xa9");
  EXPECT_EQ(after({3}, {2}), "\x80");
  EXPECT_EQ(after({3, 0}, {1, 3}),
            "\xc3\xa9"
            "a")
      << "a character that the prompt began";
}

TEST(Texts, KeepTheBlankBetweenPromptAndAnswer) {
  for (const char* file : {"llama.json", "bpe.model", "bert.json"}) {
    const auto tokenizer = Tokenizer::load(goldens() / file);
    const auto prompt = tokenizer.encode("the"), both = tokenizer.encode("the and");
    ASSERT_TRUE(std::equal(prompt.begin(), prompt.end(), both.begin())) << file;
    const auto added = std::span<const std::int32_t>(both).subspan(prompt.size());
    EXPECT_EQ(text_after(tokenizer, prompt, added), " and") << file;
    EXPECT_EQ(text_after(tokenizer, {}, prompt), "the") << file;
    EXPECT_EQ(text_after(tokenizer, prompt, {}), "") << file;
  }
}

TEST(Texts, OpenWithWhatTheTemplateSetsBeforeThem) {
  Vocabulary vocabulary;
  vocabulary.tokens = {"<s>", "<t>", "a", "</s>"};
  using Kind = Template::Kind;
  const auto opening = [&](std::vector<Template::Item> items, std::vector<std::int32_t> ids) {
    vocabulary.frame.single = std::move(items);
    return opening_of(Tokenizer(vocabulary), ids);
  };
  using Ids = std::vector<std::int32_t>;
  const Template::Item s{Kind::Token, 0, 0}, t{Kind::Token, 1, 0}, text{Kind::First, 0, 0}, end{Kind::Token, 3, 0};
  EXPECT_EQ(opening({}, {2}), Ids());
  EXPECT_EQ(opening({text, end}, {2}), Ids());
  EXPECT_EQ(opening({s, text, end}, {2}), Ids{0});
  EXPECT_EQ(opening({s, text}, {}), Ids{0});
  EXPECT_EQ(opening({s, text}, {0, 2}), Ids());
  EXPECT_EQ(opening({s, t, text}, {0, 2}), (Ids{0, 1}));
  EXPECT_EQ(opening({s, t, text}, {0, 1, 2}), Ids());
}

TEST(Texts, AreWholeCharactersWhereThePromptEndsInsideOne) {
  const auto tokenizer = Tokenizer::load(goldens() / "qwen.json");
  const auto smile = tokenizer.encode("\xF0\x9F\x98\x80");
  ASSERT_GT(smile.size(), 1u);
  const std::span<const std::int32_t> ids(smile);
  EXPECT_EQ(text_after(tokenizer, ids.first(1), ids.subspan(1)), "\xF0\x9F\x98\x80");
}

TEST(Texts, HaveNothingOfEndsAndOfIdsBeyondTheTokenizer) {
  const auto tokenizer = Tokenizer::load(goldens() / "llama.json");
  const std::vector<std::int64_t> ids = {3, 1, tokenizer.vocab_size(), 2, -1, tokenizer.vocab_size() - 1}, ends = {1};
  EXPECT_EQ(ids_with_text(tokenizer, ids, ends), (std::vector<std::int32_t>{3, 2, tokenizer.vocab_size() - 1}));
}

}  // namespace
}  // namespace megatron::text
