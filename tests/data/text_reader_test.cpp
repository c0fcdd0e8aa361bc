#include "megatron/data/files/text_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <numeric>

#include "tests/data/support.h"

namespace megatron::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string xz(std::string_view text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  std::size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()),
                                    text.size(), reinterpret_cast<std::uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

std::vector<std::string> documents_of(const std::string& path, TextReaderOptions options = {}) {
  options.inputs = {path};
  TextReader reader(options);
  std::vector<std::string> documents;
  for (std::string document; reader.next(document);) documents.push_back(document);
  return documents;
}

std::string error_of(const std::string& path, const TextReaderOptions& options = {}) {
  try {
    documents_of(path, options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

class TextReaderTest : public testing::Test {
 protected:
  std::string file(const std::string& name, std::string_view content) {
    write_bytes(folder_ / name, content);
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

constexpr const char* kLines =
    "{\"text\": \"one\"}\n\n{\"id\": 7, \"text\": \"tw\\u00f6\\n\", \"x\": [{\"text\": 1}]}\r\n{\"text\": \"\"}";

TEST_F(TextReaderTest, TakesTheTextOfEachJsonLine) {
  EXPECT_THAT(documents_of(file("a.jsonl", kLines)), ElementsAre("one", "twö\n", ""));
  EXPECT_THAT(documents_of(file("b.jsonl", std::string("\xEF\xBB\xBF") + kLines + "\n")),
              ElementsAre("one", "twö\n", ""));
  EXPECT_THAT(documents_of(file("c.jsonl", "{\"text\": 3, \"body\": \"b\"}"), {.json_key = "body"}), ElementsAre("b"));
  EXPECT_THAT(documents_of(file("d.jsonl", "{\"text\": \"first\", \"text\": \"last\"}")), ElementsAre("last"));
  EXPECT_THAT(documents_of(file("e.jsonl", "{\"text\": [\"A b.\", \"C.\"]}")), ElementsAre("A b. C."));
}

TEST_F(TextReaderTest, UnpacksByContentWhateverTheName) {
  for (const auto& pack : {gzip, zstd, xz}) {
    EXPECT_THAT(documents_of(file("packed", pack(kLines))), ElementsAre("one", "twö\n", ""));
    // Members and frames one after another are one text, also where a line crosses them.
    EXPECT_THAT(documents_of(file("packed", pack("{\"text\":") + pack("\"x\"}\n{\"text\": \"y\"}"))),
                ElementsAre("x", "y"));
    const std::string half = pack(std::string(5000, 'a') + kLines);
    EXPECT_THAT(error_of(file("cut", half.substr(0, half.size() - 9))), HasSubstr("cut, byte "));
  }
  EXPECT_THAT(error_of(file("text.gz", kLines)), HasSubstr("text.gz, byte 0: a .gz file must begin as gzip does"));
  EXPECT_THAT(error_of(file("text.jsonl.zst", "")), HasSubstr("text.jsonl.zst, byte 0:"));
  EXPECT_THAT(error_of(file("text.xz", zstd(kLines))), HasSubstr("a .xz file must begin as xz does"));
}

TEST_F(TextReaderTest, NamesTheProgramThatUnpacksWhatItDoesNot) {
  // As bzip2, lz4, xz --format=lzma and zip begin.
  const std::string bzip2 = "BZh91AY&SY\x12", lzma("\x5D\0\0\x80\0\xFF", 6), zip = "PK\x03\x04\x14";
  EXPECT_THAT(error_of(file("a.jsonl.bz2", bzip2)),
              HasSubstr("unpack it first: bzip2 -dk " + (folder_ / "a.jsonl.bz2")));
  EXPECT_THAT(error_of(file("a.jsonl", bzip2)), HasSubstr("bzip2 -dk"));
  EXPECT_THAT(error_of(file("a", "\x04\x22\x4D\x18rest")), HasSubstr("lz4 -dk"));
  EXPECT_THAT(error_of(file("a.jsonl.lzma", lzma)), HasSubstr("xz -dk"));
  EXPECT_THAT(error_of(file("a.zip", zip)), HasSubstr("unzip"));
  EXPECT_THAT(documents_of(file("a", "BZh9 is how they begin")), ElementsAre("BZh9 is how they begin"));
  // A frame of zstd whose header asks for a window of 2 GiB, as --long=31 does.
  const std::string wide("\x28\xB5\x2F\xFD\x00\xA8\x01\x00\x00", 9);
  EXPECT_THAT(error_of(file("a.zst", wide)),
              AllOf(HasSubstr("at most 128 MiB"), HasSubstr("zstd -dk --long=31 " + (folder_ / "a.zst"))));
}

TEST_F(TextReaderTest, TakesNumbersOfAnySize) {
  for (const std::string number : {"123456789012345678901234567890", "-1e400", "1E+400", "0.1e-999"}) {
    const std::string line = "{\"text\": \"a \\\" 1e400\", \"n\": [" + number + ", {\"m\":" + number + "}]}";
    EXPECT_THAT(documents_of(file("a.jsonl", line)), ElementsAre("a \" 1e400")) << number;
  }
  for (const std::string number : {"012345678901234567890123", "1e", "1e400.5", "--1e400", "1e400x", "1e400 1"})
    EXPECT_THAT(error_of(file("a.jsonl", "{\"text\": \"a\", \"n\": " + number + "}")),
                HasSubstr("each line must be JSON"))
        << number;
}

TEST_F(TextReaderTest, TakesZerosAfterTheLastGzipMemberAsItsEnd) {
  for (const std::size_t zeros : {std::size_t{1}, std::size_t{511}, std::size_t{1} << 19})
    EXPECT_THAT(documents_of(file("padded", gzip(kLines) + std::string(zeros, '\0'))), ElementsAre("one", "twö\n", ""));
  const std::size_t size = gzip(kLines).size() + 300;
  EXPECT_THAT(error_of(file("padded", gzip(kLines) + std::string(300, '\0') + gzip(kLines))),
              HasSubstr(concat("padded, byte ", size, ": after gzip data may come zeros alone.")));
}

TEST_F(TextReaderTest, CutsPlainTextAsAsked) {
  const std::string path = file("a.txt", "\n{a\nb\n\n \t\nc\r\n\n\n\nd\n");
  EXPECT_THAT(documents_of(path), ElementsAre("\n{a\nb\n\n \t\nc\r\n\n\n\nd\n"));
  EXPECT_THAT(documents_of(path, {.format = TextFormat::Lines}), ElementsAre("{a", "b", "c", "d"));
  EXPECT_THAT(documents_of(path, {.format = TextFormat::Paragraphs}), ElementsAre("{a\nb", "c", "d"));
  EXPECT_THAT(documents_of(file("unnamed", "  {\"text\": \"json by content\"}")), ElementsAre("json by content"));
  EXPECT_THAT(documents_of(file("empty.txt", ""), {.format = TextFormat::Lines}), ElementsAre());
  EXPECT_THAT(documents_of(file("empty.jsonl", "")), ElementsAre());
}

TEST_F(TextReaderTest, TakesEachFileForADocumentAlsoAnEmptyOne) {
  TextReaderOptions options{.inputs = {file("a.txt", ""), file("b.txt", " \n"), file("c", gzip("")), file("d", "d")}};
  std::vector<std::string> documents;
  TextReader reader(options);
  for (std::string document; reader.next(document);) documents.push_back(document);
  EXPECT_THAT(documents, ElementsAre("", " \n", "", "d"));
}

TEST_F(TextReaderTest, CountsBlankLinesAndPiecesThatItPassesOverForAnyBlockSize) {
  const std::string text = "\n{}\n \n{}\n\n\t\n", pieces = std::string(17, ' ') + "x" + std::string(9, '\n');
  for (const std::size_t block : {1, 5, 1000}) {
    const auto counted = [&](const char* name, std::string_view content, TextFormat format) {
      BlockReader reader({.inputs = {file(name, content)}, .format = format, .piece_bytes = 8, .block_bytes = block});
      for (TextBlock records; reader.next(records);) EXPECT_FALSE(records.records.empty());
      return reader.blank_records();
    };
    EXPECT_EQ(counted("a.jsonl", text, TextFormat::Auto), 4);
    EXPECT_EQ(counted("b", text, TextFormat::Lines), 4);
    EXPECT_EQ(counted("c", text, TextFormat::Paragraphs), 0);
    EXPECT_EQ(counted("d", text, TextFormat::File), 0);
    EXPECT_EQ(counted("e", pieces, TextFormat::Pieces), 3);  // 8 spaces twice; "\n" after " x" and 7 others
  }
}

TEST_F(TextReaderTest, GivesTheSameDocumentsForAnyBlockSize) {
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    expected.emplace_back(static_cast<std::size_t>(i * 7 % 101 + 1), static_cast<char>('a' + i % 26));
    text += expected.back() + (i % 3 == 0 ? "\n\n\n" : "\n\n");
  }
  const std::string path = file("many", text);
  for (const std::size_t block : {1, 2, 7, 64, 100000})
    EXPECT_EQ(documents_of(path, {.format = TextFormat::Paragraphs, .block_bytes = block}), expected) << block;
  for (const std::size_t block : {1, 7, 100000})
    EXPECT_EQ(documents_of(path, {.format = TextFormat::Lines, .block_bytes = block}), expected) << block;
}

TEST_F(TextReaderTest, CutsPiecesAfterLinesElseBlanksElseBetweenCharacters) {
  const auto pieces = [&](std::string_view text) {
    return documents_of(file("in.txt", text), {.format = TextFormat::Pieces, .piece_bytes = 8});
  };
  EXPECT_THAT(pieces("12345678"), ElementsAre("12345678"));
  EXPECT_THAT(pieces("one\ntwo three\n"), ElementsAre("one\n", "two ", "three\n"));
  EXPECT_THAT(pieces("1234567\n\n2"), ElementsAre("1234567\n", "\n2"));
  EXPECT_THAT(pieces("1234567äöü"), ElementsAre("1234567", "äöü"));
  EXPECT_THAT(pieces("12345\xF0\x9F\x99\x82."), ElementsAre("12345", "\xF0\x9F\x99\x82."));
  EXPECT_THAT(pieces(std::string(10, '\x80')), ElementsAre(std::string(8, '\x80'), "\x80\x80"));
  EXPECT_THAT(pieces("          {}"), ElementsAre("  {}"));
  EXPECT_THAT(pieces(""), ElementsAre());
}

TEST_F(TextReaderTest, PiecesJoinedAreTheTextForAnyBlockSizeAndNoneIsTooLong) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 7 == 0 ? "\n" : i % 5 == 0 ? " ä" : concat(i * i % 1013, "ß");
  const std::string path = file("text", text);
  TextReaderOptions options{.format = TextFormat::Pieces, .max_document_bytes = 100, .piece_bytes = 100};
  const std::vector<std::string> expected = documents_of(path, options);
  EXPECT_EQ(std::accumulate(expected.begin(), expected.end(), std::string()), text);
  for (const std::string& piece : expected) EXPECT_LE(piece.size(), 100u);
  for (const std::size_t block : {1, 7, 99, 100, 101, 5000}) {
    options.block_bytes = block;
    EXPECT_EQ(documents_of(path, options), expected) << block;
  }
  options.piece_bytes = 101;
  EXPECT_THAT(error_of(path, options), HasSubstr("4 to 100 bytes"));
  options.piece_bytes = 3;
  EXPECT_THAT(error_of(path, options), HasSubstr("4 to 100 bytes"));
}

TEST_F(TextReaderTest, NamesFileLineAndByteOfABadLine) {
  // Line 1 has 4100 bytes with its end, so the bad line stands beyond the first piece that is read.
  const std::string good = "{\"text\": \"" + std::string(4087, 'x') + "\"}\n";
  ASSERT_EQ(good.size(), 4100u);
  for (const char* bad : {"{\"text\": \"a\"", "{\"text\": \"a\"} b", "[1]", "{\"body\": \"a\"}", "{\"text\": null}",
                          "{\"text\": [1]}", "{\"text\": \"\xFF\"}", "{\"text\": \"\\ud800\"}", "nonsense"})
    for (const std::size_t block : {16, 1 << 20})
      EXPECT_THAT(error_of(file("bad.jsonl", good + "\n" + bad + "\n" + good), {.block_bytes = block}),
                  HasSubstr("bad.jsonl, line 3, byte 4101: "))
          << bad;
}

TEST_F(TextReaderTest, RefusesADocumentLongerThanTheLimit) {
  const TextReaderOptions limit{.max_document_bytes = 100, .block_bytes = 64};
  EXPECT_THAT(documents_of(file("fits.txt", std::string(100, 'a')), limit).size(), 1u);
  EXPECT_THAT(error_of(file("long.txt", std::string(101, 'a')), limit), HasSubstr("long.txt, line 1, byte 0: "));
  const std::string line = "{\"text\": \"" + std::string(100, 'a') + "\"}";
  EXPECT_THAT(error_of(file("long.jsonl", "{\"text\": \"\"}\n" + line), limit),
              HasSubstr("long.jsonl, line 2, byte 13: "));
  EXPECT_THAT(error_of(file("long.jsonl", "{\"text\": \"\"}\n" + line + "\n{"), limit), HasSubstr("line 2, byte 13: "));
}

TEST_F(TextReaderTest, EndsWithAnErrorWhereverACompressedFileIsCutOrChanged) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += concat("{\"text\": \"document ", i * i, "\"}\n");
  for (const auto& pack : {gzip, zstd, xz}) {
    const std::string packed = pack(text);
    const std::string twice = packed + packed;
    for (std::size_t size = 1; size < packed.size(); size += 7)
      EXPECT_THAT(error_of(file("cut.jsonl", twice.substr(0, packed.size() + size))), HasSubstr("cut.jsonl, byte "));
    // zstd's one-shot frames have no checksum, so that not every change is seen.
    for (std::size_t at = 20; at + 20 < packed.size(); at += 11) {
      std::string changed = packed;
      changed[at] = static_cast<char>(changed[at] ^ 0x55);
      const std::string error = error_of(file("changed.jsonl", changed));
      EXPECT_TRUE(pack == zstd || error.find("changed.jsonl, ") != std::string::npos) << at << ": " << error;
    }
  }
}

/// Documents, or "line N" for what is refused, in their order, for one block size.
std::vector<std::string> outcomes_of(const std::string& path, TextReaderOptions options, TextPosition from = {}) {
  options.inputs = {path};
  BlockReader reader(options);
  DocumentParser parser("text");
  reader.start_at(from);
  std::vector<std::string> outcomes;
  for (TextBlock block; reader.next(block);) {
    EXPECT_LE(block.bytes.size(), options.max_document_bytes + 2 * options.block_bytes + 8192);
    for (std::size_t i = 0; i < block.records.size(); ++i) {
      try {
        outcomes.emplace_back(parser.parse(block, i)[0]);
      } catch (const ConfigError&) {
        outcomes.push_back(concat("line ", block.records[i].line, " byte ", block.records[i].offset));
      }
    }
  }
  return outcomes;
}

TEST_F(TextReaderTest, PassesOverWhatIsTooLongWhateverTheBlockSize) {
  std::string lines, paragraphs;
  std::vector<std::string> of_lines, of_paragraphs;
  int line = 1;
  for (int i = 0; i < 60; ++i) {
    const auto size = static_cast<std::size_t>(i * i * 37 % 300 + 1);
    const std::string text(size, static_cast<char>('a' + i % 26));
    of_lines.push_back(size <= 100 ? text : concat("line ", i + 1, " byte ", lines.size()));
    lines += text + "\n";
    const std::string paragraph = text + "\n" + text;
    const std::size_t whole = paragraph.size() + 1;
    of_paragraphs.push_back(whole <= 100 ? paragraph : concat("line ", line, " byte ", paragraphs.size()));
    const int blanks = 1 + i % 3;
    paragraphs += paragraph + "\n" + std::string(static_cast<std::size_t>(blanks), '\n');
    line += 2 + blanks;
  }
  for (const std::size_t block : {1, 3, 64, 100, 101, 1000, 100000}) {
    EXPECT_EQ(
        outcomes_of(file("l", lines), {.format = TextFormat::Lines, .max_document_bytes = 100, .block_bytes = block}),
        of_lines)
        << block;
    EXPECT_EQ(outcomes_of(file("p", paragraphs),
                          {.format = TextFormat::Paragraphs, .max_document_bytes = 100, .block_bytes = block}),
              of_paragraphs)
        << block;
  }
  const std::string huge =
      "{\"text\": \"one\"}\n{\"text\": \"" + std::string(1 << 20, 'x') + "\"}\n" + "{\"text\": \"two\"}\n";
  EXPECT_THAT(outcomes_of(file("h.jsonl", huge), {.max_document_bytes = 100, .block_bytes = 4096}),
              ElementsAre("one", "line 2 byte 16", "two"));
  EXPECT_THAT(outcomes_of(file("h.txt", huge), {.max_document_bytes = 100, .block_bytes = 4096}),
              ElementsAre("line 1 byte 0"));
}

TEST_F(TextReaderTest, GoesOnFromTheEndOfAnyBlock) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += std::string(static_cast<std::size_t>(i * 7 % 50), 'y') + (i % 3 ? "\n" : "\n\n");
  const std::vector<std::string> inputs = {file("a.jsonl.gz", gzip(kLines)), file("b", text), file("c", zstd(text))};
  for (const TextFormat format : {TextFormat::Lines, TextFormat::Paragraphs, TextFormat::File, TextFormat::Pieces}) {
    TextReaderOptions options{
        .inputs = inputs, .format = format, .max_document_bytes = 50000, .piece_bytes = 64, .block_bytes = 300};
    std::vector<std::pair<std::int64_t, std::string>> all;   // line and text
    std::vector<std::pair<TextPosition, std::size_t>> ends;  // and how many records came before
    const auto read = [&](const TextPosition& from, auto& records, bool note) {
      BlockReader reader(options);
      reader.start_at(from);
      for (TextBlock block; reader.next(block);) {
        for (const auto& record : block.records)
          records.emplace_back(record.line, block.bytes.substr(record.begin, record.size));
        if (note && block.end) ends.emplace_back(*block.end, records.size());
      }
    };
    read({}, all, true);
    ASSERT_GT(ends.size(), 2u);
    for (std::size_t i = 0; i < ends.size(); i += 3) {
      std::vector<std::pair<std::int64_t, std::string>> rest;
      read(ends[i].first, rest, false);
      const std::vector<std::pair<std::int64_t, std::string>> expected(
          all.begin() + static_cast<std::ptrdiff_t>(ends[i].second), all.end());
      EXPECT_EQ(rest, expected) << static_cast<int>(format) << ", " << i;
    }
  }
}

TEST_F(TextReaderTest, SaysWhichInputIsMissingBeforeItReadsAny) {
  EXPECT_THROW(BlockReader({.inputs = {}}), ConfigError);
  EXPECT_THROW(BlockReader({.inputs = {file("there", "x"), folder_ / "absent"}}), ConfigError);
  EXPECT_THROW(BlockReader({.inputs = {file("there", "x"), folder_.path()}}), ConfigError);
  EXPECT_THAT(error_of(folder_.path()), HasSubstr("is a folder"));
}

TEST_F(TextReaderTest, CountsTheBytesOfAllInputsAsTheyLieOnDisk) {
  const std::string a = file("a", gzip(kLines)), b = file("b", kLines);
  TextReader reader({.inputs = {a, b}});
  const auto total = static_cast<std::int64_t>(gzip(kLines).size() + std::string_view(kLines).size());
  EXPECT_EQ(reader.total_bytes(), total);
  for (std::string document; reader.next(document);) EXPECT_LE(reader.position(), total);
  EXPECT_EQ(reader.position(), total);
}

}  // namespace
}  // namespace megatron::data
