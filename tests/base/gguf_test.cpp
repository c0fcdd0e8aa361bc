#include "megatron/base/files/gguf.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "megatron/base/error.h"

namespace megatron {
namespace {

/// A file of one entry of each form and two tensors, by hand; members that a test spoils.
struct GgufFile {
  std::uint32_t version = 3, type = 8, alignment = 32;
  std::uint64_t columns = 64, offset = 96, entries = 5;
  std::string first = "a", second = "b";

  template <class T>
  static std::string bytes_of(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string text(const std::string& text) { return bytes_of(std::uint64_t{text.size()}) + text; }

  std::string bytes() const {
    std::string file = "GGUF" + bytes_of(version) + bytes_of(std::uint64_t{2}) + bytes_of(entries);
    file += text("general.alignment") + bytes_of(std::uint32_t{4}) + bytes_of(alignment);
    file += text("name") + bytes_of(std::uint32_t{8}) + text("llama");
    file += text("eps") + bytes_of(std::uint32_t{6}) + bytes_of(0.5F);
    file += text("flag") + bytes_of(std::uint32_t{7}) + bytes_of(std::uint8_t{1});
    file += text("list") + bytes_of(std::uint32_t{9}) + bytes_of(std::uint32_t{8}) + bytes_of(std::uint64_t{2}) +
            text("x") + text("yz");
    // a: [3], float32; b: [2, columns] of `type`
    file += text(first) + bytes_of(std::uint32_t{1}) + bytes_of(std::uint64_t{3}) + bytes_of(std::uint32_t{0}) +
            bytes_of(std::uint64_t{0});
    file += text(second) + bytes_of(std::uint32_t{2}) + bytes_of(columns) + bytes_of(std::uint64_t{2}) +
            bytes_of(type) + bytes_of(offset);
    file.resize((file.size() + 31) / 32 * 32);
    return file + std::string(96 + 136, '\1');
  }
};

TEST(Gguf, IsReadAsItWasWritten) {
  const std::string bytes = GgufFile().bytes();
  const Gguf file(bytes, "file");
  EXPECT_EQ(*file.find<std::string_view>("name"), "llama");
  EXPECT_EQ(*file.find<double>("eps"), 0.5);
  EXPECT_TRUE(*file.find<bool>("flag"));
  EXPECT_EQ(*file.find<std::vector<std::string_view>>("list"), (std::vector<std::string_view>{"x", "yz"}));
  EXPECT_EQ(file.find<std::int64_t>("nothing"), nullptr);
  EXPECT_THROW(file.find<std::int64_t>("name"), ConfigError);
  ASSERT_EQ(file.tensors().size(), 2);
  const GgufTensor& b = file.tensors()[1];
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 64}));
  EXPECT_EQ(b.bytes, 4 * 34);
  EXPECT_EQ(b.begin + b.bytes, bytes.size());
}

TEST(Gguf, EachFaultIsRefused) {
  const auto refused = [](const GgufFile& file) {
    try {
      const std::string bytes = file.bytes();
      const Gguf read(bytes, "file");
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_NE(refused({.version = 1}).find("version 1"), std::string::npos);
  EXPECT_NE(refused({.version = 0x03000000}).find("little-endian"), std::string::npos);
  EXPECT_NE(refused({.type = 10}).find("type 10"), std::string::npos);              // Q2_K
  EXPECT_NE(refused({.type = 12}).find("whole blocks of 256"), std::string::npos);  // Q4_K
  EXPECT_NE(refused({.alignment = 24}).find("power of two"), std::string::npos);
  EXPECT_NE(refused({.columns = 65}).find("whole blocks"), std::string::npos);
  EXPECT_NE(refused({.columns = 96}).find("must lie in the file"), std::string::npos);
  EXPECT_NE(refused({.columns = std::uint64_t{1} << 62}).find("2^60"), std::string::npos);
  EXPECT_NE(refused({.offset = 97}).find("multiple of 32"), std::string::npos);
  EXPECT_NE(refused({.offset = ~std::uint64_t{31}}).find("must lie in the file"), std::string::npos);
  EXPECT_NE(refused({.second = "a"}).find("twice"), std::string::npos);
  EXPECT_NE(refused({.first = "\xFF"}).find("UTF-8"), std::string::npos);
  EXPECT_NE(refused({.entries = 6}), "");
  EXPECT_NE(refused({.entries = ~std::uint64_t{0}}), "");
}

TEST(Gguf, NoBeginningOfAFileIsAFile) {
  const std::string bytes = GgufFile().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(Gguf(std::string_view(bytes).substr(0, size), "file"), ConfigError) << size;
}

}  // namespace
}  // namespace megatron
