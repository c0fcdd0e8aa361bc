#include "megatron/text/learn/train_word_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "megatron/base/error.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

PieceCounter count(const std::vector<std::string>& documents, const BertNormalization& normalization = {},
                   int threads = 1) {
  std::size_t next = 0;
  return count_pieces(
      [&](std::string& document) {
        if (next == documents.size()) return false;
        document = documents[next++];
        return true;
      },
      threads, count_bert_words(normalization));
}

TrainWordPieceOptions options(std::int64_t vocab_size, std::int64_t min_frequency = 2) {
  TrainWordPieceOptions result;
  result.merges.vocab_size = vocab_size;
  result.merges.min_frequency = min_frequency;
  result.merges.specials = {"[UNK]"};
  return result;
}

/// The merges as they are defined, every pair counted again each time. Words of ASCII letters.
std::vector<std::string> learn_plainly(const std::map<std::string, std::int64_t>& counts, std::size_t vocab_size,
                                       std::int64_t min_frequency) {
  std::set<char> begins, continues;
  for (const auto& [word, n] : counts)
    for (std::size_t i = 0; i < word.size(); ++i)
      begins.insert(word[i]), i > 0 ? (void)continues.insert(word[i]) : void();
  std::vector<std::string> tokens = {"[UNK]"};
  for (const char c : begins) tokens.emplace_back(1, c);
  for (const char c : continues) tokens.push_back(std::string("##") + c);
  const auto id_of = [&](const std::string& token) {
    return std::find(tokens.begin(), tokens.end(), token) - tokens.begin();
  };
  std::vector<std::pair<std::vector<std::string>, std::int64_t>> words;
  for (const auto& [word, n] : counts) {
    words.push_back({{}, n});
    for (std::size_t i = 0; i < word.size(); ++i)
      words.back().first.push_back((i > 0 ? "##" : "") + std::string(1, word[i]));
  }
  while (tokens.size() < vocab_size) {
    std::map<std::pair<std::ptrdiff_t, std::ptrdiff_t>, std::int64_t> pairs;
    for (const auto& [word, n] : words)
      for (std::size_t i = 1; i < word.size(); ++i) pairs[{id_of(word[i - 1]), id_of(word[i])}] += n;
    auto best = pairs.end();
    for (auto it = pairs.begin(); it != pairs.end(); ++it)
      if (best == pairs.end() || it->second > best->second) best = it;  // of equals the smallest ids
    if (best == pairs.end() || best->second < min_frequency) break;
    const std::string left = tokens[static_cast<std::size_t>(best->first.first)];
    const std::string right = tokens[static_cast<std::size_t>(best->first.second)];
    const std::string joined = left + right.substr(2);
    if (id_of(joined) == std::ssize(tokens)) tokens.push_back(joined);
    for (auto& [word, n] : words)
      for (std::size_t i = 1; i < word.size(); ++i)
        if (word[i - 1] == left && word[i] == right) {
          word[i - 1] = joined;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i));
        }
  }
  return tokens;
}

TEST(TrainWordPiece, LearnsWhatTheDefinitionSays) {
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    std::map<std::string, std::int64_t> counts;
    std::string text;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (std::size_t n = 1 + random() % 7; n > 0; --n) word.push_back(static_cast<char>('a' + random() % 4));
      ++counts[word];
      text += word + (i % 5 == 0 ? ", " : " ");
      if (i % 5 == 0) ++counts[","];
    }
    EXPECT_EQ(train_word_piece(count({text}), options(60)).tokens, learn_plainly(counts, 60, 2)) << text;
  }
}

TEST(TrainWordPiece, GivesIdsToSpecialTokensTheAlphabetAndWhatGoesOn) {
  TrainWordPieceOptions wanted = options(100);
  wanted.merges.specials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "<x>"};
  const Vocabulary learned = train_word_piece(count({"Cab cab bé"}), wanted);
  EXPECT_THAT(learned.tokens, ElementsAre("[PAD]", "[UNK]", "[CLS]", "[SEP]", "<x>", "a", "b", "c", "e", "##a", "##b",
                                          "##e", "ca", "cab"));
  EXPECT_EQ(learned.specials.size(), 5u);
  EXPECT_EQ(Tokenizer(learned).encode("Cab!"), (std::vector<std::int32_t>{13, 1}));
  EXPECT_EQ(Tokenizer(learned).frame(std::vector<std::int32_t>{13}).ids, (std::vector<std::int32_t>{2, 13, 3}));
  wanted.normalization.lower_case = wanted.normalization.strip_accents = false;
  EXPECT_THAT(train_word_piece(count({"Cab cab bé"}, wanted.normalization), wanted).tokens, testing::Contains("##é"));
}

TEST(TrainWordPiece, DoesNotDependOnTheNumberOfThreads) {
  std::vector<std::string> documents;
  const std::string text = read_file(golden_folder() / "train.txt");
  for (std::size_t at = 0; at < text.size(); at += 1000) documents.push_back(text.substr(at, 1000));
  const Vocabulary expected = train_word_piece(count(documents), options(1500));
  EXPECT_EQ(expected.tokens.size(), 1500u);
  for (const int threads : {2, 5})
    EXPECT_EQ(train_word_piece(count(documents, {}, threads), options(1500)).tokens, expected.tokens);
}

TEST(TrainWordPiece, MergesNothingInWordsThatTheTokenizerMakesUnknown) {
  std::string text = std::string(5000, 'a') + " " + std::string(5000, 'a') + " ";
  const std::string longest(100, 'b');
  for (int i = 0; i < 2; ++i) text += longest + " ";
  const Vocabulary learned = train_word_piece(count({text}), options(30000));
  for (const std::string& token : learned.tokens) EXPECT_EQ(token.find("aa"), std::string::npos) << token;
  const std::int32_t id = Tokenizer(learned).token_to_id(longest).value_or(-1);
  EXPECT_EQ(Tokenizer(learned).encode(longest), (std::vector<std::int32_t>{id}));
}

TEST(TrainWordPiece, LeavesTheRarestCharactersOut) {
  TrainWordPieceOptions wanted = options(100);
  wanted.limit_alphabet = 2;
  // a three times, b twice, y and z once: y stays out as z does, and so do they inside words.
  EXPECT_THAT(train_word_piece(count({"ab a azb y"}), wanted).tokens, ElementsAre("[UNK]", "a", "b", "##b", "ab"));
  wanted.limit_alphabet = 3;
  EXPECT_THAT(train_word_piece(count({"ab a azb y"}), wanted).tokens, testing::Contains("y"))
      << "of equals the smaller code point stays";
}

TEST(TrainWordPiece, RefusesOptionsThatCannotHold) {
  const auto refuse = [](auto&& change, const char* message) {
    TrainWordPieceOptions wanted = options(100);
    change(wanted);
    EXPECT_THAT([&] { train_word_piece(count({"abc def"}), wanted); }, ThrowsMessage<ConfigError>(HasSubstr(message)));
  };
  refuse([](auto& o) { o.merges.specials = {"[PAD]"}; }, "[UNK]");
  refuse([](auto& o) { o.limit_alphabet = 0; }, "limit_alphabet");
  refuse([](auto& o) { o.merges.min_frequency = 0; }, "min_frequency");
  refuse([](auto& o) { o.merges.vocab_size = 10; }, "--vocab-size 11 or more");
}

}  // namespace
}  // namespace megatron::text
