#include "megatron/kernels/cuda/attention_choice.h"

#include <gtest/gtest.h>

namespace megatron::kernels::cuda {
namespace {

constexpr AttentionCall kPlain{.capability = 9, .sixteen_bits = true, .head_size = 128, .queries = 2048, .keys = 2048};

TEST(AttentionChoice, IsTheLibrarysWhereItComputesTheSame) {
  for (const int capability : {8, 9, 10})
    for (const std::int64_t size : {8, 64, 128, 256})
      for (const bool deterministic : {false, true}) {
        AttentionCall call = kPlain;
        call.capability = capability;
        call.head_size = size;
        call.deterministic = deterministic;
        const bool cudnn = capability >= 9 && size <= 128 && !deterministic;
        EXPECT_EQ(attention_kernel(call), cudnn ? AttentionKernel::CuDnn : AttentionKernel::Flash);
      }
}

TEST(AttentionChoice, IsCuDnnsOnlyWhereItsMaskIsOurs) {
  const auto flash = [](const auto& change) {
    AttentionCall call = kPlain;
    change(call);
    return attention_kernel(call) == AttentionKernel::Flash;
  };
  EXPECT_TRUE(flash([](AttentionCall& c) { c.queries = 1; })) << "behind a cache";
  EXPECT_TRUE(flash([](AttentionCall& c) { c.queries = 1024; })) << "causal from the first query on";
  EXPECT_FALSE(flash([](AttentionCall& c) {
    c.queries = 1024;
    c.causal = false;
  }));
  EXPECT_TRUE(flash([](AttentionCall& c) { c.queries = c.keys = 32; }));
}

TEST(AttentionChoice, IsOurOwnForWhatTheLibraryLacks) {
  const auto own = [](const auto& change) {
    AttentionCall call = kPlain;
    change(call);
    return attention_kernel(call) == AttentionKernel::Own;
  };
  EXPECT_TRUE(own([](AttentionCall& c) { c.dropout = true; })) << "its masks are not ours";
  EXPECT_TRUE(own([](AttentionCall& c) { c.first_key = true; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.key_lengths = true; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.bias = true; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.sixteen_bits = false; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.capability = 7; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.head_size = 100; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.head_size = 264; }));
  EXPECT_TRUE(own([](AttentionCall& c) { c.keys = 10; })) << "queries that see no key";
}

}  // namespace
}  // namespace megatron::kernels::cuda
