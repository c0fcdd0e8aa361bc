#include "megatron/text/learn/train_unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include "megatron/base/error.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::function<bool(std::string&)> documents(std::vector<std::string> texts) {
  return [texts = std::move(texts), next = std::size_t{0}](std::string& document) mutable {
    if (next == texts.size()) return false;
    document = texts[next++];
    return true;
  };
}

TEST(TrainUnigram, GivesAModelThatTheLibraryReads) {
  const std::string text = read_file(golden_folder() / "train.txt");
  const TrainOptions options{.vocab_size = 500, .specials = {"<|endoftext|>", "<a,\"b\">"}};
  const std::string model = train_unigram(documents({text}), options);
  EXPECT_EQ(train_unigram(documents({text}), options), model) << "another model from the same text";
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.LoadFromSerializedProto(model).ok());
  EXPECT_EQ(processor.GetPieceSize(), 500);
  const std::vector<std::string> first = {"<unk>", "<s>", "</s>", "<|endoftext|>", "<a,\"b\">"};
  for (int id = 0; id < 5; ++id) EXPECT_EQ(processor.IdToPiece(id), first[static_cast<std::size_t>(id)]);
  EXPECT_TRUE(processor.IsControl(3));
  std::string back;
  ASSERT_TRUE(processor.Decode(processor.EncodeAsIds("before we proceed"), &back).ok());
  EXPECT_EQ(back, "before we proceed");
}

TEST(TrainUnigram, LearnsFromLinesLongerThanTheLibraryTakes) {
  // One line of 20,000 bytes without a space, and one with them; the library alone would leave both out.
  std::string blanks, none;
  while (blanks.size() < 20000) blanks += "öfter bald ";
  while (none.size() < 20000) none += "日本語";
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(
      processor.LoadFromSerializedProto(train_unigram(documents({blanks + "\n" + none}), {.vocab_size = 20})).ok());
  for (const char* word : {"öfter bald", "日本語"})
    for (const int id : processor.EncodeAsIds(word)) EXPECT_FALSE(processor.IsUnknown(id)) << word;
}

TEST(TrainUnigram, RefusesWhatTheLibraryCannotLearn) {
  EXPECT_THAT([] { train_unigram(documents({"a few words"}), {.vocab_size = 5000}); },
              ThrowsMessage<ConfigError>(HasSubstr("Vocabulary size too high")));
  EXPECT_THAT(
      [] {
        train_unigram(documents({"", "\n\n"}), {.vocab_size = 100});
      },
      ThrowsMessage<ConfigError>(HasSubstr("must hold text")));
  // The library would end the program.
  for (const char* blank : {"   \n\n \t", "\x01\x7F", "\u3000\u200B", "\u2581 \uFFFD", "\xFF\xFE"})
    EXPECT_THAT([&] { train_unigram(documents({blank}), {.vocab_size = 300}); },
                ThrowsMessage<ConfigError>(HasSubstr("must hold text")))
        << blank;
  EXPECT_THROW(train_unigram(documents({"text"}), {.vocab_size = 3}), ConfigError);
}

TEST(TrainUnigram, PassesOnAnErrorOfTheSource) {
  int calls = 0;
  const auto source = [&](std::string& document) {
    document = "some text";
    if (++calls > 3) throw std::runtime_error("damaged");
    return true;
  };
  EXPECT_THAT([&] { train_unigram(source, {.vocab_size = 20}); },
              ThrowsMessage<std::runtime_error>(HasSubstr("damaged")));
}

}  // namespace
}  // namespace megatron::text
