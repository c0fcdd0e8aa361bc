#include "megatron/base/philox.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

// Known answers published with the Random123 library (kat_vectors: philox4x32 10).
TEST(Philox, MeetsThePublishedKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsOfDifferentNamesAndSeedsDiffer) {
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
}

}  // namespace
}  // namespace megatron
