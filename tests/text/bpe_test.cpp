#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/split/pretokenize.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/vocabulary.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// All 256 bytes with their own values as ids.
Vocabulary bytes_alone() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  return vocabulary;
}

/// Byte-pair encoding as it is defined: look at all pairs, merge the leftmost of the most important, begin again.
class PlainBpe {
 public:
  explicit PlainBpe(const Vocabulary& vocabulary) : tokens_(vocabulary.tokens) {
    for (std::size_t id = 0; id < tokens_.size(); ++id) ids_[tokens_[id]] = static_cast<std::int32_t>(id);
    for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) ranks_[vocabulary.merges[i]] = i;
  }

  std::vector<std::int32_t> encode(const std::string& text) const {
    std::vector<std::int32_t> out;
    for_each_piece(text, [&](const char* p, std::size_t size) {
      std::vector<std::int32_t> piece;
      for (std::size_t i = 0; i < size; ++i) piece.push_back(ids_.at(std::string(1, p[i])));
      while (merge_one(piece)) continue;
      out.insert(out.end(), piece.begin(), piece.end());
    });
    return out;
  }

 private:
  bool merge_one(std::vector<std::int32_t>& piece) const {
    std::size_t best = piece.size(), best_rank = ranks_.size();
    for (std::size_t i = 0; i + 1 < piece.size(); ++i) {
      const auto found = ranks_.find({piece[i], piece[i + 1]});
      if (found != ranks_.end() && found->second < best_rank) best = i, best_rank = found->second;
    }
    if (best == piece.size()) return false;
    const auto token = [&](std::size_t i) { return tokens_[static_cast<std::size_t>(piece[i])]; };
    piece[best] = ids_.at(token(best) + token(best + 1));
    piece.erase(piece.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    return true;
  }

  std::vector<std::string> tokens_;
  std::map<std::string, std::int32_t> ids_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks_;
};

TEST(Encode, GivesTheIdsOfHuggingFaceAndTheTextBack) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  for (const GoldenCase& golden : golden_cases()) {
    EXPECT_EQ(tokenizer.encode(golden.text, Specials::Recognised), golden.ids) << golden.text;
    EXPECT_EQ(tokenizer.decode(golden.ids), golden.text);
  }
}

TEST(Encode, MergesAsTheDefinitionReadsWhateverThePiecesLength) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  const PlainBpe plain(tokenizer.vocabulary());
  Encoder encoder = tokenizer.encoder();
  std::mt19937 random(3);
  const std::string letters = "aaaabbethouns";
  for (int i = 0; i < 1500; ++i) {
    std::string text;
    if (i % 3 == 0) text = random_text(random, 60);
    // Long words take the heap, short ones the array, and all come by again from the cache.
    else
      for (std::size_t n = random() % 120; n > 0; --n) text.push_back(letters[random() % letters.size()]);
    std::vector<std::int32_t> ids;
    encoder.encode_append(text, ids);
    ASSERT_EQ(ids, plain.encode(text)) << testing::PrintToString(text);
    ASSERT_EQ(tokenizer.encode(text), ids);
    ASSERT_EQ(tokenizer.decode(ids), text);
  }
}

/// Merges drawn at random: tokens with several ways to be made, of which a later merge may find the more important one.
TEST(Encode, MergesAsTheDefinitionReadsWhateverTheOrderOfMerges) {
  std::mt19937 random(8);
  for (int round = 0; round < 60; ++round) {
    Vocabulary vocabulary = bytes_alone();
    std::map<std::string, std::int32_t> ids;
    for (std::int32_t byte = 0; byte < 256; ++byte) ids[vocabulary.tokens[static_cast<std::size_t>(byte)]] = byte;
    std::vector<std::int32_t> known = {'a', 'b', 'c'};
    std::set<std::pair<std::int32_t, std::int32_t>> pairs;
    while (pairs.size() < 25) {
      const std::int32_t left = known[random() % known.size()], right = known[random() % known.size()];
      const std::string joined =
          vocabulary.tokens[static_cast<std::size_t>(left)] + vocabulary.tokens[static_cast<std::size_t>(right)];
      if (joined.size() > 6) continue;
      const auto [found, is_new] = ids.emplace(joined, static_cast<std::int32_t>(vocabulary.tokens.size()));
      if (is_new) vocabulary.tokens.push_back(joined), known.push_back(found->second);
      pairs.emplace(left, right);
    }
    vocabulary.merges.assign(pairs.begin(), pairs.end());
    std::shuffle(vocabulary.merges.begin(), vocabulary.merges.end(), random);
    const Tokenizer tokenizer(vocabulary);
    const PlainBpe plain(vocabulary);
    for (const std::size_t size : {5u, 48u, 49u, 300u}) {
      std::string text;
      while (text.size() < size) text.push_back(static_cast<char>('a' + random() % 3));
      ASSERT_EQ(tokenizer.encode(text), plain.encode(text)) << text;
    }
  }
}

TEST(Encode, TrustsNoListOfWhatMergesMake) {
  Vocabulary vocabulary = bytes_alone();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"ab", "abc", "bc"});
  vocabulary.merges = {{'a', 'b'}, {256, 'c'}};
  const auto abc = [&] { return Tokenizer(vocabulary).encode("abc"); };
  EXPECT_THAT(abc(), ElementsAre(257));
  for (const std::vector<std::int32_t>& made : {std::vector{256, 257}, {258, 256}, {-7, 1 << 30}, {256}, {'a', 'c'}}) {
    vocabulary.made = made;
    EXPECT_THAT(abc(), ElementsAre(257));
  }
}

TEST(Encode, TakesAMegabyteOfOneLetter) {
  Vocabulary vocabulary = bytes_alone();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"aa", "aaaa", "aaaaaaaa"});
  vocabulary.merges = {{'a', 'a'}, {256, 256}, {257, 257}};
  const auto ids = Tokenizer(vocabulary).encode(std::string((1 << 20) + 5, 'a'));
  std::vector<std::int32_t> expected(1 << 17, 258);
  expected.insert(expected.end(), {257, 'a'});
  EXPECT_EQ(ids, expected);
}

TEST(Encode, AppendsToWhatIsThere) {
  const Tokenizer tokenizer(bytes_alone());
  std::vector<std::int32_t> ids = {7};
  Encoder encoder = tokenizer.encoder();
  encoder.encode_append("ab", ids);
  EXPECT_THAT(ids, ElementsAre(7, 'a', 'b'));
}

TEST(Encode, RecognisesSpecialTokensOnlyWhenAsked) {
  Vocabulary vocabulary = bytes_alone();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<e>", "<e><e>", "<x"});
  vocabulary.specials = {{"<e>", 256, true}, {"<e><e>", 257, true}, {"<x", 258, false}};
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(tokenizer.encode("a<e>"), ElementsAre('a', '<', 'e', '>'));
  EXPECT_THAT(tokenizer.encode("a<e>b<e><e><e><x<", Specials::Recognised),
              ElementsAre('a', 256, 'b', 257, 256, 258, '<'));
}

/// Of those that begin leftmost the longest, by trying each.
TEST(Encode, FindsTheLongestOfManySpecialTokensThatBeginAlike) {
  std::mt19937 random(6);
  for (int round = 0; round < 30; ++round) {
    Vocabulary vocabulary = bytes_alone();
    std::set<std::string> names;
    while (names.size() < 200) {
      std::string name = "<";
      for (std::size_t n = 1 + random() % 7; n > 0; --n) name += "<|a>"[random() % 4];
      names.insert(name);
    }
    for (const std::string& name : names) {
      vocabulary.specials.push_back({name, static_cast<std::int32_t>(vocabulary.tokens.size()), true});
      vocabulary.tokens.push_back(name);
    }
    const Tokenizer tokenizer(vocabulary);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "<|a>"[random() % 4];
    std::vector<std::int32_t> expected;
    for (std::size_t at = 0; at < text.size();) {
      const SpecialToken* best = nullptr;
      for (const SpecialToken& special : vocabulary.specials)
        if (text.compare(at, special.content.size(), special.content) == 0 &&
            (best == nullptr || special.content.size() > best->content.size()))
          best = &special;
      expected.push_back(best != nullptr ? best->id : text[at]);
      at += best != nullptr ? best->content.size() : 1;
    }
    ASSERT_EQ(tokenizer.encode(text, Specials::Recognised), expected);
  }
}

TEST(Encode, TreatsAddedTokensAsHuggingFaceDoes) {
  Vocabulary vocabulary = bytes_alone();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<l>", "<r>", "<w>", "<n>", "<n><l>"});
  vocabulary.specials = {{.content = "<l>", .id = 256, .lstrip = true},
                         {.content = "<r>", .id = 257, .rstrip = true},
                         {.content = "<w>", .id = 258, .single_word = true},
                         {.content = "<n>", .id = 259, .normalized = true},
                         {.content = "<n><l>", .id = 260, .normalized = true}};
  const Tokenizer tokenizer(vocabulary);
  const auto encode = [&](const char* text) { return tokenizer.encode(text, Specials::Recognised); };
  EXPECT_THAT(encode("a \u2003<l> b"), ElementsAre('a', 256, ' ', 'b'));
  EXPECT_THAT(encode("a <r> \n\u00a0b"), ElementsAre('a', ' ', 257, 'b'));
  EXPECT_THAT(encode("<r>  <l>"), ElementsAre(257, 256));
  EXPECT_THAT(encode("<w>.<w> <w>"), ElementsAre(258, '.', 258, ' ', 258));
  EXPECT_THAT(encode("a<w>"), ElementsAre('a', '<', 'w', '>'));
  EXPECT_THAT(encode("<w>\u0301"), ElementsAre('<', 'w', '>', 0xCC, 0x81));
  // The raw ones first, wherever they are: so the longer normalized one is never whole.
  EXPECT_THAT(encode("<n><l>"), ElementsAre(259, 256));
}

TEST(Encode, UsesATokenWithoutMergesOnlyWhenMergesAreIgnored) {
  Vocabulary vocabulary = bytes_alone();
  vocabulary.tokens.emplace_back("abc");
  EXPECT_THAT(Tokenizer(vocabulary).encode("abc"), ElementsAre('a', 'b', 'c'));
  vocabulary.ignore_merges = true;
  EXPECT_THAT(Tokenizer(vocabulary).encode("abc abc"), ElementsAre(256, ' ', 'a', 'b', 'c'));
}

TEST(Encode, GivesTheSameOnManyThreadsAtOnce) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  const std::string text = read_file(golden_folder() / "train.txt");
  const auto expected = tokenizer.encode(text);
  std::vector<std::vector<std::int32_t>> results(4);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { tokenizer.encoder().encode_append(text, result); });
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Decode, NamesAnIdThatIsNoToken) {
  const Tokenizer tokenizer(bytes_alone());
  for (const std::int32_t id : {-1, 256})
    EXPECT_THAT([&] { tokenizer.decode(std::vector{id}); }, ThrowsMessage<ConfigError>(HasSubstr(std::to_string(id))));
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = Tokenizer::load(golden_folder());
  EXPECT_EQ(tokenizer.vocab_size(), 1200);
  EXPECT_EQ(tokenizer.eod_id(), 0);
  EXPECT_EQ(tokenizer.id_to_bytes(0), "<|endoftext|>");
  EXPECT_EQ(tokenizer.token_to_id("!"), 1);
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_THROW(Tokenizer(bytes_alone()).eod_id(), ConfigError);
}

TEST(Tokenizer, HasAFingerprintThatEveryChangeChanges) {
  Vocabulary vocabulary = bytes_alone();
  const std::string first = Tokenizer(vocabulary).fingerprint();
  EXPECT_EQ(Tokenizer(vocabulary).fingerprint(), first);
  vocabulary.tokens.emplace_back("ab");
  const std::string second = Tokenizer(vocabulary).fingerprint();
  vocabulary.merges.emplace_back('a', 'b');
  const std::string third = Tokenizer(vocabulary).fingerprint();
  vocabulary.specials.push_back({"ab", 256, true});
  const std::string fourth = Tokenizer(vocabulary).fingerprint();
  EXPECT_EQ((std::set{first, second, third, fourth}).size(), 4u);
}

TEST(Tokenizer, RefusesAVocabularyThatBreaksARule) {
  const auto refuse = [](auto&& change, const char* message) {
    Vocabulary vocabulary = bytes_alone();
    vocabulary.tokens.emplace_back("ab");
    change(vocabulary);
    EXPECT_THAT([&] { Tokenizer tokenizer(vocabulary); }, ThrowsMessage<ConfigError>(HasSubstr(message)));
  };
  refuse([](Vocabulary& v) { v.frame.single = {{Template::Kind::Token, 257, 0}}; }, "id 257 of 257");
  refuse([](Vocabulary& v) { v.tokens.emplace_back("ab"); }, "ids 256 and 257");
  refuse([](Vocabulary& v) { v.merges = {{'a', 257}}; }, "ids 97 and 257");
  refuse([](Vocabulary& v) { v.merges = {{-1, 'a'}}; }, "ids -1");
  refuse([](Vocabulary& v) { v.merges = {{'b', 'a'}}; }, "no token \"ba\"");
  refuse([](Vocabulary& v) { v.merges = {{'a', 'b'}, {'a', 'b'}}; }, "merged twice");
  refuse([](Vocabulary& v) { v.specials = {{"ab", 3, true}}; }, "id 3");
  refuse([](Vocabulary& v) { v.specials = {{"", 256, true}}; }, "special token");
}

TEST(StreamDecoder, NeverEndsInsideACharacterAndLosesNothing) {
  const Tokenizer tokenizer(bytes_alone());
  std::mt19937 random(4);
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_text(random, 30);
    StreamDecoder stream(tokenizer);
    std::string seen;
    std::size_t pushed = 0;
    for (const std::int32_t id : tokenizer.encode(text)) {
      seen += stream.push(id);
      ++pushed;
      ASSERT_EQ(seen, text.substr(0, seen.size()));
      // What is held back begins a character that its last byte does not complete.
      const std::string held = text.substr(seen.size(), pushed - seen.size());
      ASSERT_LE(held.size(), 3u);
      if (!held.empty()) {
        ASSERT_GE(static_cast<unsigned char>(held[0]), 0xC2);
        ASSERT_EQ(decode_utf8(held.data(), held.data() + held.size()).length, 0);
      }
    }
    EXPECT_EQ(seen + stream.finish(), text);
  }
  StreamDecoder stream(tokenizer);
  std::vector<std::string> parts;
  for (const char c : std::string("a😀é\x80z\xe2\x82")) parts.push_back(stream.push(static_cast<unsigned char>(c)));
  EXPECT_THAT(parts, ElementsAre("a", "", "", "", "😀", "", "é", "\x80", "z", "", ""));
  EXPECT_EQ(stream.finish(), "\xe2\x82");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace megatron::text
