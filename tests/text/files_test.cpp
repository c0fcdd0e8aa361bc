#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megatron/base/error.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/files/tokenizer_files.h"
#include "tests/testing/temporary_folder.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TokenizerFiles : public testing::Test {
 protected:
  void put(const char* name, const std::string& text) { std::ofstream(folder_ / name, std::ios::binary) << text; }

  /// The golden tokenizer as GPT-2's pair of files.
  void put_pair(const char* vocab_name, const char* merges_name, const std::string& header) {
    const json model = golden_["model"];
    std::string merges = header;
    for (const auto& merge : model["merges"])
      merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    put(vocab_name, model["vocab"].dump());
    put(merges_name, merges);
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
  json golden_ = json::parse(read_file(golden_folder() / "tokenizer.json"));
};

TEST_F(TokenizerFiles, SaveAndLoadGiveTheSameTokenizer) {
  const Tokenizer first = Tokenizer::load(golden_folder());
  first.save(folder_ / "new" / "folder");
  const Tokenizer second = Tokenizer::load(folder_ / "new" / "folder" / "tokenizer.json");
  EXPECT_EQ(second.fingerprint(), first.fingerprint());
  EXPECT_EQ(second.vocabulary().specials[0].content, "<|endoftext|>");
}

TEST_F(TokenizerFiles, TakesTheEndThatTheConfigurationNamesAndKeepsItWhereSaved) {
  golden_["added_tokens"].push_back({{"id", 1200}, {"content", "<|im_end|>"}, {"special", true}});
  put("tokenizer.json", golden_.dump());
  EXPECT_EQ(Tokenizer::load(folder_).eod_id(), *Tokenizer::load(folder_).token_to_id("<|endoftext|>"));
  put("tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}, "more": 1})");
  const Tokenizer first = Tokenizer::load(folder_);
  EXPECT_EQ(first.eod_id(), 1200);
  EXPECT_EQ(Tokenizer::load(folder_, "GPT2BPETokenizer").eod_id(), *first.token_to_id("<|endoftext|>"));
  first.save(folder_ / "copy");
  EXPECT_EQ(Tokenizer::load(folder_ / "copy").eod_id(), 1200);
  first.save(folder_);
  EXPECT_THAT(read_file(folder_ / "tokenizer_config.json"), HasSubstr("more"));
}

TEST_F(TokenizerFiles, RefusesAnEndThatTheVocabularyLacks) {
  put("tokenizer.json", golden_.dump());
  put("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  const auto load = [&] { return Tokenizer::load(folder_); };
  EXPECT_THAT(load, ThrowsMessage<ConfigError>(HasSubstr("tokenizer_config.json: eos_token must be a token")));
  EXPECT_NO_THROW(Tokenizer::load(folder_, "GPT2BPETokenizer"));  // whose end is <|endoftext|> whatever is named
  for (const char* end : {"5", "\"\"", "{\"content\": 5}"}) {
    put("tokenizer_config.json", concat("{\"eos_token\": ", end, "}"));
    EXPECT_THROW(load(), ConfigError) << end;
  }
  put("tokenizer_config.json", "{}");
  put("special_tokens_map.json", R"({"eos_token": {"content": "the"}})");
  EXPECT_EQ(load().eod_id(), load().token_to_id("the"));
  put("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");  // goes first
  EXPECT_EQ(load().eod_id(), load().token_to_id("<|endoftext|>"));
}

TEST_F(TokenizerFiles, ReadsTheAddedTokensBesideAPair) {
  put_pair("vocab.json", "merges.txt", "");
  const auto load = [&] { return Tokenizer::load(folder_); };
  const auto ids = [&](const char* text) { return load().encode(text, Specials::Recognised); };
  const std::vector<std::int32_t> blank = load().encode(" ");
  const auto throws = [&](const char* message) {
    EXPECT_THAT(load, ThrowsMessage<ConfigError>(HasSubstr(message))) << message;
  };
  put("added_tokens.json", R"({"<|user|>": 1200, "<|end|>": 1201})");
  EXPECT_EQ(ids("<|user|>"), std::vector{1200});
  EXPECT_EQ(ids(" <|end|>"), (std::vector{blank[0], 1201}));
  EXPECT_EQ(load().eod_id(), load().token_to_id("<|endoftext|>"));
  put("special_tokens_map.json", R"({"eos_token": "<|end|>", "additional_special_tokens": ["<|user|>"]})");
  EXPECT_EQ(load().eod_id(), 1201);
  load().save(folder_ / "copy");
  EXPECT_EQ(Tokenizer::load(folder_ / "copy").fingerprint(), load().fingerprint());
  EXPECT_EQ(Tokenizer::load(folder_ / "copy").eod_id(), 1201);
  put("tokenizer_config.json",
      R"({"added_tokens_decoder": {"1200": {"content": "<|end|>", "lstrip": true, "special": true}}})");
  EXPECT_THROW(load(), ConfigError);  // the map still names <|user|>
  put("special_tokens_map.json", R"({"pad_token": "the"})");
  EXPECT_EQ(ids(" <|end|>"), std::vector{1200});
  EXPECT_EQ(ids("the"), std::vector{*load().token_to_id("the")});
  fs::remove(folder_ / "tokenizer_config.json");
  put("added_tokens.json", R"({"<|user|>": 1201})");
  throws("an added token must have the next id behind the vocabulary, 1200");
  put("added_tokens.json", R"({"<|user|>": -1})");
  throws("<|user|> must be 0 or more");
  put("added_tokens.json", R"({"the": 1200})");
  throws("must have the id that the vocabulary gives it");
  put("added_tokens.json", R"(["<|user|>"])");
  throws("must be an object");
  put("added_tokens.json", "{}");
  put("tokenizer_config.json", R"({"mask_token": "<mask>"})");
  throws("mask_token must be a token of the vocabulary");
  for (const char* key : {"x", "-1", "99999999999", ""}) {
    put("tokenizer_config.json", concat(R"({"added_tokens_decoder": {")", key, R"(": {"content": "<m>"}}})"));
    throws("added_tokens_decoder must have ids as keys");
  }
  put("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  throws("tokenizer_class must be GPT2Tokenizer, RobertaTokenizer");
}

TEST_F(TokenizerFiles, FollowWhatTheConfigurationSaysOfAPair) {
  put_pair("vocab.json", "merges.txt", "");
  const auto load = [&] { return Tokenizer::load(folder_); };
  const std::vector<std::int32_t> blank_before = load().encode(" the cat");
  const std::int32_t end = load().eod_id();
  EXPECT_NE(load().encode("the cat"), blank_before);
  put("tokenizer_config.json", R"({"add_prefix_space": true, "add_bos_token": true})");
  EXPECT_EQ(load().encode("the cat"), blank_before);
  EXPECT_EQ(load().decode(blank_before), " the cat");
  EXPECT_EQ(load().frame(std::vector{7}).ids, (std::vector{end, 7}));
  EXPECT_EQ(load().frame(std::vector{7}, std::vector{8}).ids, (std::vector{end, 7, end, 8}));
  EXPECT_EQ(load().frame(std::vector{7}, std::vector{8}).types, (std::vector{0, 0, 1, 1}));
  put("tokenizer_config.json", R"({"add_eos_token": true})");
  EXPECT_THROW(load(), ConfigError);
}

TEST_F(TokenizerFiles, ReadsRobertasPair) {
  put_pair("vocab.json", "merges.txt", "");
  put("config.json", R"({"model_type": "roberta"})");
  EXPECT_THROW(Tokenizer::load(folder_), ConfigError);  // without <s>
  for (const char* token : {"<s>", "<pad>", "</s>", "<mask>"})
    golden_["model"]["vocab"][token] = golden_["model"]["vocab"].size();
  put_pair("vocab.json", "merges.txt", "");
  const auto check = [&] {
    const Tokenizer tokenizer = Tokenizer::load(folder_);
    EXPECT_EQ(tokenizer.encode("<s><mask></s>", Specials::Recognised), (std::vector{1200, 1203, 1202}));
    EXPECT_EQ(tokenizer.frame(std::vector{7}, std::vector{8}).ids, (std::vector{1200, 7, 1202, 1202, 8, 1202}));
    EXPECT_EQ(tokenizer.eod_id(), 1202);
    EXPECT_TRUE(tokenizer.vocabulary().trim_offsets.has_value());
  };
  check();
  put("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizerFast", "eos_token": "</s>"})");
  fs::remove(folder_ / "config.json");
  check();
}

TEST_F(TokenizerFiles, RefusesAConfigurationThatWouldChangeTokenizerJson) {
  const auto load = [&] { return Tokenizer::load(folder_); };
  put("tokenizer.json", golden_.dump());
  put("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})");
  EXPECT_THAT(load, ThrowsMessage<ConfigError>(HasSubstr("add_prefix_space must be what tokenizer.json says, false")));
  put("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false})");
  EXPECT_NO_THROW(load());
  put("tokenizer.json", to_tokenizer_json(parse_vocab_txt("[UNK]\n[CLS]\n[SEP]\na\n", "v", BertNormalization())));
  for (const char* key : {"do_lower_case", "strip_accents", "tokenize_chinese_chars"}) {
    const auto put_config = [&](const char* type, const char* value) {
      put("tokenizer_config.json", concat("{\"", key, "\": ", value, ", \"tokenizer_class\": \"", type, "\"}"));
    };
    put_config("BertTokenizerFast", "false");
    EXPECT_THAT(load, ThrowsMessage<ConfigError>(HasSubstr(concat(key, " must be what tokenizer.json says, true"))));
    for (const char* value : {"true", "null"}) {
      put_config("BertTokenizer", value);
      EXPECT_NO_THROW(load()) << key;
    }
    put_config("PreTrainedTokenizerFast", "false");  // a class that leaves the file as it is
    EXPECT_NO_THROW(load()) << key;
    put("tokenizer_config.json", concat("{\"", key, "\": false}"));
    EXPECT_NO_THROW(load()) << key;
    put("config.json", R"({"model_type": "bert"})");
    EXPECT_THROW(load(), ConfigError) << key;
    fs::remove(folder_ / "config.json");
  }
}

TEST_F(TokenizerFiles, EndDocumentsOfBertAsMegatronDoes) {
  put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n[EOS]\n");
  EXPECT_EQ(Tokenizer::load(folder_, "BertWordPieceLowerCase").eod_id(), 5);
  put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n<sep>\n");
  EXPECT_EQ(Tokenizer::load(folder_, "BertWordPieceLowerCase").eod_id(), 3);
  put("tokenizer_config.json", R"({"eos_token": null, "sep_token": "<sep>"})");
  EXPECT_EQ(Tokenizer::load(folder_).eod_id(), 5);
  put("tokenizer_config.json", R"({"sep_token": "<sep>", "eos_token": "a"})");
  EXPECT_EQ(Tokenizer::load(folder_).eod_id(), 4);
}

/// What transformers 5.12 makes of the folders: the ids of tests/interop/test_tokenizer.py's case.
TEST_F(TokenizerFiles, FollowsWhatLiesBesideASentencePieceModel) {
  put("tokenizer.model", read_file(fs::path(tests_folder()) / "golden/tokenizers/bpe.model"));
  const std::string text = "the cat<|user|>and</s>the mat<pic>a<s>it";
  const auto ids = [&] {
    const Tokenizer tokenizer = Tokenizer::load(folder_);
    const fs::path saved = folder_ / "saved";
    fs::remove_all(saved);
    tokenizer.save(saved);
    const Tokenizer again = Tokenizer::load(saved);
    EXPECT_EQ(again.fingerprint(), tokenizer.fingerprint());
    const auto framed = tokenizer.frame(tokenizer.encode(text, Specials::Recognised)).ids;
    EXPECT_EQ(again.frame(again.encode(text, Specials::Recognised)).ids, framed);
    return framed;
  };
  using Ids = std::vector<std::int32_t>;
  const std::string llama = R"("tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>")";
  put("tokenizer_config.json", concat("{", llama, R"(, "legacy": true, "add_eos_token": true})"));
  put("added_tokens.json", R"({"<|user|>": 340, "<pic>": 341})");
  EXPECT_EQ(ids(), (Ids{265, 275, 267, 340, 264, 285, 288, 2, 265, 273, 267, 341, 264, 1, 276, 270, 2}));
  EXPECT_EQ(Tokenizer::load(folder_).decode(Ids{265, 341, 264}), "the<pic> a");

  fs::remove(folder_ / "added_tokens.json");
  const char* decoder = R"("added_tokens_decoder": {"340": {"content": "<|user|>", "special": true},
                                                    "341": {"content": "<pic>", "special": false}})";
  put("tokenizer_config.json",
      concat("{", llama, R"(, "legacy": false, "add_bos_token": true, "add_eos_token": true, )", decoder, "}"));
  EXPECT_EQ(ids(), (Ids{1, 265, 275, 267, 340, 280, 285, 288, 2, 278, 262, 273, 267, 341, 280, 1, 270, 2}));

  put("tokenizer_config.json",
      concat("{", llama, R"(, "legacy": false, "additional_special_tokens": ["<|user|>", "<pic>"]})"));
  EXPECT_EQ(ids(), (Ids{265, 275, 267, 340, 280, 285, 288, 2, 278, 262, 273, 267, 341, 280, 1, 270}));

  const auto refused = [&](const std::string& config, const char* word) {
    put("tokenizer_config.json", config);
    EXPECT_THAT([&] { Tokenizer::load(folder_); }, ThrowsMessage<ConfigError>(HasSubstr(word))) << config;
  };
  refused(R"({"added_tokens_decoder": {"7": {"content": "</s>"}}})", "must have the id that the SentencePiece model");
  refused(R"({"added_tokens_decoder": {"400": {"content": "<pic>"}}})", "the next id behind the vocabulary, 340");
  refused(R"({"add_bos_token": true, "bos_token": 3})", "bos_token must be a token");
}

// The ids that Megatron-LM's BertWordPieceTokenizer gives: [BOS], [EOS], then the sentinels in order.
TEST_F(TokenizerFiles, AddsSentinelsToWordPieceAsMegatronDoes) {
  put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n");
  const Tokenizer tokenizer = Tokenizer::load(folder_, "BertWordPieceLowerCase", 3);
  EXPECT_EQ(tokenizer.vocab_size(), 12);
  int id = 7;
  for (const char* token : {"[BOS]", "[EOS]", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>"})
    EXPECT_EQ(tokenizer.token_to_id(token), id++) << token;
  EXPECT_EQ(tokenizer.eod_id(), 8);
  EXPECT_EQ(tokenizer.encode("ab a"), Tokenizer::load(folder_).encode("ab a"));
  EXPECT_EQ(tokenizer.encode("a <extra_id_1>", Specials::Recognised), (std::vector<std::int32_t>{5, 10}));
  const fs::path saved = folder_ / "saved";
  tokenizer.save(saved);
  EXPECT_EQ(Tokenizer::load(saved).fingerprint(), tokenizer.fingerprint());
  EXPECT_EQ(Tokenizer::load(saved, {}, 3).fingerprint(), tokenizer.fingerprint()) << "those that are there stay";
  put("vocab.txt", "[UNK]\n[EOS]\n<extra_id_1>\n[CLS]\n[SEP]\n");
  EXPECT_EQ(Tokenizer::load(folder_, {}, 2).token_to_id("<extra_id_0>"), 6) << "behind [BOS] alone";
  for (const std::int64_t count : {-1, 100001}) EXPECT_THROW(Tokenizer::load(folder_, {}, count), ConfigError);
  EXPECT_THROW(Tokenizer::load("60", "NullTokenizer", 2), ConfigError);
}

TEST_F(TokenizerFiles, RefusesATokenOfVocabTxtThatIsNotUtf8) {
  put("vocab.txt", "[UNK]\ncaf\xC3\xA9\ncaf\xE9\n");
  EXPECT_THAT([&] { Tokenizer::load(folder_); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("vocab.txt, line 3: "), HasSubstr("\"caf\\xe9\""))));
}

TEST_F(TokenizerFiles, RefusesAddedTokensThatVocabTxtLacks) {
  put("vocab.txt", "[UNK]\n[SEP]\na\n");
  const auto load = [&] { return Tokenizer::load(folder_); };
  put("added_tokens.json", R"({"a": 2})");
  put("tokenizer_config.json", R"({"added_tokens_decoder": {"1": {"content": "[SEP]"}}})");
  EXPECT_NO_THROW(load());
  put("tokenizer_config.json", R"({"added_tokens_decoder": {"3": {"content": "<u>"}}})");
  EXPECT_THAT(load, ThrowsMessage<ConfigError>(HasSubstr("must be one of its lines\n  got:  \"<u>\"")));
  put("tokenizer_config.json", "{}");
  put("added_tokens.json", R"({"<u>": 3})");
  EXPECT_THROW(load(), ConfigError);
}

TEST_F(TokenizerFiles, AVocabularyAloneHasTheCaseThatMegatronsNameSays) {
  put("vocab.txt", "[UNK]\na\nA\n\u00e4\n");
  const std::string text = "a A \u00e4";
  const auto ids = [&](const char* type) { return Tokenizer::load(folder_, type).encode(text); };
  const std::vector<std::int32_t> cased = {1, 2, 3}, lower = {1, 1, 1};
  EXPECT_EQ(ids("BertWordPieceCase"), cased);
  EXPECT_EQ(ids("BertWordPieceLowerCase"), lower);
  EXPECT_EQ(ids(""), lower);
  put("tokenizer_config.json", R"({"sep_token": "A"})");  // does not name it
  EXPECT_EQ(ids("BertWordPieceCase"), cased);
  put("tokenizer_config.json", R"({"do_lower_case": true})");
  EXPECT_THROW(ids("BertWordPieceCase"), ConfigError);
  put("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(ids(""), cased);
  EXPECT_THROW(ids("BertWordPieceLowerCase"), ConfigError);
}

TEST_F(TokenizerFiles, NamesWhatAFileSaysOfBatches) {
  golden_["truncation"] = nullptr;
  EXPECT_TRUE(parse_tokenizer_json(golden_.dump(), "f").not_applied.empty());
  golden_["truncation"] = {{"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};
  golden_["padding"] = {{"strategy", {{"Fixed", 9}}}, {"pad_id", 0}, {"pad_type_id", 0}, {"pad_token", "!"}};
  const Vocabulary vocabulary = parse_tokenizer_json(golden_.dump(), "f");
  EXPECT_EQ(vocabulary.not_applied, (std::vector<std::string>{"truncation", "padding"}));
  EXPECT_EQ(Tokenizer(vocabulary).encode("a text of some length"),
            Tokenizer::load(golden_folder()).encode("a text of some length"));
}

TEST_F(TokenizerFiles, KeepsSpecialTokensOutsideTheByteSpelling) {
  Vocabulary vocabulary = Tokenizer::load(golden_folder()).vocabulary();
  vocabulary.tokens.emplace_back("▁é \n");
  vocabulary.specials.push_back({"▁é \n", 1200, false});
  const Tokenizer first(vocabulary);
  first.save(folder_);
  const Tokenizer second = Tokenizer::load(folder_);
  EXPECT_EQ(second.fingerprint(), first.fingerprint());
  EXPECT_EQ(second.encode("▁é \n", Specials::Recognised), std::vector{1200});
}

TEST_F(TokenizerFiles, ReadsEitherPairOfFilesByFolderOrByName) {
  const std::string expected = Tokenizer::load(golden_folder()).fingerprint();
  put_pair("encoder.json", "vocab.bpe", "#version: 0.2\n");
  EXPECT_EQ(Tokenizer::load(folder_).fingerprint(), expected);
  EXPECT_EQ(Tokenizer::load(folder_ / "vocab.bpe").fingerprint(), expected);
  fs::remove(folder_ / "encoder.json");
  EXPECT_THROW(Tokenizer::load(folder_), ConfigError);
  put_pair("vocab.json", "merges.txt", "");
  EXPECT_EQ(Tokenizer::load(folder_).fingerprint(), expected);
  EXPECT_EQ(Tokenizer::load(folder_ / "vocab.json").fingerprint(), expected);
}

TEST_F(TokenizerFiles, NamesThePlaceOfABadMerge) {
  const auto refuse = [&](const std::string& merges, const std::string& message) {
    const auto vocab = read_vocabulary_document(golden_["model"]["vocab"].dump(), "v");
    EXPECT_THAT([&] { parse_vocab_and_merges(vocab, "v", {}, merges, "m"); },
                ThrowsMessage<ConfigError>(HasSubstr(message)));
  };
  refuse("#version: 0.2\nt h\nt  h\n", "m byte 18: a merge must be two tokens");
  refuse("t h\nth\n", "m byte 4: a merge must be two tokens");
  refuse("t h\nqqq h\n", "m byte 4: unknown token \"qqq\"");
  refuse("z q\n", "no token \"zq\"");
}

TEST_F(TokenizerFiles, ReadsMergesInBothForms) {
  for (auto& merge : golden_["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  EXPECT_EQ(Tokenizer(parse_tokenizer_json(golden_.dump(), "f")).fingerprint(),
            Tokenizer::load(golden_folder()).fingerprint());
}

TEST_F(TokenizerFiles, RefusesByNameWhatItCannotReproduce) {
  const auto refuse = [&](const char* pointer, const json& value, const std::string& message) {
    json changed = golden_;
    changed[json::json_pointer(pointer)] = value;
    EXPECT_THAT([&] { Tokenizer tokenizer(parse_tokenizer_json(changed.dump(), "FILE")); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr(message))))
        << pointer;
  };
  refuse("/normalizer", {{"type", "Nmt"}}, "FILE: normalizer.type is no normalizer that is supported\n  got:  \"Nmt\"");
  refuse("/normalizer", {{"type", "Strip"}, {"strip_middle", true}}, "normalizer has a member that is not known");
  refuse("/normalizer", {{"type", "ByteLevel"}}, "must have ByteLevel once");
  refuse("/truncation", {{"max_length", 5}, {"surprise", 1}}, "truncation has a member that is not known");
  refuse("/padding", 5, "padding must be an object");
  refuse("/version", "2.0", "version must be");
  refuse("/surprise", 1, "surprise");
  refuse("/pre_tokenizer", nullptr, "decoder must not be ByteLevel here");
  refuse("/pre_tokenizer", {{"type", "UnicodeScripts"}}, "pre_tokenizer.type is no pre-tokenizer that is supported");
  refuse("/pre_tokenizer", {{"type", "CharDelimiterSplit"}, {"delimiter", "-"}},
         "pre_tokenizer.type is no pre-tokenizer that is supported\n  got:  \"CharDelimiterSplit\"");
  refuse("/pre_tokenizer",
         {{"type", "Sequence"}, {"pretokenizers", {golden_["pre_tokenizer"], golden_["pre_tokenizer"]}}},
         "must have ByteLevel once, as the last step");
  refuse("/pre_tokenizer",
         {{"type", "Sequence"}, {"pretokenizers", {golden_["pre_tokenizer"], {{"type", "Whitespace"}}}}},
         "must have ByteLevel once, as the last step");
  const auto split = [&](const json& pattern) -> json {
    return {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}},
              golden_["pre_tokenizer"]}}};
  };
  refuse("/pre_tokenizer", split({{"Regex", "a("}}), "must be a regular expression");
  refuse("/pre_tokenizer", split({{"Regex", "(?m).x"}}), "a group must be");
  refuse("/pre_tokenizer", split({{"Regex", "[a&&b]"}}), "intersection");
  refuse("/pre_tokenizer", split({{"Regex", "[a[b]]"}}), "a set within a set");
  refuse("/pre_tokenizer", split({{"Regex", "\\h"}}), "\\h must not be used");
  refuse("/pre_tokenizer", split({{"Text", "a"}}), "has a member that is not known");
  refuse("/decoder", {{"type", "CTC"}, {"pad_token", "<pad>"}, {"word_delimiter_token", "|"}, {"cleanup", true}},
         "decoder.type is no decoder that is supported\n  got:  \"CTC\"");
  refuse("/decoder", {{"type", "Fuse"}}, "decoder must be ByteLevel");
  refuse("/post_processor", {{"type", "SpaceProcessing"}}, "post_processor.type is no post-processor");
  refuse("/post_processor",
         {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}}}}},
         "post_processor.special_tokens must be an object");
  refuse("/post_processor", {{"type", "BertProcessing"}, {"cls", {"<x>", 9999}}, {"sep", {"<x>", 0}}}, "id 9999");
  const json item = {{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}};
  refuse("/post_processor",
         {{"type", "TemplateProcessing"},
          {"single", std::vector<json>(65, item)},
          {"pair", json::array()},
          {"special_tokens", {{"<x>", {{"id", "<x>"}, {"ids", std::vector<int>(64, 0)}, {"tokens", {"<x>"}}}}}}},
         "post_processor.single must stand for at most 4096 items");
  refuse("/model/type", "Unigram", "model.type must be BPE where the text is spelled in byte characters");
  refuse("/model/type", "Words", "model.type must be BPE, WordPiece, Unigram or WordLevel");
  refuse("/model/dropout", 0.1, "model.dropout");
  refuse("/model/continuing_subword_prefix", "##", "continuing_subword_prefix");
  refuse("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  refuse("/model/byte_fallback", true, "byte_fallback");
  refuse("/model/vocab", json::array(), "the vocabulary must be an object");
  refuse("/model/vocab/!", 0, "same id");
  refuse("/model/vocab/!", -1, "id -1 for \"!\"");
  refuse("/model/vocab/!", 1.5, "id 1.5");
  refuse("/model/vocab/!", 3424, "ids must be 0 … 3423");
  refuse("/model/vocab/!", 18446744073709551615u, "id 18446744073709551615");
  refuse("/model/vocab/日", 1200, "byte characters");
  refuse("/model/vocab/", 1200, "id 1200 is empty");
  refuse("/model/merges", 3, "model.merges must be an array");
  refuse("/model/merges/0", "a b c", "merge 0");
  refuse("/model/merges/0", {"a"}, "merge 0");
  refuse("/model/merges/5", {"日", "a"}, "merge 5: unknown token");
  refuse("/model/merges/1", golden_["model"]["merges"][0], "merged twice");
  refuse("/added_tokens/0/id", 5, "<|endoftext|>");
  refuse("/added_tokens/0/lstrip", 1, "lstrip must be true or false");
  refuse("/added_tokens/0/content", "", "must not be empty");
  refuse("/added_tokens/1", {{"id", 7000}, {"content", "<x>"}}, "id 7000");
  refuse("/added_tokens", 3, "added_tokens must be an array");
}

TEST_F(TokenizerFiles, LeavesOutBytesThatAreNoTokensUnlessAnotherTokenStandsForThem) {
  golden_["model"]["vocab"].erase("!");
  golden_["model"]["vocab"]["!!"] = 1;
  const Tokenizer tokenizer(parse_tokenizer_json(golden_.dump(), "f"));
  EXPECT_EQ(tokenizer.encode("a! b!!! the =!="), tokenizer.encode("a b the =="));
  EXPECT_TRUE(tokenizer.encode("!!!").empty());
  golden_["model"]["unk_token"] = "<|endoftext|>";
  EXPECT_THAT([&] { parse_tokenizer_json(golden_.dump(), "f"); },
              ThrowsMessage<ConfigError>(HasSubstr("no token for byte 33")));
}

TEST_F(TokenizerFiles, HasHolesWhereIdsAreLeftOut) {
  golden_["model"]["vocab"]["!"] = 1250;
  const Tokenizer tokenizer(parse_tokenizer_json(golden_.dump(), "f"));
  EXPECT_EQ(tokenizer.vocab_size(), 1251);
  EXPECT_EQ(tokenizer.encode("!"), std::vector{1250});
  EXPECT_EQ(tokenizer.decode(std::vector{1, 1249, 1250}), "!") << "a hole gives no text";
  EXPECT_EQ(tokenizer.token_to_id(""), std::nullopt);
}

TEST_F(TokenizerFiles, NamesTheByteOfASyntaxErrorAndADoubledKey) {
  EXPECT_THAT([] { parse_tokenizer_json("{\"version\": }", "FILE"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("FILE: must be JSON"), HasSubstr("at byte 12"))));
  EXPECT_THAT([] { parse_tokenizer_json("{\"version\": null, \"version\": null}", "FILE"); },
              ThrowsMessage<ConfigError>(HasSubstr("the key \"version\" twice")));
}

TEST_F(TokenizerFiles, ReadsAnArrayOfManyObjectsInOnePass) {
  std::string text = "{\"added_tokens\": [{\"id\": 0}";
  for (int i = 0; i < 300'000; ++i) text += ",{}";  // 4.5e10 steps where each is compared with those before it
  EXPECT_THAT([&] { parse_tokenizer_json(text + "]}", "f"); },
              ThrowsMessage<ConfigError>(HasSubstr("added_tokens[0].content must be a string")));
}

TEST_F(TokenizerFiles, RefusesEveryTruncationOfAFile) {
  const std::string text = read_file(golden_folder() / "tokenizer.json");
  for (std::size_t size = 0; size < text.size(); size += 997)
    EXPECT_THROW(parse_tokenizer_json(text.substr(0, size), "f"), ConfigError) << size;
}

TEST_F(TokenizerFiles, SaysWhatATokenizerCanBe) {
  EXPECT_THAT([&] { Tokenizer::load(folder_); }, ThrowsMessage<ConfigError>(HasSubstr("merges.txt")));
  EXPECT_THAT([&] { Tokenizer::load(folder_ / "absent.json"); }, ThrowsMessage<ConfigError>(HasSubstr("absent.json")));
}

TEST(ByteLevel, SpellsEveryByteAndReadsItBack) {
  std::string all, back;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  ASSERT_TRUE(from_byte_level(to_byte_level(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(to_byte_level(" a\n"), "ĠaĊ");
  EXPECT_FALSE(from_byte_level("a b", back));
  EXPECT_FALSE(from_byte_level("\xff", back));
}

}  // namespace
}  // namespace megatron::text
