#include "megatron/base/text/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {
namespace {

const std::vector<std::string> kNames = {"tp", "dp", "num-layers", "hidden-size", "train"};

TEST(NearestName, FindsMisspellings) {
  EXPECT_EQ(nearest_name("num-layer", kNames), "num-layers");    // one missing
  EXPECT_EQ(nearest_name("num-layerss", kNames), "num-layers");  // one too many
  EXPECT_EQ(nearest_name("hiden-szie", kNames), "hidden-size");  // one missing, two swapped
  EXPECT_EQ(nearest_name("tpp", kNames), "tp");
  EXPECT_EQ(nearest_name("trian", kNames), "train");
  EXPECT_EQ(nearest_name("train", kNames), "train");
}

TEST(NearestName, FindsNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("pp", kNames), "");  // as near to tp as to dp: no misspelling of either
  EXPECT_EQ(nearest_name("optimizer", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'a'), kNames), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

/// By the definition: each way to change the last characters.
std::size_t edits(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::string_view a1 = a.substr(0, a.size() - 1), b1 = b.substr(0, b.size() - 1);
  std::size_t least = std::min({edits(a1, b) + 1, edits(a, b1) + 1, edits(a1, b1) + (a.back() == b.back() ? 0 : 1)});
  if (!a1.empty() && !b1.empty() && a.back() == b1.back() && a1.back() == b.back())
    least = std::min(least, edits(a1.substr(0, a1.size() - 1), b1.substr(0, b1.size() - 1)) + 1);
  return least;
}

TEST(NearestName, IsTheFirstOfTheNearestByTheDefinition) {
  std::mt19937 draw(1);
  const auto word = [&] {
    std::string text;
    for (std::size_t size = draw() % 7; text.size() < size;) text += static_cast<char>('a' + draw() % 3);
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    const std::string name = word();
    std::vector<std::string> known;
    while (known.size() < 8) known.push_back("a" + word());
    std::string nearest;
    std::size_t most = name.size() < 3 ? 0 : std::max<std::size_t>(1, name.size() / 3);
    for (const std::string& candidate : known)
      if (const std::size_t distance = edits(name, candidate); distance < most + (nearest.empty() ? 1 : 0)) {
        nearest = candidate;
        most = distance;
      }
    EXPECT_EQ(nearest_name(name, known), nearest) << name;
  }
}

TEST(NearestOption, FindsMisspelledWords) {
  const std::vector<std::string> known = {"micro-batch-size", "tensor-model-parallel-size", "num_layers", "moe-topk",
                                          "parallel.tp"};
  EXPECT_EQ(nearest_option("micro_batch_size", known), "micro-batch-size");
  EXPECT_EQ(nearest_option("mirco-bacth-sise", known), "micro-batch-size");
  EXPECT_EQ(nearest_option("tensor-parallel-size", known), "tensor-model-parallel-size");  // a word is missing
  EXPECT_EQ(nearest_option("numlayers", known), "num_layers");
  EXPECT_EQ(nearest_option("moe-top-k", known), "moe-topk");
  EXPECT_EQ(nearest_option("parallel.tpp", known), "parallel.tp");
  EXPECT_EQ(nearest_option("micro-batch", known), "");
  EXPECT_EQ(nearest_option("", known), "");
  EXPECT_EQ(nearest_option("-", known), "");
  EXPECT_EQ(nearest_option(std::string(1000, '-'), known), "");
}

TEST(NearestOption, IsNeitherAnOppositeNorAnotherOption) {
  for (const auto& [name, other] : {std::pair<std::string, std::string>{"bias-gelu-fusion", "no-bias-gelu-fusion"},
                                    {"no-swiglu", "swiglu"},
                                    {"tie-embeddings-and-output-weights", "untie-embeddings-and-output-weights"},
                                    {"freeze-base", "unfreeze-base"},
                                    {"disable-chunked-prefill", "enable-chunked-prefill"},
                                    {"encoder-first-layers", "decoder-first-layers"},
                                    {"no-query-key-layer-scaling", "apply-query-key-layer-scaling"},
                                    {"multi-query-attention", "multi-latent-attention"},
                                    {"gradient-accumulation-steps", "no-gradient-accumulation-fusion"},
                                    {"log-learning-rate-to-tensorboard", "log-world-size-to-tensorboard"},
                                    {"no-delay-grad-reduce", "no-align-grad-reduce"},
                                    {"fp8-margin", "fp4-margin"},
                                    {"top-p", "top-k"}}) {
    EXPECT_EQ(nearest_option(name, {other}), "") << name;
    EXPECT_EQ(nearest_option(other, {name}), "") << name;
  }
}

TEST(Listed, JoinsWords) {
  EXPECT_EQ(listed({}), "");
  EXPECT_EQ(listed({"a"}), "a");
  EXPECT_EQ(listed({"a", "b"}, " and "), "a and b");
  EXPECT_EQ(listed({"a", "b", "c"}), "a, b or c");
}

TEST(NotAChoice, ProposesTheNearestOrTheOtherWay) {
  const std::vector<std::string> colors = {"red", "green"};
  EXPECT_EQ(not_a_choice("a color", "gren", colors, "--color", "--color red"),
            "a color must be one of red, green.\n  got:  'gren'\n  fix:  --color green");
  EXPECT_EQ(not_a_choice("a color", "x", colors, "--color", "leave it out"),
            "a color must be one of red, green.\n  got:  'x'\n  fix:  leave it out");
}

}  // namespace
}  // namespace megatron
