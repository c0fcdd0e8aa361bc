#include "megatron/text/learn/train_bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "megatron/base/error.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

PieceCounter count(const std::vector<std::string>& documents, int threads) {
  std::size_t next = 0;
  return count_pieces(
      [&](std::string& document) {
        if (next == documents.size()) return false;
        document = documents[next++];
        return true;
      },
      threads);
}

std::map<std::string, std::uint64_t> as_map(const PieceCounter& counter) {
  std::map<std::string, std::uint64_t> map;
  counter.for_each([&](std::string_view piece, std::uint64_t n) { map[std::string(piece)] += n; });
  return map;
}

TEST(CountPieces, CountsShortAndLongPieces) {
  const std::string longest(40, 'x');
  EXPECT_EQ(as_map(count({"to be or", " not to be " + longest, longest + " be"}, 1)),
            (std::map<std::string, std::uint64_t>{
                {"to", 1}, {" be", 3}, {" or", 1}, {" not", 1}, {" to", 1}, {" " + longest, 1}, {longest, 1}}));
}

TEST(CountPieces, DoesNotDependOnTheNumberOfThreads) {
  std::vector<std::string> documents;
  for (int i = 0; i < 3000; ++i) documents.push_back(concat("piece ", i, " and ", i % 7, std::string(20, 'y'), i % 11));
  const auto expected = as_map(count(documents, 1));
  EXPECT_GT(expected.size(), 3000u);
  for (const int threads : {2, 5}) EXPECT_EQ(as_map(count(documents, threads)), expected);
}

TEST(CountPieces, PassesOnAnErrorOfTheSource) {
  for (const int threads : {1, 3})
    EXPECT_THROW(count_pieces([](std::string&) -> bool { throw ConfigError("damaged"); }, threads), ConfigError);
}

TEST(TrainBpe, LearnsWhatHuggingFaceLearns) {
  const Vocabulary learned =
      train_bpe(count({read_file(golden_folder() / "train.txt")}, 2), {.vocab_size = 1200, .min_frequency = 2});
  const Vocabulary golden = Tokenizer::load(golden_folder()).vocabulary();
  EXPECT_EQ(learned.tokens, golden.tokens);
  EXPECT_EQ(learned.merges, golden.merges);
  EXPECT_EQ(Tokenizer(learned).fingerprint(), Tokenizer(golden).fingerprint());
}

TEST(TrainBpe, MergesTheMostFrequentPairAndOfEqualsTheSmallestIds) {
  // Twice "ab" and twice "cd": "ab" has the smaller ids and goes first, although the text has "cd" first.
  const Vocabulary learned = train_bpe(count({"cd", "cd", "ab", "ab"}, 1), {.vocab_size = 259, .specials = {}});
  EXPECT_EQ(learned.tokens[256], "ab");
  EXPECT_EQ(learned.tokens[257], "cd");
  EXPECT_EQ(learned.tokens.size(), 258u) << "no other pair occurs twice";
}

TEST(TrainBpe, CountsOverlappingPairsOnce) {
  const Vocabulary learned =
      train_bpe(count({"aaaaa", "aaaaa", "aaaaa"}, 1), {.vocab_size = 300, .min_frequency = 3, .specials = {}});
  const std::vector<std::string> merged(learned.tokens.begin() + 256, learned.tokens.end());
  EXPECT_EQ(merged, (std::vector<std::string>{"aa", "aaa", "aaaaa"}));
}

TEST(TrainBpe, StopsAtTheVocabularyAndAtTheFrequencyAskedFor) {
  const PieceCounter pieces = count({read_file(golden_folder() / "train.txt")}, 1);
  EXPECT_EQ(train_bpe(pieces, {.vocab_size = 257}).merges.size(), 0u);
  EXPECT_EQ(train_bpe(pieces, {.vocab_size = 300}).tokens.size(), 300u);
  const std::size_t often = train_bpe(pieces, {.vocab_size = 100000, .min_frequency = 50}).tokens.size();
  const std::size_t rarely = train_bpe(pieces, {.vocab_size = 100000, .min_frequency = 5}).tokens.size();
  EXPECT_LT(often, rarely);
  EXPECT_LT(rarely, 100000u);
}

TEST(TrainBpe, GivesSpecialTokensTheFirstIds) {
  const Vocabulary learned = train_bpe(count({"ab ab"}, 1), {.vocab_size = 260, .specials = {"<b>", "<a>"}});
  EXPECT_EQ(learned.tokens[0], "<b>");
  EXPECT_EQ(learned.tokens[1], "<a>");
  EXPECT_EQ(learned.specials.size(), 2u);
  EXPECT_EQ(learned.tokens[2], "!");
}

TEST(TrainBpe, RefusesAVocabularyWithoutRoomForTheBytes) {
  EXPECT_THAT([] { train_bpe(PieceCounter(), {.vocab_size = 256}); },
              testing::ThrowsMessage<ConfigError>(testing::HasSubstr("--vocab-size 257 or more")));
}

TEST(TrainBpe, RefusesSpecialTokensThatNoFileCouldHold) {
  const std::vector<std::vector<std::string>> refused = {
      {""}, {"a"}, {"<\xFF>"}, {"\xC3"}, {"<\xED\xA0\x80>"}, {"<a>", "<b>", "<a>"}};
  for (const auto& specials : refused)
    EXPECT_THROW(train_bpe(PieceCounter(), {.vocab_size = 1000, .specials = specials}), ConfigError) << specials[0];
  EXPECT_EQ(train_bpe(PieceCounter(), {.vocab_size = 1000, .specials = {"ä"}}).tokens[0], "ä");
}

}  // namespace
}  // namespace megatron::text
