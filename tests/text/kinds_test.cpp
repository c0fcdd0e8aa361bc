// Small tokenizers with each step and model (tests/golden/tokenizers/make.py), and what must hold for any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "megatron/base/error.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/files/base64.h"
#include "megatron/text/files/sentencepiece_file.h"
#include "megatron/text/files/tiktoken_file.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/models/word_level.h"
#include "megatron/text/normalize/charsmap.h"
#include "megatron/text/normalize/normal_forms.h"
#include "megatron/text/split/pretokenize.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

fs::path kinds_folder() { return fs::path(tests_folder()) / "golden/tokenizers"; }

/// Each file's name with its cases.
nlohmann::json all_cases() { return nlohmann::json::parse(read_file(kinds_folder() / "cases.json")); }

TEST(Kinds, GiveTheIdsOffsetsAndTextOfTheirPeers) {
  const nlohmann::json files = all_cases();
  EXPECT_EQ(files.size(), 14u);
  for (const auto& [file, cases] : files.items()) {
    const Tokenizer tokenizer = Tokenizer::load(kinds_folder() / file);
    // SentencePiece and Mistral's library know no special tokens in a text.
    const bool as_text = file.ends_with(".model") || file == "tekken.json";
    const Specials specials = as_text ? Specials::AsText : Specials::Recognised;
    Encoder encoder = tokenizer.encoder();
    for (const auto& golden : cases) {
      const std::string text = golden["text"];
      const std::vector<std::int32_t> ids = golden["ids"];
      std::vector<std::int32_t> fast;
      encoder.encode_append(text, fast, specials);
      EXPECT_EQ(fast, ids) << file << ": " << text;
      const Encoding slow = encoder.encode_with_offsets(text, specials);
      EXPECT_EQ(slow.ids, ids) << file << ": " << text;
      EXPECT_EQ(tokenizer.decode(ids), golden["decoded"].get<std::string>()) << file << ": " << text;
      if (!golden.contains("offsets")) continue;
      nlohmann::json offsets = nlohmann::json::array();
      for (const ByteSpan& span : slow.characters) offsets.push_back({span.begin, span.end});
      EXPECT_EQ(offsets, golden["offsets"]) << file << ": " << text;
    }
  }
}

TEST(Kinds, StreamWhatTheyDecode) {
  const nlohmann::json files = all_cases();
  for (const auto& [file, cases] : files.items()) {
    const Tokenizer tokenizer = Tokenizer::load(kinds_folder() / file);
    StreamDecoder stream(tokenizer);
    for (const auto& golden : cases) {
      std::string seen;
      for (const std::int32_t id : golden["ids"]) {
        seen += stream.push(id);
        EXPECT_TRUE(valid_utf8(seen)) << file << " ends inside a character";
      }
      EXPECT_EQ(seen + stream.finish(), golden["decoded"].get<std::string>()) << file;
    }
  }
}

TEST(Kinds, AreReadBackFromTheFileThatTheySave) {
  const TemporaryFolder place;
  const fs::path folder = place.path() / "saved";
  const nlohmann::json files = all_cases();
  for (const auto& [file, cases] : files.items()) {
    const Tokenizer first = Tokenizer::load(kinds_folder() / file);
    first.save(folder);
    EXPECT_EQ(Tokenizer::load(folder).fingerprint(), first.fingerprint()) << file;
    fs::remove_all(folder);
  }
}

/// Each kind, with a text that nothing cuts and one that every step cuts at each character.
class OneCharacter : public testing::TestWithParam<std::string> {};

TEST_P(OneCharacter, IsEncodedInBoundedStepsHoweverOftenItComes) {
  const Tokenizer tokenizer = Tokenizer::load(kinds_folder() / GetParam());
  for (const std::string character : {"a", " ", "<", "1", "\u65e5", "\u0301"}) {
    const auto repeated = [&](std::size_t times) {
      std::string text;
      for (std::size_t i = 0; i < times; ++i) text += character;
      return tokenizer.encode(text, Specials::Recognised).size();
    };
    // Marks after nothing, spaces that are stripped and unknown runs may have few tokens, whatever their number.
    EXPECT_LE(repeated(std::size_t{1} << 18), 3 * character.size() << 18) << character;
  }
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  const nlohmann::json files = all_cases();
  for (const auto& [file, cases] : files.items()) names.push_back(file);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Kinds, OneCharacter, testing::ValuesIn(kind_names()), [](const auto& kind) {
  return kind.param.substr(0, kind.param.find('.')) + (kind.param.ends_with(".model") ? "Model" : "");
});

TEST(Kinds, ReplaceAndCountBytesThatAreNoUtf8UnlessTheModelHasBytes) {
  const std::string bad = "a\xff\xc3(b", good = "a\ufffd\ufffd(b";
  for (const char* file : {"llama.json", "t5.json", "bert.json", "unigram.model"}) {
    const Tokenizer tokenizer = Tokenizer::load(kinds_folder() / file);
    Encoder encoder = tokenizer.encoder();
    std::vector<std::int32_t> ids;
    encoder.encode_append(bad, ids);
    EXPECT_EQ(ids, tokenizer.encode(good)) << file;
    EXPECT_EQ(encoder.replaced(), 2u) << file;
  }
  const Tokenizer bytes = Tokenizer::load(kinds_folder() / "qwen.json");
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(random, 30);
    Encoder encoder = bytes.encoder();
    const Encoding encoding = encoder.encode_with_offsets(text);
    EXPECT_EQ(bytes.encode(text), encoding.ids);
    EXPECT_EQ(encoder.replaced(), 0u);
  }
  EXPECT_EQ(bytes.decode(bytes.encode(bad)), bad);
}

TEST(Kinds, AreCheckedAgainstMegatronsNames) {
  const auto load = [](const char* file, const char* type) { return Tokenizer::load(kinds_folder() / file, type); };
  EXPECT_NO_THROW(load("bpe.model", "SentencePieceTokenizer"));
  EXPECT_NO_THROW(load("bert.json", "BertWordPieceLowerCase"));
  EXPECT_NO_THROW(load("t5.json", "HuggingFaceTokenizer"));
  EXPECT_THROW(load("bert.json", "BertWordPieceCase"), ConfigError);
  EXPECT_THROW(load("bert.json", "GPT2BPETokenizer"), ConfigError);
  EXPECT_THROW(load("bpe.model", "TikTokenizer"), ConfigError);
  EXPECT_THAT([&] { load("bpe.model", "MyTokenizer"); }, ThrowsMessage<ConfigError>(HasSubstr("MyTokenizer")));
  const Tokenizer llama = load("bpe.model", "Llama2Tokenizer");
  EXPECT_EQ(llama.frame(std::vector{7}).ids, (std::vector{1, 7}));
}

TEST(NullTokenizer, TakesNumbers) {
  const Tokenizer tokenizer = Tokenizer::load("100", "NullTokenizer");
  EXPECT_EQ(tokenizer.vocab_size(), 101);
  EXPECT_EQ(tokenizer.eod_id(), 100);
  EXPECT_EQ(tokenizer.encode("7 99 0"), (std::vector{7, 99, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector{7, 99, 0}), "7 99 0");
  EXPECT_THROW(tokenizer.encode("7 100"), ConfigError);
  EXPECT_THROW(Tokenizer::load("many", "NullTokenizer"), ConfigError);
  EXPECT_THROW(null_vocabulary(0), ConfigError);
}

Tokenizer with_steps(std::vector<Normalizer> normalizers, std::vector<Decoder> decoders = {}) {
  Vocabulary vocabulary;
  vocabulary.tokens = {"[UNK]", "a", "b"};
  vocabulary.word_level = WordLevel{"[UNK]"};
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->normalizers = std::move(normalizers);
  vocabulary.pipeline->decoders = std::move(decoders);
  return Tokenizer(std::move(vocabulary));
}

TEST(Steps, AreRefusedWhereATextBecomesTooLong) {
  const std::string many(1000, 'a');
  std::string map(4 + 98 * 4, '\0');  // a trie that maps "a" to 1,000 letters
  const auto put = [&](std::size_t unit, std::uint32_t value) { std::memcpy(&map[4 * unit], &value, 4); };
  put(0, 98 * 4);
  put(1 + 'a', 'a' | 0x100u | 1u << 10);
  map += many + '\0';
  const normalizer::Replace replace{.pattern = {"a", false}, .content = many};
  const normalizer::Replace matched{.pattern = {"a|$", true}, .content = many};
  for (const Normalizer& step : {Normalizer(replace), Normalizer(matched), Normalizer(normalizer::Precompiled{map})}) {
    const Tokenizer tokenizer = with_steps({step});
    EXPECT_EQ(tokenizer.encode("a").size(), 1u);
    EXPECT_THAT([&] { tokenizer.encode(many); }, ThrowsMessage<ConfigError>(HasSubstr("64 times")));
    EXPECT_THAT([&] { with_steps({step, step, step}).encode("a"); }, ThrowsMessage<ConfigError>(HasSubstr("64 times")));
  }
}

/// tokenizer.json of `model`, with added tokens that are "CONTENT id" and all found in raw text.
std::string with_added(const nlohmann::json& model, const nlohmann::json& pre_tokenizer, const nlohmann::json& decoder,
                       const std::vector<std::pair<std::string, int>>& added, bool single_word = false) {
  nlohmann::json file = {{"model", model}, {"pre_tokenizer", pre_tokenizer}, {"decoder", decoder}};
  for (const auto& [content, id] : added)
    file["added_tokens"].push_back(
        {{"id", id}, {"content", content}, {"single_word", single_word}, {"normalized", false}});
  return file.dump();
}

TEST(AddedTokens, MayHaveTheBytesOfARegularToken) {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  const std::string blanks = to_byte_level("  ");
  vocab[blanks] = 256;
  vocab[blanks + blanks] = 257;
  vocab["ab"] = 258;
  const nlohmann::json step = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const nlohmann::json model = {
      {"type", "BPE"}, {"vocab", vocab}, {"merges", {to_byte_level(" ") + " " + to_byte_level(" "), "a b"}}};
  // The ids that Hugging Face tokenizers gives; there the bytes have other ids.
  for (const int first : {259, 1000}) {
    const int four = first, two = first + 1;
    const std::string json = with_added(model, step, step, {{"    ", four}, {"  ", two}});
    const Tokenizer read(parse_tokenizer_json(json, "test"));
    const Tokenizer again(parse_tokenizer_json(to_tokenizer_json(read.vocabulary()), "test"));
    for (const Tokenizer& tokenizer : {read, again}) {
      const auto ids = [&](std::string_view text) { return tokenizer.encode(text, Specials::Recognised); };
      EXPECT_THAT(ids("a  b"), ElementsAre('a', two, 'b'));
      EXPECT_THAT(ids("a      ab"), ElementsAre('a', four, two, 258));
      EXPECT_THAT(ids("x\n   y"), ElementsAre('x', '\n', two, ' ', 'y'));
      EXPECT_THAT(tokenizer.encode("x\n   y"), ElementsAre('x', '\n', 256, ' ', 'y'));  // as text the model's own
      EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{256, two, 257, four}), std::string(12, ' '));
      EXPECT_EQ(tokenizer.token_to_id("  "), two);
      EXPECT_EQ(tokenizer.fingerprint(), read.fingerprint());
    }
  }
  const std::string twice = with_added(model, step, step, {{"  ", 259}, {"  ", 260}});
  EXPECT_THROW(parse_tokenizer_json(twice, "test"), ConfigError);
}

TEST(AddedTokens, AreNoTokensOfTheModel) {
  const nlohmann::json vocab = {{"[UNK]", 0}, {"4", 1}, {"c", 2}, {"##a", 3}, {"##b", 4}};
  const nlohmann::json step = {{"type", "Whitespace"}};
  const nlohmann::json pieces = {{"type", "WordPiece"},
                                 {"unk_token", "[UNK]"},
                                 {"continuing_subword_prefix", "##"},
                                 {"max_input_chars_per_word", 100},
                                 {"vocab", vocab}};
  const nlohmann::json words = {{"type", "WordLevel"}, {"unk_token", "[UNK]"}, {"vocab", vocab}};
  const nlohmann::json characters = {
      {"type", "BPE"},         {"vocab", vocab},       {"merges", nlohmann::json::array()},
      {"ignore_merges", true}, {"unk_token", "[UNK]"}, {"fuse_unk", true}};
  using Ids = std::vector<std::int32_t>;  // of the added token as text, of which the model knows other parts
  for (const auto& [model, as_text] : {std::pair(pieces, Ids{2, 3, 4}), {words, Ids{0}}, {characters, Ids{2, 0}}}) {
    const std::string json = with_added(model, step, nullptr, {{"cab", 5}, {"##cab", 6}}, /*single_word=*/true);
    const Tokenizer read(parse_tokenizer_json(json, "test"));
    const Tokenizer again(parse_tokenizer_json(to_tokenizer_json(read.vocabulary()), "test"));
    for (const Tokenizer& tokenizer : {read, again}) {
      EXPECT_THAT(tokenizer.encode("4 cab", Specials::Recognised), ElementsAre(1, 5)) << model;
      EXPECT_EQ(tokenizer.encode("cab"), as_text) << model;
      EXPECT_EQ(tokenizer.encode("4cab", Specials::Recognised).back(), 0) << model;
    }
    nlohmann::json inside = nlohmann::json::parse(json);
    inside["model"]["vocab"]["cab"] = 5;
    const Tokenizer listed(parse_tokenizer_json(inside.dump(), "test"));
    EXPECT_THAT(listed.encode("cab"), ElementsAre(5)) << model;
    EXPECT_NE(listed.fingerprint(), read.fingerprint());
  }
}

TEST(AddedTokens, AreRefusedWhereATextWouldCostTooManyStepsAByte) {
  auto file = nlohmann::json::parse(read_file(kinds_folder() / "stripped.json"));
  const auto with = [&](std::size_t size) {
    file["model"]["vocab"][std::string(size, 'q')] = 14;
    file["added_tokens"] = {{{"id", 14}, {"content", std::string(size, 'q')}}};
    Tokenizer(parse_tokenizer_json(file.dump(), "f"));
    file["model"]["vocab"].erase(std::string(size, 'q'));
  };
  EXPECT_NO_THROW(with(4096));
  EXPECT_THAT([&] { with(4097); },
              ThrowsMessage<ConfigError>(HasSubstr("an added token must have at most 4096 bytes")));
}

TEST(Steps, AreRefusedWhereTheyAreTooMany) {
  auto file = nlohmann::json::parse(read_file(kinds_folder() / "stripped.json"));
  const auto refused = [&](const char* message) {
    EXPECT_THAT([&] { parse_tokenizer_json(file.dump(), "f"); }, ThrowsMessage<ConfigError>(HasSubstr(message)));
  };
  const nlohmann::json steps(257, nlohmann::json{{"type", "Fuse"}});
  file["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  refused("decoder.decoders[256] must be one of at most 256 steps");
  file["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1025}};
  refused("decoder must take away at most 1024 characters");
}

TEST(Steps, ReplaceInAWholeTextWhatManyTokensMade) {
  const Tokenizer tokenizer =
      with_steps({}, {decoder::Fuse(), decoder::Replace{.pattern = {"a", false}, .content = "xyz"}});
  std::vector<std::int32_t> ids(std::size_t{1} << 18, 1);
  ids.back() = 2;
  std::string expected;
  for (std::size_t i = 1; i < ids.size(); ++i) expected += "xyz";
  EXPECT_EQ(tokenizer.decode(ids), expected + "b");
}

TEST(NormalForms, ComposeHangulAndAMarkThatNoneOfItsClassStandsBefore) {
  Vocabulary vocabulary;  // a word is a token where it is composed as the Unicode standard says (3.11, 3.12)
  vocabulary.tokens = {"\uac00", "\ud55c", "\uac01", "a\u0305\u0301", "\u0105\u0301", "\u00e1\u0301"};
  vocabulary.word_level = WordLevel{};
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->normalizers = {normalizer::UnicodeForm{.compose = true, .compatible = false}};
  const Tokenizer tokenizer(vocabulary);
  const std::string parts[] = {"\u1100\u1161",  "\u1112\u1161\u11ab", "\uac00\u11a8",
                               "a\u0305\u0301", "a\u0301\u0328",      "a\u0301\u0301"};
  for (std::int32_t id = 0; id < 6; ++id) EXPECT_EQ(tokenizer.encode(parts[id]), std::vector{id}) << parts[id];
}

TEST(Steps, LowerCapitalsOfEveryAlphabetAlone) {
  Vocabulary vocabulary;
  vocabulary.tokens = {"\u00e4", "\u0436", "\u2177", "\U00010428", "z"};
  vocabulary.word_level = WordLevel{};
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->normalizers = {normalizer::Lowercase()};
  const Tokenizer tokenizer(vocabulary);
  const std::string capitals[] = {"\u00c4", "\u0416", "\u2167", "\U00010400", "Z"};
  for (std::int32_t id = 0; id < 5; ++id) EXPECT_EQ(tokenizer.encode(capitals[id]), std::vector{id}) << capitals[id];
}

TEST(NormalForms, OrderMarksByClassHoweverManyFollow) {
  const std::map<std::uint32_t, int> classes = {{0x334, 1}, {0x323, 220}, {0x301, 230}, {0x300, 230}, {0x345, 240}};
  std::mt19937 random(4);
  for (const std::size_t count : {2u, 7u, 300000u}) {
    std::vector<std::uint32_t> points = {'b'};
    while (points.size() <= count) points.push_back(std::next(classes.begin(), random() % 5)->first);
    std::string text = "a\u0301";
    for (const std::uint32_t point : points) append_utf8(text, point);
    std::stable_sort(points.begin() + 1, points.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return classes.at(a) < classes.at(b); });
    const std::vector<Change> changes = normal_form(text, {.compose = false, .compatible = false});
    ASSERT_EQ(changes.size(), 2 + points.size());
    for (std::size_t i = 0; i < points.size(); ++i) ASSERT_EQ(changes[2 + i].code_point, points[i]) << i;
  }
}

/// Characters of no longer piece are cut out before merging. A piece that no text has makes one stay: the ids are the
/// same.
TEST(SentencePieceBpe, MergesTheSameInPartsAndAsAWhole) {
  const Vocabulary parts = Tokenizer::load(kinds_folder() / "bpe.model").vocabulary();
  Vocabulary whole = parts;
  whole.tokens.emplace_back("\u2603\u2604");
  whole.sentence_piece->types.push_back(SentencePiece::Type::Normal);
  whole.sentence_piece->scores.push_back(-1e9F);
  const Tokenizer in_parts(parts), as_whole(whole);
  std::mt19937 random(11);
  const std::vector<std::string> some = {"the ", "a",      "on't", "<mask>", "\u2603", "\u00e9",
                                         "it",   "\u2581", "z",    "Q",      "\n"};
  std::size_t unknown = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text;
    for (std::size_t n = random() % 60; n > 0; --n) text += some[random() % some.size()];
    const std::vector<std::int32_t> ids = in_parts.encode(text);
    ASSERT_EQ(ids, as_whole.encode(text)) << text;
    unknown += text.find("\u2603") != std::string::npos;
  }
  EXPECT_GT(unknown, 100u);
}

TEST(SentencePieceFile, RefusesEveryTruncationAndWhatItDoesNotKnow) {
  const std::string model = read_file(kinds_folder() / "unigram.model");
  std::size_t refused = 0;
  for (std::size_t size = 0; size < model.size(); ++size) {
    try {
      Tokenizer(parse_sentencepiece_model(model.substr(0, size), "f", "f"));  // one that ends between fields is whole
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, model.size() * 9 / 10);
  EXPECT_THAT([&] { parse_sentencepiece_model(model + std::string("\x12\x02\x18\x03", 4), "f", "f"); },
              ThrowsMessage<ConfigError>(HasSubstr("type 3")));
}

TEST(TiktokenFile, RefusesWhatNobodyPublished) {
  EXPECT_TRUE(looks_like_tiktoken("IQ== 0\nIg== 1\n"));
  EXPECT_FALSE(looks_like_tiktoken("\x0a\x0eIQ"));
  const auto refuse = [](const char* text, const char* message) {
    EXPECT_THAT([&] { parse_tiktoken(text, "f", "f"); }, ThrowsMessage<ConfigError>(HasSubstr(message)));
  };
  refuse("IQ== 0\nIg== 1\n", "2 ranks");
  refuse("IQ== 0\nIg== 0\n", "no rank may come twice");
  refuse("IQ== 0\nIg= 1\n", "byte 7: a line must be");
  refuse("IQ== 4000000000\n", "about the number of its line");
  refuse(("IQ== 3000\n" + std::string(4000, '\r')).c_str(), "about the number of its line");
}

TEST(TiktokenFile, RefusesMoreWaysToJoinThanAVocabularyHas) {
  std::string file;
  int rank = 0;
  for (std::size_t size = 1; rank < 50256; ++size)  // a…ab…b: each is a join of any two parts
    for (std::size_t as = 0; as <= size && rank < 50256; ++as)
      file += concat(to_base64(std::string(as, 'a') + std::string(size - as, 'b')), " ", rank++, "\n");
  EXPECT_THAT([&] { parse_tiktoken(file, "f", "f"); },
              ThrowsMessage<ConfigError>(HasSubstr("f: the ways to join two tokens to a third must be at most")));
}

TEST(TekkenFile, SetsSpecialTokensBeforeTheRanksThatHaveRoom) {
  auto file = nlohmann::json::parse(read_file(kinds_folder() / "tekken.json"));
  const auto load = [&] { return Tokenizer(parse_tokenizer_json(file.dump(), "f")); };
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.vocab_size(), 327);
  EXPECT_EQ(tokenizer.id_to_bytes(5), "<SPECIAL_5>");
  EXPECT_EQ(tokenizer.id_to_bytes(6 + 'a'), "a");
  EXPECT_EQ(tokenizer.eod_id(), 2);
  EXPECT_EQ(tokenizer.encode("a</s>", Specials::Recognised), (std::vector{6 + 'a', 2}));
  EXPECT_EQ(tokenizer.frame(std::vector{9}, std::vector{10}).ids, (std::vector{1, 9, 1, 10}));
  file.erase("special_tokens");
  file["config"]["version"] = "v3";
  file["config"]["default_num_special_tokens"] = 21;
  EXPECT_EQ(load().id_to_bytes(3), "[INST]");
  EXPECT_EQ(load().id_to_bytes(20), "<SPECIAL_20>");
}

TEST(TekkenFile, IsCheckedEntryByEntry) {
  const auto good = nlohmann::json::parse(read_file(kinds_folder() / "tekken.json"));
  const auto refused = [&](const char* place, const nlohmann::json& value, const char* message) {
    auto file = good;
    file[nlohmann::json::json_pointer(place)] = value;
    EXPECT_THAT([&] { Tokenizer(parse_tokenizer_json(file.dump(), "f")); },
                ThrowsMessage<ConfigError>(HasSubstr(message)))
        << place;
  };
  refused("/config/default_vocab_size", 334, "f: config.default_vocab_size must be");
  refused("/config/default_vocab_size", 261, "f: config.default_vocab_size must be");
  refused("/config/default_num_special_tokens", 3, "at least those named");
  refused("/config/default_num_special_tokens", 2000000000, "at most 65536");
  refused("/config/pattern", "(", "must be a regular expression");
  refused("/config/prefix", true, "f: config has a member that is not known");
  refused("/merges", {}, "f: has a member that is not known");
  refused("/special_tokens", nullptr, "from version 8 on");
  refused("/special_tokens/1/rank", 2, "f: special_tokens[1].rank must be the token's place");
  refused("/vocab/7/rank", 8, "f: vocab[7].rank must be the token's place");
  refused("/vocab/300/token_bytes", "YQ=", "f: vocab[300].token_bytes must be");
  refused("/vocab/7/token_bytes", "YQ==", "the bytes in order");
}

TEST(Charsmap, ATrieThatRunsInACircleEndsAKey) {
  std::vector<std::uint32_t> trie(512);
  trie[0] = 256 << 10;
  trie[256 ^ 'a'] = 'a' << 10 | 0x100 | 'a';  // leads back to where it stands, and ends a key there
  std::string blob(4 + 4 * trie.size(), '\0');
  const auto size = static_cast<std::uint32_t>(4 * trie.size());
  std::memcpy(blob.data(), &size, 4);
  std::memcpy(blob.data() + 4, trie.data(), size);
  const Charsmap map(blob + std::string("x\0", 2), "f");
  EXPECT_EQ(map.shortest("aaa").size, 1u);
  EXPECT_EQ(map.longest("aaab").size, 3u);
  EXPECT_EQ(map.longest(std::string(10000, 'a')).size, Charsmap::kMaxKey);
}

TEST(Base64, ReadsWhatItWrites) {
  std::mt19937 random(1);
  std::string back;
  for (std::size_t size = 0; size < 50; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    ASSERT_TRUE(from_base64(to_base64(bytes), back));
    EXPECT_EQ(back, bytes);
  }
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  for (const char* bad : {"Z", "Zm9=v", "Zm9v!A==", "====", "ZZ=="}) EXPECT_FALSE(from_base64(bad, back)) << bad;
}

}  // namespace
}  // namespace megatron::text
