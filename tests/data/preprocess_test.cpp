#include "megatron/data/preprocess/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/vocabulary.h"
#include "tests/data/byte_tokenizer.h"
#include "tests/data/support.h"
#include "tests/testing/folders.h"

namespace megatron::data {
namespace {

using testing::HasSubstr;

/// One token a byte, none for a space.
TextEncoder byte_encoder() {
  return {.make =
              [] {
                return [](std::string_view text, std::vector<std::int32_t>& ids) {
                  for (const char c : text)
                    if (c != ' ') ids.push_back(static_cast<unsigned char>(c));
                  return 0;
                };
              },
          .vocab_size = 257};
}

class PreprocessTest : public testing::Test {
 protected:
  PreprocessOptions options(const std::string& content, int workers = 2) {
    write_bytes(folder_ / "in.jsonl", content);
    PreprocessOptions result{.output_prefix = folder_ / "out", .append_eod = true, .eod = 256, .workers = workers};
    result.text.inputs = {folder_ / "in.jsonl"};
    result.text.block_bytes = 256;
    return result;
  }
  std::string error_of(const PreprocessOptions& wanted, const TextEncoder& encoder = byte_encoder()) {
    try {
      preprocess(wanted, encoder);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }
  bool nothing_written() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      if (entry.path().filename() != "in.jsonl") return false;
    return true;
  }
  TemporaryFolder folder_;
};

TEST_F(PreprocessTest, KeysThatAreNoPartOfAFileNameAreRefusedBeforeAnythingIsWritten) {
  const std::vector<std::string> keys = {"../../x",  "a/b",  "",     {"a\0b", 3},
                                         "a\x1b[2J", "a\nb", "\xff", std::string(129, 'a')};
  for (const std::string& key : keys) {
    PreprocessOptions wanted = options("{\"text\": \"a\"}\n");
    wanted.json_keys = {"text", key};
    EXPECT_THAT(error_of(wanted), HasSubstr("part of a file's name")) << key;
    EXPECT_TRUE(nothing_written()) << key;
  }
  PreprocessOptions wanted = options("{\"Größe in cm\": \"a\"}\n");
  wanted.json_keys = {"Größe in cm"};
  EXPECT_EQ(error_of(wanted), "");
}

TEST_F(PreprocessTest, ADocumentThatNeverEndsEndsByTheLimit) {
  for (const TextFormat format : {TextFormat::Auto, TextFormat::Lines, TextFormat::Jsonl, TextFormat::Paragraphs}) {
    PreprocessOptions wanted = options("");
    wanted.text.inputs = {"/dev/zero"};
    wanted.text.format = format;
    wanted.text.max_document_bytes = 1 << 20;
    EXPECT_THAT(error_of(wanted), HasSubstr("a document may have at most 1048576 bytes"));
  }
}

TEST_F(PreprocessTest, CountsEmptyDocumentsAndGivesTheEndTokenToTheLastSequence) {
  const auto result = preprocess(
      options("{\"text\": \"ab\"}\n{\"text\": \" \"}\n{\"text\": [\"c\", \"\", \"de\", \" \"]}\n"), byte_encoder());
  EXPECT_EQ(result.pairs[0].prefix, folder_ / "out_text_document");
  EXPECT_EQ(result.pairs[0].documents, 3);
  EXPECT_EQ(result.empty_documents, 1);
  EXPECT_EQ(result.pairs[0].sequences, 3);
  EXPECT_EQ(result.pairs[0].tokens, 7);
  const IndexedDataset pair(result.pairs[0].prefix);
  EXPECT_EQ(pair.verify(), 7);
  EXPECT_EQ(pair.dtype(), DType::U16);
  std::vector<std::int64_t> lengths, firsts, all(7);
  for (std::int64_t i = 0; i < pair.size(); ++i) lengths.push_back(pair.length(i));
  for (std::int64_t i = 0; i <= pair.num_documents(); ++i) firsts.push_back(pair.first_sequence(i));
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{3, 1, 3}));
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 1, 1, 3}));
  pair.read(0, 0, std::span(all).subspan(0, 3));
  pair.read(1, 0, std::span(all).subspan(3, 1));
  pair.read(2, 0, std::span(all).subspan(4, 3));
  EXPECT_EQ(all, (std::vector<std::int64_t>{'a', 'b', 256, 'c', 'd', 'e', 256}));
}

TEST_F(PreprocessTest, WritesTheSameFilesWithAnyNumberOfWorkers) {
  std::string content, expected_bin, expected_idx;
  for (int i = 0; i < 2000; ++i) content += "{\"text\": \"document " + std::to_string(i * i) + "\"}\n";
  for (const int workers : {1, 2, 5}) {
    preprocess(options(content, workers), byte_encoder());
    const std::string bin = read_bytes(folder_ / "out_text_document.bin"),
                      idx = read_bytes(folder_ / "out_text_document.idx");
    if (workers == 1) {
      expected_bin = bin;
      expected_idx = idx;
    }
    EXPECT_EQ(bin, expected_bin);
    EXPECT_EQ(idx, expected_idx);
  }
}

TEST_F(PreprocessTest, ReportsTheFirstBadLineAndLeavesNothing) {
  std::string content;
  for (int i = 0; i < 500; ++i) content += i % 100 == 57 ? "bad\n" : "{\"text\": \"good\"}\n";
  for (const int workers : {1, 4})
    EXPECT_THAT(error_of(options(content, workers)), HasSubstr("in.jsonl, line 58, byte 969:"));
  EXPECT_TRUE(nothing_written());
}

TEST_F(PreprocessTest, PassesOnWhatAnEncoderThrows) {
  TextEncoder encoder = byte_encoder();
  encoder.make = [] {
    return [](std::string_view, std::vector<std::int32_t>&) -> std::int64_t {
      throw std::runtime_error("the encoder broke");
    };
  };
  EXPECT_EQ(error_of(options("{\"text\": \"a\"}\n"), encoder), "the encoder broke");
  EXPECT_TRUE(nothing_written());
}

TEST_F(PreprocessTest, CountsBlankLinesAndEmptyFiles) {
  PreprocessOptions wanted = options("\na\n\n  \nb\n" + std::string(5000, '\n'));  // blocks without a record at the end
  wanted.text.format = TextFormat::Lines;
  wanted.text.block_bytes = 2;
  auto result = preprocess(wanted, byte_encoder());
  EXPECT_EQ(result.blank_lines, 5003);
  EXPECT_EQ(result.empty_documents, 0);
  EXPECT_EQ(result.pairs[0].documents, 2);
  write_bytes(folder_ / "empty", "");
  wanted.text.inputs.insert(wanted.text.inputs.begin(), folder_ / "empty");
  wanted.text.format = TextFormat::File;
  result = preprocess(wanted, byte_encoder());
  EXPECT_EQ(result.blank_lines, 0);
  EXPECT_EQ(result.empty_documents, 1);
  EXPECT_EQ(result.pairs[0].documents, 2);
  EXPECT_EQ(result.pairs[0].sequences, 1);
}

TEST_F(PreprocessTest, RefusesAnInputWithoutText) {
  EXPECT_THAT(error_of(options("")), HasSubstr("must hold text"));
  EXPECT_THAT(error_of(options("{\"text\": \"\"}\n")), HasSubstr("must hold text"));
  EXPECT_TRUE(nothing_written());
}

TEST_F(PreprocessTest, HoldsBackTheReaderWhileTheWriterWaits) {
  // 40 MB of text; the writer stops at the first block until an encoder has seen all that can be under way.
  const std::string line = "{\"text\": \"" + std::string(1 << 20, ' ') + "a\"}\n";
  std::string content;
  for (int i = 0; i < 40; ++i) content += line;
  PreprocessOptions wanted = options(content, 1);
  wanted.text.block_bytes = 1 << 20;
  std::atomic<int> encoded = 0;
  TextEncoder encoder = byte_encoder();
  encoder.make = [&] {
    return [&](std::string_view text, std::vector<std::int32_t>& ids) {
      ids.push_back(static_cast<std::int32_t>(std::count(text.begin(), text.end(), 'b')));
      ++encoded;
      return 0;
    };
  };
  const auto result = preprocess(wanted, encoder, [&](std::int64_t, std::int64_t, std::int64_t documents) {
    // A little over 1 MB each, of the 16 MB that may be under way.
    while (documents == 1 && encoded < 15) std::this_thread::yield();
  });
  EXPECT_EQ(result.pairs[0].documents, 40);
  EXPECT_GT(result.peak_bytes, 15 << 20);
  EXPECT_LE(result.peak_bytes, 16 << 20);
}

TEST_F(PreprocessTest, GivesEachKeyAPairOfItsOwnInOnePass) {
  const std::string lines = "{\"text\": \"ab\", \"t\": [\"c\", \"d\"]}\n{\"t\": \"\", \"text\": \"e\"}\n";
  PreprocessOptions both = options(lines);
  both.json_keys = {"t", "text"};
  const auto result = preprocess(both, byte_encoder());
  ASSERT_EQ(result.pairs.size(), 2u);
  EXPECT_EQ(result.pairs[0].prefix, folder_ / "out_t_document");
  EXPECT_EQ(result.pairs[0].sequences, 2);
  EXPECT_EQ(result.pairs[1].tokens, 5);
  for (const std::string key : {"t", "text"}) {
    PreprocessOptions alone = options(lines);
    alone.json_keys = {key};
    alone.output_prefix = folder_ / "alone";
    const std::string prefix = preprocess(alone, byte_encoder()).pairs[0].prefix;
    EXPECT_EQ(read_bytes(prefix + ".bin"), read_bytes(folder_ / ("out_" + key + "_document.bin")));
    EXPECT_EQ(read_bytes(prefix + ".idx"), read_bytes(folder_ / ("out_" + key + "_document.idx")));
  }
  EXPECT_THAT(error_of(options("{\"text\": \"a\"}\n")), "");
  both.text.format = TextFormat::Lines;
  EXPECT_THAT(error_of(both), HasSubstr("JSON lines alone"));
  both.json_keys = {"text", "text"};
  EXPECT_THAT(error_of(both), HasSubstr("twice"));
}

TEST_F(PreprocessTest, MakesEachSentenceASequence) {
  PreprocessOptions wanted = options("{\"text\": \"Ab. Mr. C.\\n\\nD\"}\n{\"text\": [\"E. F.\", \"G\"]}\n");
  wanted.split_sentences = true;
  wanted.append_eod = false;
  const auto lengths_of = [&](const std::string& prefix) {
    const IndexedDataset pair(prefix);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < pair.size(); ++i) lengths.push_back(pair.length(i));
    EXPECT_EQ(pair.first_sequence(1), 3);
    return lengths;
  };
  // "Ab." "Mr. C." "D"; the array is taken as it is: "E. F." "G". Spaces give no token.
  EXPECT_EQ(preprocess(wanted, byte_encoder()).pairs[0].prefix, folder_ / "out_text_sentence");
  EXPECT_EQ(lengths_of(folder_ / "out_text_sentence"), (std::vector<std::int64_t>{3, 5, 1, 4, 1}));
  wanted.keep_newlines = true;
  preprocess(wanted, byte_encoder());
  EXPECT_EQ(lengths_of(folder_ / "out_text_sentence"), (std::vector<std::int64_t>{3, 7, 1, 4, 1}));
}

TEST_F(PreprocessTest, PassesOverBadLinesAndCountsThem) {
  const std::string lines = "{\"text\": \"a\"}\nbad\n{\"text\": 1}\n{\"text\": \"" + std::string(1000, 'x') +
                            "\"}\n{\"text\": \"\xFF\"}\n{\"text\": \"b\"}\n";
  PreprocessOptions wanted = options(lines);
  wanted.text.max_document_bytes = 500;
  EXPECT_THAT(error_of(wanted), HasSubstr("line 2"));
  wanted.on_error = OnError::Skip;
  std::string reasons;
  wanted.on_bad_line = [&](const std::string& reason) { reasons += reason + "\n"; };
  const auto result = preprocess(wanted, byte_encoder());
  EXPECT_EQ(result.bad_lines, 4);
  EXPECT_EQ(result.pairs[0].documents, 2);
  for (const char* line : {"line 2, byte 14: ", "line 3, byte 18: ", "line 4, byte 30: ", "line 5, byte "})
    EXPECT_THAT(reasons, HasSubstr(line));
  EXPECT_EQ(read_bytes(folder_ / "out_text_document.bin"), std::string("a\0\0\1b\0\0\1", 8));
}

TEST_F(PreprocessTest, TakesATextThatTheTokenizerRefusesForABadLineOfAllKeys) {
  TextEncoder encoder = byte_encoder();
  encoder.make = [make = encoder.make] {
    return [bytes = make()](std::string_view text, std::vector<std::int32_t>& ids) {
      const std::int64_t replaced = bytes(text, ids) + 1;
      if (text.ends_with('?')) throw ConfigError("no token for ?");
      return replaced;
    };
  };
  const std::string good = R"({"a": ["n", "o"], "b": "p"})"
                           "\n";
  PreprocessOptions wanted = options(good +
                                     R"({"a": "ok", "b": ["x", "y?"]})"
                                     "\n" +
                                     good +
                                     R"({"a": "?", "b": "z"})"
                                     "\n");
  wanted.json_keys = {"a", "b"};
  EXPECT_THAT(error_of(wanted, encoder), HasSubstr("in.jsonl, line 2, byte 28: no token for ?"));
  wanted.on_error = OnError::Skip;
  std::vector<std::string> reasons;
  wanted.on_bad_line = [&](const std::string& reason) { reasons.push_back(reason); };
  const auto result = preprocess(wanted, encoder);
  EXPECT_EQ(result.bad_lines, 2);
  ASSERT_EQ(reasons.size(), 2);
  EXPECT_THAT(reasons[1], HasSubstr("line 4, byte"));
  EXPECT_EQ(result.text_bytes, 6);
  EXPECT_EQ(result.replaced_bytes, 6);
  EXPECT_EQ(result.pairs[0].documents, 2);
  EXPECT_EQ(result.pairs[0].sequences, 4);
  EXPECT_EQ(result.pairs[1].documents, 2);
  EXPECT_EQ(read_bytes(folder_ / "out_a_document.bin"), std::string("n\0o\0\0\1n\0o\0\0\1", 12));
  EXPECT_EQ(read_bytes(folder_ / "out_b_document.bin"), std::string("p\0\0\1p\0\0\1", 8));
}

TEST_F(PreprocessTest, RefusesToReplaceItsInput) {
  PreprocessOptions wanted = options("{\"text\": \"a\"}\n");
  std::filesystem::rename(folder_ / "in.jsonl", folder_ / "out_text_document.idx");
  wanted.text.inputs = {folder_ / "out_text_document.idx"};
  EXPECT_THAT(error_of(wanted), HasSubstr("one of the inputs"));
}

TEST_F(PreprocessTest, KeepsBytesThatAreNotUtf8AndCountsTheirDocuments) {
  PreprocessOptions wanted = options("\xC3\xA4\n\xFF\n\xC3\nplain\n");
  wanted.text.format = TextFormat::Lines;
  wanted.append_eod = false;
  const auto result = preprocess(wanted, byte_encoder());
  EXPECT_EQ(result.not_utf8, 2);
  EXPECT_EQ(result.pairs[0].documents, 4);
  EXPECT_EQ(read_bytes(folder_ / "out_text_document.bin").substr(0, 8), std::string("\xC3\0\xA4\0\xFF\0\xC3\0", 8));
}

TEST_F(PreprocessTest, CountsTheBytesThatTheTokenizerReplaces) {
  const auto tokenizer = text::Tokenizer::load(std::filesystem::path(tests_folder()) / "golden/tokenizers/llama.json");
  PreprocessOptions wanted = options("a\xFF\xC3(b\nplain\n\xFF\n\xC3\xA4\n");
  wanted.text.format = TextFormat::Lines;
  wanted.append_eod = false;
  const auto result = preprocess(wanted, encoder_of(tokenizer));
  EXPECT_EQ(result.replaced_bytes, 3);
  EXPECT_EQ(result.not_utf8, 2);
}

TEST_F(PreprocessTest, SetsWhatTheTemplateSetsAroundEachTextWhereAsked) {
  text::Vocabulary vocabulary;
  vocabulary.tokens = {"<s>", "</s>", "a", "b"};
  vocabulary.word_level.emplace();
  vocabulary.pipeline.emplace();
  using Kind = text::Template::Kind;
  vocabulary.frame.single = {{Kind::Token, 0, 0}, {Kind::First, 0, 0}, {Kind::Token, 1, 0}};
  const text::Tokenizer tokenizer(vocabulary);
  PreprocessOptions wanted = options("{\"text\": [\"a\", \"b\"]}\n{\"text\": \"b\"}\n");
  wanted.append_eod = false;
  const TextEncoder alone = encoder_of(tokenizer), framed = encoder_of(tokenizer, Around::Template);
  EXPECT_EQ(preprocess(wanted, alone).pairs[0].tokens, 3);
  EXPECT_EQ(preprocess(wanted, framed).pairs[0].tokens, 9);
  EXPECT_EQ(read_bytes(folder_ / "out_text_document.bin"), std::string("\0\0\2\0\1\0\0\0\3\0\1\0\0\0\3\0\1\0", 18));
  EXPECT_NE(alone.fingerprint, framed.fingerprint);
  const text::Tokenizer with_special = byte_tokenizer({"<|x|>"});
  const TextEncoder known = encoder_of(with_special, Around::Nothing, text::Specials::Recognised);
  std::vector<std::int32_t> ids;
  known.make()("a<|x|>", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{'a', 256}));
  EXPECT_NE(known.fingerprint, encoder_of(with_special).fingerprint);
  vocabulary.frame.single.pop_back();
  EXPECT_NE(encoder_of(text::Tokenizer(vocabulary), Around::Template).fingerprint, framed.fingerprint);
}

TEST_F(PreprocessTest, RefusesSeveralKeysOfPlainTextAtOnceAlsoWhereBadLinesArePassedOver) {
  for (const TextFormat format : {TextFormat::Auto, TextFormat::Lines, TextFormat::File}) {
    PreprocessOptions wanted = options("one\ntwo\n");
    std::filesystem::rename(folder_ / "in.jsonl", folder_ / "in");
    wanted.text.inputs = {folder_ / "in"};
    wanted.text.format = format;
    wanted.json_keys = {"text", "title"};
    wanted.on_error = OnError::Skip;
    int bad = 0;
    wanted.on_bad_line = [&](const std::string&) { ++bad; };
    EXPECT_THAT(error_of(wanted), HasSubstr("several keys can be taken from JSON lines alone"));
    EXPECT_EQ(bad, 0);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out_text_document.bin"));
  }
}

TEST(MegatronPreprocess, WritesMegatronsBytesOfSentencesWithBertsVocabulary) {
  const std::string vocabulary = shared_folder() + "/data/bert/vocab.txt",
                    golden = shared_folder() + "/golden/megatron/";
  if (!std::filesystem::exists(vocabulary)) GTEST_SKIP() << "no " << vocabulary;
  const text::Tokenizer tokenizer = text::Tokenizer::load(vocabulary);
  TemporaryFolder folder;
  PreprocessOptions wanted{.output_prefix = folder / "bert", .split_sentences = true, .workers = 2};
  wanted.text.inputs = {golden + "docs/bert.jsonl"};
  const std::string prefix = preprocess(wanted, encoder_of(tokenizer)).pairs[0].prefix;
  EXPECT_EQ(read_bytes(prefix + ".bin"), read_bytes(golden + "indexed/bert_text_sentence.bin"));
  EXPECT_EQ(read_bytes(prefix + ".idx"), read_bytes(golden + "indexed/bert_text_sentence.idx"));
}

TEST(MegatronPreprocess, WritesMegatronsBytesWithTheGpt2Tokenizer) {
  const std::string tokenizer_folder = shared_folder() + "/data/gpt2", golden = shared_folder() + "/golden/megatron/";
  if (!std::filesystem::exists(tokenizer_folder)) GTEST_SKIP() << "no " << tokenizer_folder;
  const text::Tokenizer tokenizer = text::Tokenizer::load(tokenizer_folder);
  const TextEncoder encoder = encoder_of(tokenizer);
  TemporaryFolder folder;
  for (const std::string name : {"gpt_a", "gpt_b"}) {
    PreprocessOptions wanted{
        .output_prefix = folder / name, .append_eod = true, .eod = tokenizer.eod_id(), .workers = 2};
    wanted.text.inputs = {golden + "docs/" + name + ".jsonl"};
    wanted.text.block_bytes = 10000;
    const std::string prefix = preprocess(wanted, encoder).pairs[0].prefix, file = "indexed/" + name + "_text_document";
    EXPECT_EQ(read_bytes(prefix + ".bin"), read_bytes(golden + file + ".bin"));
    EXPECT_EQ(read_bytes(prefix + ".idx"), read_bytes(golden + file + ".idx"));
  }
}

}  // namespace
}  // namespace megatron::data
