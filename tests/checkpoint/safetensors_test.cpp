#include "megatron/checkpoint/files/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "tests/testing/folders.h"

namespace megatron::checkpoint {
namespace {

using testing::HasSubstr;

ReadAt reader_of(const std::string& file) {
  return [&file](std::uint64_t offset, std::span<std::byte> into) {
    std::memcpy(into.data(), file.data() + offset, into.size());
  };
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'x');
}

std::string error_of(const std::string& file) {
  try {
    read_safetensors(reader_of(file), file.size(), "model.safetensors");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Safetensors, ReadsWhatThePythonPackageWrote) {
  const std::string file = read_file(tests_folder() + "/golden/checkpoint/reference.safetensors");
  const SafetensorsHeader header = read_safetensors(reader_of(file), file.size(), "reference");
  EXPECT_EQ(header.metadata.at("note"), "written by the Python package safetensors 0.8.0");
  std::map<std::string, SafetensorsEntry> entries;
  for (const SafetensorsEntry& entry : header.tensors) entries[entry.name] = entry;
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries["weight"].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(entries["weight"].dtype, "F32");
  EXPECT_EQ(entries["empty"].shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(entries["scalar"].shape.empty());
  std::vector<float> weight(6);
  std::memcpy(weight.data(), file.data() + entries["weight"].begin, 24);
  EXPECT_EQ(weight, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  std::int64_t bias[3];
  std::memcpy(bias, file.data() + entries["bias"].begin, sizeof bias);
  EXPECT_EQ(bias[1], -2);
}

TEST(Safetensors, ReadsBackWhatItPlaced) {
  std::string text;
  const SafetensorsHeader made = make_safetensors(
      {{.name = "b", .dtype = "BF16", .shape = {3, 5}}, {.name = "a\"\n", .dtype = "I64", .shape = {}}},
      {{"key", "value"}}, text);
  EXPECT_EQ(made.data_begin % 64, 0u);
  EXPECT_EQ(made.file_size(), made.data_begin + 30 + 8);
  const std::string file = text + std::string(38, '\0');
  const SafetensorsHeader read = read_safetensors(reader_of(file), file.size(), "file");
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].name, "b");
  EXPECT_EQ(read.tensors[1].name, "a\"\n");
  EXPECT_EQ(read.tensors[1].begin, made.tensors[1].begin);
  EXPECT_EQ(read.metadata, made.metadata);
}

TEST(Safetensors, RefusesDamagedHeadersNamingFileAndByte) {
  const auto one = [](const char* fields) { return std::string(R"({"w":{)") + fields + "}}"; };
  const std::string good = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  ASSERT_EQ(error_of(file_of(good, 8)), "no error");
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"", "the end of the file inside the header's length at byte 0"},
      {"\x01\x02", "at byte 2"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + good, "a header length of 18446744073709551615"},
      {file_of(good, 8).substr(0, 30), "a header length of"},
      {file_of("{nonsense", 0), "not JSON at byte"},
      {file_of("[]", 0), "not a JSON object"},
      {file_of("{\"\xff\":1}", 0), "not JSON"},
      {file_of(good, 7), "the end of the file, but tensor \"w\" ends at byte"},
      {file_of(good, 9), "1 bytes that belong to no tensor"},
      {file_of(one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), 8), "without a known dtype"},
      {file_of(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8), "need 12"},
      {file_of(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8), "something other than sizes"},
      {file_of(one(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), 8), "something other than sizes"},
      {file_of(one(R"("dtype":"F32","shape":[1152921504606846976,1152921504606846976],"data_offsets":[0,8])"), 8),
       "2^60"},
      {file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8), "not [begin, end]"},
      {file_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8), "not [begin, end]"},
      {file_of(one(R"("dtype":"F32","shape":[2])"), 8), "without the list \"data_offsets\""},
      {file_of(R"({"w":7})", 0), "without the list \"shape\""},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "is not a string"},
      {file_of(R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
               3),
       "a hole or an overlap before tensor \"w\""},
      {file_of(R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("w":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
               5),
       "a hole or an overlap before tensor \"w\""},
      {file_of(R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
               2),
       "the key \"v\" twice"},
  };
  for (const auto& [file, message] : damaged) {
    EXPECT_THAT(error_of(file), HasSubstr(message)) << file;
    EXPECT_THAT(error_of(file), HasSubstr("model.safetensors")) << file;
  }
}

}  // namespace
}  // namespace megatron::checkpoint
