#include "megatron/base/files/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace megatron {
namespace {

// RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
TEST(Checksum, IsThatOfPublishedExamples) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32("123456789"), 0xCBF43926U);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
}

}  // namespace
}  // namespace megatron
