#include "megatron/plan/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "megatron/base/error.h"
#include "tests/plan/golden.h"

namespace megatron::plan {
namespace {

GptShape small_shape() {
  return {.num_layers = 2,
          .hidden = 32,
          .num_heads = 4,
          .ffn_hidden = 128,
          .vocab = 250,
          .padded_vocab = 256,
          .max_positions = 32};
}

TEST(GptParameters, HaveTheNamesAndShapesOfMegatronCore) {
  std::map<std::string, std::vector<std::int64_t>> ours;
  for (const ParameterSpec& spec : gpt_parameters(small_shape(), 1, 0)) ours[spec.name] = spec.shape;
  const auto expected = golden("gpt2_parameters.json")["parameters"].get<decltype(ours)>();
  EXPECT_EQ(ours, expected);
}

TEST(GptParameters, SplitEveryMatrixIntoSlicesThatCoverItOnce) {
  for (const int tp : {1, 2, 4}) {
    const auto whole = gpt_parameters(small_shape(), 1, 0);
    std::vector<std::int64_t> covered(whole.size(), 0);
    for (int rank = 0; rank < tp; ++rank) {
      const auto specs = gpt_parameters(small_shape(), tp, rank);
      ASSERT_EQ(specs.size(), whole.size());
      for (std::size_t i = 0; i < specs.size(); ++i) {
        EXPECT_EQ(specs[i].name, whole[i].name);
        EXPECT_EQ(specs[i].shape, whole[i].shape);
        if (specs[i].replicated()) {
          EXPECT_EQ(specs[i].local_shape(), whole[i].shape);
          continue;
        }
        ASSERT_EQ(specs[i].pieces.size(), 1u) << specs[i].name;
        EXPECT_EQ(specs[i].begin(), covered[i]) << specs[i].name;
        covered[i] += specs[i].pieces[0].length;
        EXPECT_EQ(specs[i].local_size() * tp, whole[i].size()) << specs[i].name;
      }
    }
    for (std::size_t i = 0; i < whole.size(); ++i)
      if (!whole[i].replicated()) {
        EXPECT_EQ(covered[i], whole[i].shape[static_cast<std::size_t>(whole[i].split_dim)]) << whole[i].name;
      }
  }
}

TEST(GptParameters, AreSplitAsMegatronSplitsThem) {
  std::map<std::string, int> split;
  for (const ParameterSpec& spec : gpt_parameters(small_shape(), 2, 1)) split[spec.name] = spec.split_dim;
  const std::string layer = "decoder.layers.1.";
  EXPECT_EQ(split.at("embedding.word_embeddings.weight"), 0);
  EXPECT_EQ(split.at("embedding.position_embeddings.weight"), -1);
  for (const char* column : {"self_attention.linear_qkv", "mlp.linear_fc1"}) {
    EXPECT_EQ(split.at(layer + column + ".weight"), 0);
    EXPECT_EQ(split.at(layer + column + ".bias"), 0);
  }
  for (const char* row : {"self_attention.linear_proj", "mlp.linear_fc2"}) {
    EXPECT_EQ(split.at(layer + row + ".weight"), 1);
    EXPECT_EQ(split.at(layer + row + ".bias"), -1);
  }
  for (const char* norm : {"input_layernorm", "pre_mlp_layernorm"}) EXPECT_EQ(split.at(layer + norm + ".weight"), -1);
}

TEST(GptParameters, DecayMatricesAlone) {
  for (const ParameterSpec& spec : gpt_parameters(small_shape(), 2, 0))
    EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2) << spec.name;
}

TEST(GptParameters, StartSmallerWhereTheyEndAResidualBranch) {
  for (const ParameterSpec& spec : gpt_parameters(small_shape(), 1, 0)) {
    const bool ends_branch = spec.name.ends_with("linear_proj.weight") || spec.name.ends_with("linear_fc2.weight");
    if (spec.init == Init::Normal) {
      EXPECT_DOUBLE_EQ(spec.init_std, ends_branch ? 0.02 / std::sqrt(4.0) : 0.02) << spec.name;
    } else {
      EXPECT_EQ(spec.init, spec.name.ends_with("layernorm.weight") ? Init::One : Init::Zero) << spec.name;
    }
  }
}

TEST(GptParameters, ShareTheEmbeddingWithTheOutputUnlessUntied) {
  GptShape shape = small_shape();
  EXPECT_EQ(gpt_parameters(shape, 1, 0).front().gradient_uses, 2);
  shape.tied_output = false;
  const auto specs = gpt_parameters(shape, 1, 0);
  EXPECT_EQ(specs.front().gradient_uses, 1);
  EXPECT_EQ(specs.back().name, "output_layer.weight");
  EXPECT_EQ(specs.back().shape, (std::vector<std::int64_t>{256, 32}));
}

/// Calls `check(shape, parts, placement, tp)` for every layout of up to 8 pipeline ranks, 4 stages each, looped and
/// V-shaped, and up to 4 tensor-parallel ranks, tied and not.
template <class F>
void for_all_layouts(F&& check) {
  for (const bool tied : {true, false})
    for (const int tp : {1, 2, 4})
      for (int pp = 1; pp <= 8; ++pp)
        for (int vpp = 1; vpp <= (pp == 1 ? 1 : 4); ++vpp) {
          GptShape shape = small_shape();
          shape.tied_output = tied;
          shape.num_layers = 2 * pp * vpp + 1;
          std::vector<std::int64_t> layers(static_cast<std::size_t>(pp * vpp), 2);
          ++layers.front();
          const auto parts = parts_of_layers(layers);
          check(shape, parts, schedule::Placement::looped(pp, vpp), tp);
          if (vpp == 2) check(shape, parts, schedule::Placement::v_shaped(pp), tp);
        }
}

TEST(GptParameters, OfAllRanksAreTheModelOnceButForATiedCopyOnAnotherRank) {
  int layouts = 0;
  for_all_layouts([&](const GptShape& shape, const auto& parts, const schedule::Placement& placement, int tp) {
    std::map<std::string, std::int64_t> held, counted;  // elements over one model replica
    for (int pp_rank = 0; pp_rank < placement.num_ranks(); ++pp_rank)
      for (int tp_rank = 0; tp_rank < tp; ++tp_rank)
        for (const auto& spec : gpt_parameters(shape, tp, tp_rank, parts_of_rank(parts, placement, pp_rank))) {
          ASSERT_EQ(placement.rank_of(spec.stage), pp_rank);
          held[spec.name] += spec.local_size();
          if (!spec.shared_copy) counted[spec.name] += spec.local_size();
        }
    const bool apart = placement.rank_of(0) != placement.rank_of(placement.num_stages() - 1);
    const auto whole = gpt_parameters(shape, 1, 0);
    ASSERT_EQ(held.size(), whole.size());
    for (const ParameterSpec& spec : whole) {
      const bool replicated = spec.name.ends_with("position_embeddings.weight") || spec.name.ends_with("norm.weight") ||
                              spec.name.ends_with("norm.bias") || spec.name.ends_with("linear_proj.bias") ||
                              spec.name.ends_with("linear_fc2.bias");
      const std::int64_t once = spec.size() * (replicated ? tp : 1);
      const bool twice = apart && shape.tied_output && spec.name == "embedding.word_embeddings.weight";
      ASSERT_EQ(counted[spec.name], once) << spec.name;
      ASSERT_EQ(held[spec.name], twice ? 2 * once : once) << spec.name;
    }
    ++layouts;
  });
  EXPECT_EQ(layouts, 2 * 3 * (1 + 7 * 5));
}

TEST(GptParameters, OfARankAreThoseOfItsStagesInModelOrder) {
  for_all_layouts([](const GptShape& shape, const auto& parts, const schedule::Placement& placement, int tp) {
    for (int pp_rank = 0; pp_rank < placement.num_ranks(); ++pp_rank) {
      const auto held = parts_of_rank(parts, placement, pp_rank);
      int stage = 0;
      for (const ParameterSpec& spec : gpt_parameters(shape, tp, 0, held)) {
        ASSERT_GE(spec.stage, stage);
        stage = spec.stage;
        const StagePart& part = parts[static_cast<std::size_t>(stage)];
        if (!spec.name.starts_with("decoder.layers.")) continue;
        const std::int64_t layer = std::stoll(spec.name.substr(15));
        ASSERT_GE(layer, part.first_layer);
        ASSERT_LT(layer, part.first_layer + part.num_layers);
      }
    }
  });
}

TEST(GptParameters, CountTheUsesOfATiedEmbeddingOnEachRank) {
  const GptShape shape = small_shape();
  const auto uses = [&](const std::vector<StagePart>& parts) {
    std::vector<std::pair<int, bool>> found;  // uses, and whether it is a copy
    for (const ParameterSpec& spec : gpt_parameters(shape, 1, 0, parts))
      if (spec.name == "embedding.word_embeddings.weight") found.emplace_back(spec.gradient_uses, spec.shared_copy);
    return found;
  };
  using Uses = std::vector<std::pair<int, bool>>;
  const auto parts = parts_of_layers({1, 0, 1});
  EXPECT_EQ(uses({parts[0]}), (Uses{{1, false}}));
  EXPECT_EQ(uses({parts[1]}), Uses());
  EXPECT_EQ(uses({parts[2]}), (Uses{{1, true}}));
  EXPECT_EQ(uses({parts[0], parts[2]}), (Uses{{2, false}}));
}

TEST(GptParameters, AreAppliedToPartsOfTheSequenceWhereReplicated) {
  for (const ParameterSpec& spec : gpt_parameters(small_shape(), 2, 0))
    EXPECT_EQ(spec.sequence_partial, spec.split_dim < 0) << spec.name;
}

TEST(GptParameters, RefuseSizesThatDoNotDivide) {
  EXPECT_THROW(gpt_parameters(small_shape(), 3, 0), ConfigError);
  EXPECT_THROW(gpt_parameters(small_shape(), 8, 0), ConfigError);  // 4 heads
}

TEST(PadVocab, IsTheSameForEveryTpThatDividesIt) {
  EXPECT_EQ(pad_vocab(50257, 128, 1), 50304);
  for (const int tp : {2, 4, 8, 16, 32, 64, 128}) EXPECT_EQ(pad_vocab(50257, 128, tp), 50304) << tp;
  EXPECT_EQ(pad_vocab(50257, 1024, 8), 51200);  // the paper's
}

TEST(PadVocab, IsTheSmallestMultipleThatTpDivides) {
  for (const std::int64_t vocab : {1, 7, 128, 129, 1000})
    for (const std::int64_t divisible_by : {1, 2, 6, 128})
      for (const int tp : {1, 2, 3, 5, 8}) {
        const std::int64_t padded = pad_vocab(vocab, divisible_by, tp);
        std::int64_t smallest = vocab;
        while (smallest % divisible_by != 0 || smallest % tp != 0) ++smallest;
        EXPECT_EQ(padded, smallest) << vocab << " " << divisible_by << " " << tp;
      }
}

}  // namespace
}  // namespace megatron::plan
