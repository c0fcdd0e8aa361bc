#include "megatron/interchange/formats.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/families/hf_family.h"

// What is said of formats without libtorch is said of those that there are.
namespace megatron::interchange {
namespace {

TEST(FormatWords, AreThoseOfEachFormatInTheirOrder) {
  std::size_t i = 0;
  for (const WeightFormat& format : weight_formats()) {
    ASSERT_LT(i, families::kFormatWords.size());
    EXPECT_STREQ(families::kFormatWords[i++].name, format.words.name);
    EXPECT_EQ(*format.words.output != '\0', format.write != nullptr) << format.words.name;
    EXPECT_EQ(*format.words.models != '\0', format.weights != nullptr && !format.native) << format.words.name;
  }
  EXPECT_EQ(i, families::kFormatWords.size());
}

TEST(FormatWords, NameTheModelsOfEachFamily) {
  const std::vector<std::string> names = {
#define FAMILY(name, models) #name,
#include "megatron/families/families.def"
  };
  std::vector<std::string> families;
  for (const families::HfFamily* family : families::hf_families()) families.emplace_back(family->name);
  EXPECT_EQ(names, families);
  EXPECT_EQ(std::string(families::kHuggingFaceModels).substr(0, 14), "GPT-2, Llama, ");
}

}  // namespace
}  // namespace megatron::interchange
