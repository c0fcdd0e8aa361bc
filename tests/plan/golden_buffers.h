#pragma once
#include <gtest/gtest.h>

#include "megatron/plan/parameters/buffer_layout.h"
#include "tests/plan/golden.h"

namespace megatron::plan {

/// The parameters of an example of golden("buffers.json"), in the order of the package's module tree, which nlohmann's
/// map does not keep: the buffer's own, reversed.
inline std::vector<ParameterSpec> specs_of(const nlohmann::json& example) {
  std::vector<ParameterSpec> specs;
  const auto& placed = example["buffers"][0]["params"];
  for (auto entry = placed.rbegin(); entry != placed.rend(); ++entry) {
    const std::string name = (*entry)[0];
    specs.push_back({.name = name, .shape = example["parameters"][name].get<std::vector<std::int64_t>>()});
  }
  return specs;
}

/// Expects every place of the example's buffer.
inline void expect_layout(const BufferLayout& layout, const std::vector<ParameterSpec>& specs,
                          const nlohmann::json& buffer) {
  EXPECT_EQ(layout.size, buffer["numel"]);
  ASSERT_EQ(layout.slots.size(), buffer["params"].size());
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    const auto& slot = layout.slots[i];
    const auto& expected = buffer["params"][i];
    EXPECT_EQ(specs[static_cast<std::size_t>(slot.parameter)].name, expected[0].get<std::string>());
    EXPECT_EQ(slot.begin, expected[1]);
    EXPECT_EQ(slot.end, expected[2]);
    EXPECT_EQ(slot.bucket, expected[3]);
  }
  ASSERT_EQ(layout.buckets.size(), buffer["buckets"].size());
  for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
    EXPECT_EQ(layout.buckets[i].begin, buffer["buckets"][i]["offset"]);
    EXPECT_EQ(layout.buckets[i].end - layout.buckets[i].begin, buffer["buckets"][i]["numel"]);
  }
}

}  // namespace megatron::plan
