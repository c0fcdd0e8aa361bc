#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/data/columns/json_text.h"
#include "megatron/data/columns/rows.h"
#include "megatron/data/columns/unpack.h"
#include "megatron/data/files/dataset_folder.h"
#include "megatron/data/files/text_reader.h"
#include "tests/data/support.h"

// The files are those that the fuzz targets begin with: written by pyarrow, which reads from them what is said here,
// but for root_is_a_column, which a fuzz target has made of one.
namespace megatron::data {
namespace {

using testing::HasSubstr;

std::string file_of(const std::string& format, const std::string& name) {
  return read_bytes(tests_folder() + "/../fuzz/corpus/" + format + "/" + name);
}

std::string lines_of(const std::string& format, std::string_view bytes) {
  const ColumnFile file{"input", as_bytes(bytes)};
  const auto rows = format == "parquet" ? open_parquet(file) : open_arrow(file);
  std::string lines;
  while (rows->next(lines)) {
  }
  return lines;
}

constexpr const char* kFlat =
    R"({"text":"one two","n":1,"u":1,"x":0.5,"f":0.1,"b":true,"raw":"ab"}
{"text":"\"three\"\n","n":-2,"u":2,"x":1.25,"f":0.1,"b":null,"raw":null}
{"text":"","n":3,"u":3,"x":null,"f":0.1,"b":false,"raw":""}
{"text":"one two","n":null,"u":4,"x":-1,"f":0.1,"b":true,"raw":null}
{"text":null,"n":5,"u":5,"x":2,"f":0.1,"b":true,"raw":"x"}
{"text":"漢字","n":6,"u":18446744073709551615,"x":3,"f":0.1,"b":false,"raw":"y"}
)";
constexpr const char* kNested =
    R"({"tags":["a","b"],"meta":{"l":"en","p":[{"n":1},{"n":2}]},"m":[{"key":"k","value":1}]}
{"tags":[],"meta":null,"m":[]}
{"tags":null,"meta":{"l":null,"p":[]},"m":null}
{"tags":["c"],"meta":{"l":"x","p":null},"m":[{"key":"a","value":2},{"key":"b","value":null}]}
{"tags":[null],"meta":{"l":"y","p":[{"n":null}]},"m":[{"key":"c","value":3}]}
{"tags":["d","d","d"],"meta":{"l":"z","p":[null]},"m":[]}
)";
constexpr const char* kTexts =
    "{\"text\":\"one two\"}\n{\"text\":\"\\\"three\\\"\\n\"}\n{\"text\":\"\"}\n{\"text\":\"one two\"}\n"
    "{\"text\":null}\n{\"text\":\"漢字\"}\n";

TEST(Columns, RowsAreWhatPyarrowReads) {
  for (const char* format : {"parquet", "arrow"}) {
    EXPECT_EQ(lines_of(format, file_of(format, "flat")), kFlat) << format;
    EXPECT_EQ(lines_of(format, file_of(format, "nested")), kNested) << format;
  }
}

TEST(Columns, EncodingsAndCompressionsGiveTheSameTexts) {
  for (const char* name : {"gzip", "lz4", "lengths"})
    EXPECT_EQ(lines_of("parquet", file_of("parquet", name)), kTexts) << name;
  for (const char* name : {"zstd", "codes", "feather"})
    EXPECT_EQ(lines_of("arrow", file_of("arrow", name)), kTexts) << name;
  EXPECT_THAT(lines_of("parquet", file_of("parquet", "snappy")), HasSubstr("{\"text\":\"one two\",\"n\":null}\n"));
  EXPECT_THAT(lines_of("parquet", file_of("parquet", "v2_zstd")), HasSubstr("{\"text\":null,\"b\":true}\n"));
  EXPECT_THAT(lines_of("parquet", file_of("parquet", "deltas")),
              HasSubstr("{\"text\":\"漢字\",\"n\":6,\"u\":18446744073709551615}\n"));
  EXPECT_THAT(lines_of("arrow", file_of("arrow", "lz4")), HasSubstr("{\"text\":\"漢字\",\"x\":3}\n"));
  EXPECT_THAT(lines_of("arrow", file_of("arrow", "views")),
              HasSubstr("{\"text\":\"longer than twelve bytes\",\"fixed\":[1,2]}\n"));
}

TEST(Columns, DifferencesOfManyValuesAreAddedUp) {
  std::string expected;
  for (std::int64_t i = 0; i < 150; ++i)
    expected += concat("{\"a\":\"", std::string(static_cast<std::size_t>(i * 7 % 40), 'x'), "\",\"b\":\"prefix", i,
                       "\",\"n\":", i * i * i * (i % 2 == 0 ? -1 : 1), "}\n");
  EXPECT_EQ(lines_of("parquet", file_of("parquet", "many")), expected);
}

TEST(Columns, AFileThatIsCutOffIsRefusedWhereverItIs) {
  for (const char* format : {"parquet", "arrow"})
    for (const char* name : {"flat", "nested"}) {
      const std::string whole = file_of(format, name);
      for (std::size_t size = 0; size < whole.size(); ++size)
        EXPECT_THROW(lines_of(format, whole.substr(0, size)), ConfigError) << format << " " << name << " " << size;
    }
}

TEST(Columns, ASchemaThatBeginsWithAColumnIsRefused) {
  try {
    lines_of("parquet", file_of("parquet", "root_is_a_column"));
    ADD_FAILURE() << "taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a schema must begin with the group of its columns"));
  }
}

std::string unpacked(Codec codec, std::string_view packed, std::uint64_t size) {
  std::vector<std::byte> out;
  unpack(codec, as_bytes(packed), size, {"input"}, 0, out);
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

// By the descriptions of the formats: snappy's format_description.txt, lz4_Block_format.md.
TEST(Columns, SnappyAndLz4RepeatWhatWasThere) {
  using std::string_literals::operator""s;
  EXPECT_EQ(unpacked(Codec::Snappy, "\x08\x04"s + "ab" + "\x09\x02", 8), "abababab");     // 2 + 6 at distance 2
  EXPECT_EQ(unpacked(Codec::Snappy, "\x06\x04"s + "ab" + "\x0e\x02\x00"s, 6), "ababab");  // the copy of 2 bytes
  EXPECT_EQ(unpacked(Codec::Snappy, "\x06\x04"s + "ab" + "\x0f\x02\x00\x00\x00"s, 6), "ababab");
  EXPECT_EQ(unpacked(Codec::Lz4Block, "\x22"s + "ab" + "\x02\x00\x10"s + "c", 9), "ababababc");
  for (const std::string& wrong :
       {""s, "\x08"s, "\x08\x04"s, "\x08\x04"s + "ab" + "\x09\x03", "\x08\x04"s + "ab" + "\x09\x00"s,
        "\x09\x04"s + "ab" + "\x09\x02", "\xff\xff\xff\xff\xff\xff"s})
    EXPECT_THROW(unpacked(Codec::Snappy, wrong, 8), ConfigError) << testing::PrintToString(wrong);
  for (const std::string& wrong :
       {""s, "\x22"s + "ab", "\x22"s + "ab" + "\x03\x00\x10"s + "c", "\x22"s + "ab" + "\x00\x00\x10"s + "c",
        "\xf0\xff\xff"s, "\x2f"s + "ab" + "\x02\x00\xff\xff\xff\x00"s})
    EXPECT_THROW(unpacked(Codec::Lz4Block, wrong, 9), ConfigError) << testing::PrintToString(wrong);
}

TEST(Columns, AnnouncedSizesAreNotBelieved) {
  for (const Codec codec : {Codec::None, Codec::Snappy, Codec::Gzip, Codec::Zstd, Codec::Lz4Block, Codec::Lz4Frame})
    for (const std::uint64_t size : {std::uint64_t{1} << 30, ~std::uint64_t{0}})
      EXPECT_THROW(unpacked(codec, "\x28\xB5\x2F\xFD", size), ConfigError);
}

TEST(Columns, TextsAreEscaped) {
  std::string out;
  append_json_string(std::string_view("a\"\\\n\r\t\0\x1F/é", 11), out);
  EXPECT_EQ(out, R"("a\"\\\n\r\t\u0000\u001f/é")");
  out.clear();
  append_json_bytes("\xFF", out);
  append_json_number(std::numeric_limits<double>::infinity(), out);
  append_json_number(std::numeric_limits<std::int64_t>::min(), out);
  EXPECT_EQ(out, "nullnull-9223372036854775808");
}

TEST(Columns, AReaderTakesRowsForLines) {
  const TemporaryFolder folder;
  write_bytes(folder / "rows", file_of("parquet", "gzip"));  // told by what it holds
  TextReader reader({.inputs = {folder / "rows"}, .block_bytes = 7});
  std::string document;
  for (const char* text : {"one two", "\"three\"\n", "", "one two"}) {
    ASSERT_TRUE(reader.next(document));
    EXPECT_EQ(document, text);
  }
  try {
    reader.next(document);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows, line 5, "));
  }
  EXPECT_THROW(TextReader({.inputs = {folder / "rows"}, .format = TextFormat::Lines}).next(document), ConfigError);
}

TEST(Columns, ReadingResumesBetweenAnyTwoRows) {
  const TemporaryFolder folder;
  write_bytes(folder / "rows", file_of("arrow", "nested"));
  const std::string_view lines = kNested;
  std::int64_t line = 1;
  for (std::size_t begin = 0, end = 0; begin < lines.size(); begin = end + 1, ++line) {
    end = lines.find('\n', begin);
    BlockReader reader({.inputs = {folder / "rows"}});
    reader.start_at({0, static_cast<std::int64_t>(begin), line});
    TextBlock block;
    ASSERT_TRUE(reader.next(block));
    const TextBlock::Record& record = block.records.at(0);
    EXPECT_EQ(block.bytes.substr(record.begin, record.size), lines.substr(begin, end - begin));
    EXPECT_EQ(record.line, line);
  }
}

TEST(Columns, ASavedDatasetStandsForItsFiles) {
  const TemporaryFolder folder;
  const std::string& place = folder.path();
  EXPECT_EQ(with_dataset_files({"-", place}), (std::vector<std::string>{"-", place}));
  write_bytes(folder / "state.json", R"({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]})");
  EXPECT_EQ(with_dataset_files({"x", place}), (std::vector<std::string>{"x", place + "/b.arrow", place + "/a.arrow"}));
  for (const char* wrong : {"", "[]", "{}", R"({"_data_files": [{"filename": "../a"}]})", R"({"_data_files": [7]})",
                            R"({"_data_files": [{"filename": "a"}], "_indices_data_files": [{"filename": "b"}]})"}) {
    write_bytes(folder / "state.json", wrong);
    EXPECT_THROW(with_dataset_files({place}), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace megatron::data
