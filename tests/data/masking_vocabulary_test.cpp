#include "megatron/data/samples/masking_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/text/vocabulary.h"
#include "tests/data/masked_golden.h"
#include "tests/data/sentence_pair.h"
#include "tests/testing/folders.h"

namespace megatron::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

text::Tokenizer tokenizer_of(std::vector<std::string> tokens) {
  text::Vocabulary vocabulary;
  vocabulary.tokens = std::move(tokens);
  vocabulary.word_piece.emplace();
  return text::Tokenizer(std::move(vocabulary));
}

TEST(MaskingVocabulary, NamesTheTokenThatIsMissing) {
  const std::vector<std::string> all = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"};
  const MaskingVocabulary bert = bert_vocabulary(tokenizer_of(all));
  EXPECT_EQ(bert.size, 7);
  EXPECT_EQ(bert.separators, 1);
  EXPECT_EQ((std::vector{bert.pad, bert.cls, bert.sep, bert.mask}), (std::vector<std::int64_t>{0, 2, 3, 4}));
  EXPECT_EQ(bert.continues, (std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 1}));
  for (const std::size_t missing : {0, 2, 3, 4}) {
    std::vector<std::string> tokens = all;
    tokens[missing] = "other";
    EXPECT_THAT(error_of([&] { bert_vocabulary(tokenizer_of(tokens)); }),
                AllOf(HasSubstr("BERT"), HasSubstr(all[missing])));
  }
}

TEST(MaskingVocabulary, OfARobertaHasItsTokensAndCutsNoWords) {
  const MaskingVocabulary roberta =
      bert_vocabulary(tokenizer_of({"<s>", "<pad>", "</s>", "[UNK]", "<mask>", "##", "##a"}));
  EXPECT_EQ((std::vector{roberta.cls, roberta.pad, roberta.sep, roberta.mask}),
            (std::vector<std::int64_t>{0, 1, 2, 4}));
  EXPECT_EQ(roberta.separators, 2);
  EXPECT_EQ(roberta.continues, std::vector<std::uint8_t>(7, 0));
}

TEST(MaskingVocabulary, FindsSentinelsByNumberAndBeginsWithThePaddingWhereNothingElseBegins) {
  const MaskingVocabulary t5 =
      t5_vocabulary(tokenizer_of({"<pad>", "</s>", "[UNK]", "<extra_id_1>", "<extra_id_0>", "<extra_id_3>"}));
  EXPECT_EQ((std::vector{t5.pad, t5.begin, t5.end, t5.cls}), (std::vector<std::int64_t>{0, 0, 1, -1}));
  EXPECT_EQ(t5.sentinels, (std::vector<std::int64_t>{4, 3}));
  EXPECT_THAT(error_of([] {
                t5_vocabulary(tokenizer_of({"<pad>", "</s>", "[UNK]"}));
              }),
              AllOf(HasSubstr("T5"), HasSubstr("<extra_id_0>")));
  EXPECT_THAT(error_of([] { t5_vocabulary(tokenizer_of({"<pad>", "[UNK]"})); }), HasSubstr("[EOS] or </s>"));
}

TEST(MaskingVocabulary, SentinelsFollowThePiecesOfASentencePieceModelTheLastFirst) {
  const TemporaryFolder first, saved, second;
  const std::filesystem::path folder = first.path(), bare = second.path();
  std::filesystem::copy_file(tests_folder() + "/golden/tokenizers/unigram.model", folder / "spiece.model");
  std::filesystem::copy_file(tests_folder() + "/golden/tokenizers/unigram.model", bare / "spiece.model");
  const auto without = text::Tokenizer::load(folder);
  EXPECT_FALSE(without.token_to_id("<extra_id_0>"));
  const auto pieces = without.vocab_size();
  write_file(folder / "tokenizer_config.json", R"({"extra_ids": 3})");
  const auto tokenizer = text::Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.vocab_size(), pieces + 3);
  for (const std::int32_t number : {0, 1, 2})
    EXPECT_EQ(tokenizer.token_to_id(concat("<extra_id_", number, ">")), pieces + 2 - number);
  const auto before = without.encode("the man "), after = without.encode(" in the house");
  auto expected = before;
  expected.push_back(pieces + 1);
  expected.insert(expected.end(), after.begin(), after.end());
  EXPECT_EQ(tokenizer.encode("the man <extra_id_1> in the house", text::Specials::Recognised), expected);
  tokenizer.save(saved.path());
  EXPECT_EQ(text::Tokenizer::load(saved.path()).fingerprint(), tokenizer.fingerprint());
  // What says that it is a T5's.
  for (const auto& [file, object, count] :
       {std::tuple{"config.json", R"({"model_type": "t5"})", 100},
        {"config.json", R"({"model_type": "albert"})", 0},
        {"tokenizer_config.json", R"({"tokenizer_class": "T5TokenizerFast"})", 100}}) {
    write_file(bare / file, object);
    EXPECT_EQ(text::Tokenizer::load(bare).vocab_size(), pieces + count) << object;
  }
  for (const char* number : {"-1", "\"three\"", "1e9", "2000000"}) {
    write_file(folder / "tokenizer_config.json", concat("{\"extra_ids\": ", number, "}"));
    EXPECT_THAT(error_of([&] { text::Tokenizer::load(folder); }), HasSubstr("extra_ids")) << number;
  }
}

TEST(MaskingVocabulary, IsThatOfMegatronsTokenizerForItsVocabulary) {
  const std::string file = shared_folder() + "/data/bert/vocab.txt";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  const auto settings = nlohmann::json::parse(read_bytes(kOwnGolden + "t5/pretrain/case.json"));
  text::Vocabulary vocabulary = text::Tokenizer::load(file).vocabulary();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"[BOS]", "[EOS]"});
  for (int i = 0; i < settings["vocab_extra_ids"]; ++i)
    vocabulary.tokens.push_back("<extra_id_" + std::to_string(i) + ">");
  const text::Tokenizer tokenizer(vocabulary);
  const MaskingVocabulary expected = vocabulary_of(settings), bert = bert_vocabulary(tokenizer),
                          t5 = t5_vocabulary(tokenizer);
  EXPECT_EQ(bert.size, expected.size);
  EXPECT_EQ(bert.continues, expected.continues);
  EXPECT_EQ((std::vector{bert.pad, bert.cls, bert.sep, bert.mask}),
            (std::vector{expected.pad, expected.cls, expected.sep, expected.mask}));
  EXPECT_EQ((std::vector{t5.pad, t5.cls, t5.sep, t5.begin, t5.end}),
            (std::vector{expected.pad, expected.cls, expected.sep, expected.begin, expected.end}));
  EXPECT_EQ(t5.sentinels, expected.sentinels);
  EXPECT_EQ(t5.continues, expected.continues);
}

}  // namespace
}  // namespace megatron::data
