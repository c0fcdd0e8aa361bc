#include "megatron/kernels/cuda/epilogue_choice.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace megatron::kernels::cuda {
namespace {

constexpr EpilogueCall kCall{
    .capability = 8, .sixteen_bits = true, .tanh_gelu = true, .aligned = true, .rows = 7, .f = 3072, .other = 768};

TEST(EpilogueChoice, IsCublasLtsForGeluOf16BitsInUnitsOf16Bytes) {
  EXPECT_TRUE(epilogue_computes(kCall));
  const auto without = [](const std::function<void(EpilogueCall&)>& change) {
    EpilogueCall call = kCall;
    change(call);
    return !epilogue_computes(call);
  };
  EXPECT_FALSE(without([](auto& c) { c.capability = 10; }));
  EXPECT_TRUE(without([](auto& c) { c.capability = 7; }));
  EXPECT_TRUE(without([](auto& c) { c.sixteen_bits = false; }));
  EXPECT_TRUE(without([](auto& c) { c.tanh_gelu = false; })) << "its GELU is the one by tanh; it has no gated units";
  EXPECT_TRUE(without([](auto& c) { c.aligned = false; }));
  EXPECT_TRUE(without([](auto& c) { c.rows = 0; }));
  EXPECT_TRUE(without([](auto& c) { c.f = 3076; })) << "the leading dimension of what GELU reads";
  EXPECT_TRUE(without([](auto& c) { c.other = 4; }));
}

TEST(EpilogueChoice, OfGradientsDoesNotAskForGelu) {
  EpilogueCall call = kCall;
  call.tanh_gelu = false;
  EXPECT_TRUE(gradients_computed(call));
  call.sixteen_bits = false;
  EXPECT_FALSE(gradients_computed(call));
  call = kCall;
  call.f = 3076;
  EXPECT_FALSE(gradients_computed(call));
}

TEST(EpilogueShape, TellsApartWhatHasAnAlgorithmOfItsOwn) {
  const EpilogueShape shape{.device = 1, .bfloat16 = true, .rows = 7, .f = 3072, .other = 768};
  std::set<EpilogueShape> shapes = {shape, shape};
  const auto with = [&](const std::function<void(EpilogueShape&)>& change) {
    EpilogueShape other = shape;
    change(other);
    shapes.insert(other);
  };
  with([](auto& s) { s.device = 0; });
  with([](auto& s) { s.backward = true; });
  with([](auto& s) { s.bfloat16 = false; });
  with([](auto& s) { s.bias = true; });
  with([](auto& s) { s.gradients = true; });
  with([](auto& s) { s.rows = 8; });
  with([](auto& s) { s.f = 8; });
  with([](auto& s) { s.other = 8; });
  with([](auto& s) { s.alignment = 256; });
  EXPECT_EQ(shapes.size(), 10u);
}

TEST(EpilogueShape, HasTheAlignmentOfAPointer) {
  alignas(512) static const char bytes[512] = {};
  EXPECT_EQ(alignment_of(bytes), 256);
  EXPECT_EQ(alignment_of(bytes + 256), 256);
  EXPECT_EQ(alignment_of(bytes + 128), 128);
  EXPECT_EQ(alignment_of(bytes + 48), 16);
  EXPECT_EQ(alignment_of(nullptr), 256) << "where there is none, none is asked for";
}

}  // namespace
}  // namespace megatron::kernels::cuda
