#include "megatron/base/text/protobuf.h"

#include <gtest/gtest.h>

#include <string>

namespace megatron {
namespace {

using namespace std::string_literals;

// Bytes of the format's own documentation (protobuf.dev, "Encoding"), and a double and a float by hand.
TEST(Protobuf, WritesTheBytesOfTheDocumentation) {
  EXPECT_EQ(ProtobufMessage().integer(1, 150).encoded(), "\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().bytes(2, "testing").encoded(), "\x12\x07testing");
  const ProtobufMessage inner = ProtobufMessage().integer(1, 150);
  EXPECT_EQ(ProtobufMessage().bytes(3, inner.encoded()).encoded(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().real(1, 1.0).encoded(), "\x09\0\0\0\0\0\0\xf0\x3f"s);
  EXPECT_EQ(ProtobufMessage().single(2, -2.0F).encoded(), "\x15\0\0\0\xc0"s);
  EXPECT_EQ(ProtobufMessage().integer(16, ~std::uint64_t{0}).encoded(),
            "\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s);
}

}  // namespace
}  // namespace megatron
