#include "megatron/plan/parameters/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "megatron/base/error.h"
#include "megatron/plan/rules.h"
#include "tests/plan/golden.h"

namespace megatron::plan {
namespace {

ModelShape small_shape() {
  return {.num_layers = 2,
          .hidden = 32,
          .num_heads = 4,
          .ffn_hidden = 128,
          .vocab = 250,
          .padded_vocab = 256,
          .max_positions = 32};
}

TEST(ModelParameters, HaveTheNamesAndShapesOfMegatronCore) {
  std::map<std::string, std::vector<std::int64_t>> ours;
  for (const ParameterSpec& spec : model_parameters(small_shape(), 1, 0)) ours[spec.name] = spec.shape;
  const auto expected = golden("gpt2_parameters.json")["parameters"].get<decltype(ours)>();
  EXPECT_EQ(ours, expected);
}

ModelShape bert_shape() {
  return {.num_layers = 2,
          .hidden = 32,
          .num_heads = 4,
          .ffn_hidden = 96,
          .vocab = 160,
          .padded_vocab = 160,
          .max_positions = 32,
          .causal = false,
          .token_types = 2,
          .sentence_head = true,
          .masked_lm_head = true};
}

TEST(BertParameters, HaveTheNamesAndShapesOfMegatronCore) {
  std::map<std::string, std::vector<std::int64_t>> ours;
  for (const ParameterSpec& spec : model_parameters(bert_shape(), 1, 0)) ours[spec.name] = spec.shape;
  EXPECT_EQ(ours, golden("bert_parameters.json")["parameters"].get<decltype(ours)>());
}

TEST(BertParameters, OfTheHeadsSayWhoHasWhichPartOfTheGradient) {
  std::map<std::string, ParameterSpec> of;
  for (const ParameterSpec& spec : model_parameters(bert_shape(), 2, 1)) of[spec.name] = spec;
  for (const char* name : {"pooler.dense.weight", "pooler.dense.bias", "binary_head.weight", "binary_head.bias"})
    EXPECT_TRUE(of.at(name).replicated() && !of.at(name).sequence_partial) << name;  // each rank has all of it
  for (const char* name : {"lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight"})
    EXPECT_TRUE(of.at(name).replicated() && of.at(name).sequence_partial) << name;
  EXPECT_EQ(of.at("output_layer.bias").pieces, (std::vector<ShardSlice>{{.offset = 80, .length = 80}}));
  EXPECT_TRUE(of.at("output_layer.bias").in_forward);
  for (const char* name : {"pooler.dense.weight", "lm_head.dense.weight", "output_layer.bias"})
    EXPECT_EQ(of.at(name).depth, 3) << name;
  EXPECT_EQ(of.at("embedding.tokentype_embeddings.weight").depth, 0);
}

/// Two layers a stack.
ModelShape t5_shape() {
  return {.num_layers = 4,
          .hidden = 16,
          .num_heads = 4,
          .ffn_hidden = 24,
          .vocab = 10,
          .padded_vocab = 12,
          .head_size = 3,
          .rms_norm = true,
          .linear_bias = false,
          .learned_positions = false,
          .encoder_layers = 2,
          .position_buckets = 8,
          .position_max_distance = 6};
}

const ParameterSpec& named(const std::vector<ParameterSpec>& specs, const std::string& name) {
  return *std::find_if(specs.begin(), specs.end(), [&](const ParameterSpec& spec) { return spec.name == name; });
}

TEST(T5Parameters, AreTwoStacksWithCrossAttentionInTheSecondAndATableOfBiasesEach) {
  const auto specs = model_parameters(t5_shape(), 2, 1);
  EXPECT_EQ(specs.size(), 1u + 2 + 2 * 6 + 1 + 2 * 10 + 1);
  const std::string q = "decoder.layers.1.cross_attention.linear_q.weight",
                    kv = "decoder.layers.1.cross_attention.linear_kv.weight";
  EXPECT_EQ(named(specs, q).shape, (std::vector<std::int64_t>{12, 16}));
  EXPECT_EQ(named(specs, kv).shape, (std::vector<std::int64_t>{24, 16}));
  EXPECT_EQ(named(specs, kv).pieces, (std::vector<ShardSlice>{{.offset = 12, .length = 12}}));
  const ParameterSpec& table = named(specs, ModelShape::position_table(true));
  EXPECT_EQ(table.shape, (std::vector<std::int64_t>{8, 4}));
  EXPECT_EQ(table.local_shape(), (std::vector<std::int64_t>{8, 2}));
  EXPECT_EQ(table.gradient_uses, 2);  // one a layer
  EXPECT_EQ(named(specs, "embedding.word_embeddings.weight").gradient_uses, 3);
}

TEST(T5Parameters, OfAPipelineHaveTheirCopiesWhereTheyAreUsed) {
  const auto parts = parts_of_layers({1, 1, 1, 1});
  const auto placement = schedule::Placement::looped(4, 1);
  const auto copies = shared_copies(t5_shape(), parts, placement);
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0].pipeline_ranks, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(copies[1].pipeline_ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(copies[2].pipeline_ranks, (std::vector<int>{2, 3}));
  for (int rank = 0; rank < 4; ++rank) {
    const auto specs = model_parameters(t5_shape(), 1, 0, {parts[static_cast<std::size_t>(rank)]});
    for (const SharedCopies& shared : copies) {
      const auto found = std::find_if(specs.begin(), specs.end(), [&](const auto& s) { return s.name == shared.name; });
      const bool holds = std::ranges::find(shared.pipeline_ranks, rank) != shared.pipeline_ranks.end();
      ASSERT_EQ(found != specs.end(), holds) << shared.name << " on rank " << rank;
      if (holds) {
        EXPECT_EQ(found->shared_copy, rank != shared.pipeline_ranks.front()) << shared.name << " " << rank;
      }
    }
  }
  auto untied = t5_shape();
  untied.tied_output = false;
  EXPECT_EQ(shared_copies(untied, parts, placement)[0].pipeline_ranks, (std::vector<int>{0, 2}));
  EXPECT_TRUE(shared_copies(t5_shape(), {whole_model(4)}, schedule::Placement()).empty());
}

TEST(ModelParameters, SplitEveryMatrixIntoSlicesThatCoverItOnce) {
  for (const int tp : {1, 2, 4}) {
    const auto whole = model_parameters(small_shape(), 1, 0);
    std::vector<std::int64_t> covered(whole.size(), 0);
    for (int rank = 0; rank < tp; ++rank) {
      const auto specs = model_parameters(small_shape(), tp, rank);
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

ModelShape llama_shape() {
  ModelShape shape = small_shape();  // four heads of 8
  shape.num_groups = 2;
  shape.rms_norm = shape.gated = true;
  shape.linear_bias = shape.learned_positions = shape.tied_output = false;
  return shape;
}

TEST(ModelParameters, OfALlamaHaveTheNamesAndShapesOfMegatronCore) {
  std::map<std::string, std::vector<std::int64_t>> ours;
  for (const ParameterSpec& spec : model_parameters(llama_shape(), 1, 0)) ours[spec.name] = spec.shape;
  decltype(ours) expected{{"embedding.word_embeddings.weight", {256, 32}},
                          {"decoder.final_layernorm.weight", {32}},
                          {"output_layer.weight", {256, 32}}};
  for (const std::string layer : {"decoder.layers.0.", "decoder.layers.1."}) {
    expected[layer + "input_layernorm.weight"] = expected[layer + "pre_mlp_layernorm.weight"] = {32};
    expected[layer + "self_attention.linear_qkv.weight"] = {4 * 8 + 2 * 2 * 8, 32};
    expected[layer + "self_attention.linear_proj.weight"] = {32, 32};
    expected[layer + "mlp.linear_fc1.weight"] = {2 * 128, 32};
    expected[layer + "mlp.linear_fc2.weight"] = {32, 128};
  }
  EXPECT_EQ(ours, expected);
  ModelShape shape = llama_shape();
  shape.attention.add_qkv_bias = true;
  std::size_t biases = 0;
  for (const ParameterSpec& spec : model_parameters(shape, 1, 0)) biases += spec.name.ends_with("linear_qkv.bias");
  EXPECT_EQ(biases, 2u);
  EXPECT_EQ(model_parameters(shape, 1, 0).size(), expected.size() + 2);
}

std::vector<ShardSlice> pieces_of(const ModelShape& shape, int tp, int rank, const std::string& name) {
  for (const ParameterSpec& spec : model_parameters(shape, tp, rank))
    if (spec.name == "decoder.layers.1." + name) return spec.pieces;
  return {};
}

TEST(ModelParameters, OfAGatedUnitGiveEachRankAPartOfBothHalves) {
  const std::string fc1 = "mlp.linear_fc1.weight";
  EXPECT_EQ(pieces_of(llama_shape(), 1, 0, fc1), (std::vector<ShardSlice>{{.offset = 0, .length = 256}}));
  EXPECT_EQ(pieces_of(llama_shape(), 2, 1, fc1),
            (std::vector<ShardSlice>{{.offset = 64, .length = 64}, {.offset = 192, .length = 64}}));
}

TEST(ModelParameters, OfGroupedQueriesAreWholeGroupsOrQueriesWithCopiesOfTheirKeyAndValue) {
  // Rows a group: two queries of 8, key, value.
  const std::string qkv = "self_attention.linear_qkv.weight";
  const auto pieces = [&](int tp, int rank) { return pieces_of(llama_shape(), tp, rank, qkv); };
  EXPECT_EQ(pieces(1, 0), (std::vector<ShardSlice>{{.offset = 0, .length = 64}}));
  EXPECT_EQ(pieces(2, 1), (std::vector<ShardSlice>{{.offset = 32, .length = 32}}));
  const auto four = [](std::int64_t query, std::int64_t key, int copy) {
    return std::vector<ShardSlice>{{.offset = query, .length = 8},
                                   {.offset = key, .length = 16, .copies = 2, .copy = copy}};
  };
  EXPECT_EQ(pieces(4, 0), four(0, 16, 0));
  EXPECT_EQ(pieces(4, 1), four(8, 16, 1));
  EXPECT_EQ(pieces(4, 2), four(32, 48, 0));
  EXPECT_EQ(pieces(4, 3), four(40, 48, 1));
}

TEST(ModelParameters, CountEachElementOnceHoweverManyCopiesThereAre) {
  for (const ModelShape& shape : {llama_shape(), small_shape()})
    for (const int tp : {1, 2, 4}) {
      std::map<std::string, std::vector<int>> counted, held;
      for (int rank = 0; rank < tp; ++rank)
        for (const ParameterSpec& spec : model_parameters(shape, tp, rank)) {
          if (spec.replicated()) continue;
          const auto size = static_cast<std::size_t>(spec.shape[static_cast<std::size_t>(spec.split_dim)]);
          counted[spec.name].resize(size);
          held[spec.name].resize(size);
          for (const ShardSlice& piece : spec.pieces)
            for (std::int64_t i = piece.offset; i < piece.offset + piece.length; ++i) {
              counted[spec.name].at(static_cast<std::size_t>(i)) += piece.copy == 0;
              held[spec.name].at(static_cast<std::size_t>(i)) += 1;
              EXPECT_LT(piece.copy, piece.copies);
            }
          EXPECT_EQ(spec.has_copies(), tp == 4 && shape.num_groups == 2 && spec.name.find("qkv") != std::string::npos);
        }
      for (const auto& [name, counts] : counted) {
        EXPECT_THAT(counts, ::testing::Each(1)) << name;
        EXPECT_THAT(held[name], ::testing::Each(::testing::AnyOf(1, 2))) << name;
      }
    }
}

TEST(ModelParameters, OfNineHeadsInThreeGroupsFitOneThreeAndNineRanksAndSaySo) {
  ModelShape shape = llama_shape();
  shape.hidden = 576;
  shape.num_heads = 9;
  shape.num_groups = 3;
  shape.ffn_hidden = 128 * 9;
  shape.padded_vocab = 256 * 9;
  for (const int tp : {1, 3, 9}) EXPECT_NO_THROW(model_parameters(shape, tp, 0)) << tp;
  try {
    model_parameters(shape, 2, 0);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_THAT(text, ::testing::HasSubstr("model.num_attention_heads must divide by parallel.tp"));
    EXPECT_THAT(text, ::testing::HasSubstr("9 heads in 3 groups, tp=2"));
    EXPECT_THAT(text, ::testing::HasSubstr("--tp 1 or 3"));
  }
  shape.num_heads = 12;  // six ranks would share groups of four heads by two, which three groups allow; four would not
  shape.hidden = 12 * 8;
  EXPECT_NO_THROW(model_parameters(shape, 6, 0));
  EXPECT_THROW(model_parameters(shape, 4, 0), ConfigError);
}

TEST(ModelParameters, AreSplitAsMegatronSplitsThem) {
  std::map<std::string, int> split;
  for (const ParameterSpec& spec : model_parameters(small_shape(), 2, 1)) split[spec.name] = spec.split_dim;
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

TEST(ModelParameters, DecayMatricesAlone) {
  for (const ParameterSpec& spec : model_parameters(small_shape(), 2, 0))
    EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2) << spec.name;
}

TEST(ModelParameters, StartSmallerWhereTheyEndAResidualBranch) {
  for (const ParameterSpec& spec : model_parameters(small_shape(), 1, 0)) {
    const bool ends_branch = spec.name.ends_with("linear_proj.weight") || spec.name.ends_with("linear_fc2.weight");
    if (spec.init == Init::Normal) {
      EXPECT_DOUBLE_EQ(spec.init_std, ends_branch ? 0.02 / std::sqrt(4.0) : 0.02) << spec.name;
    } else {
      EXPECT_EQ(spec.init, spec.name.ends_with("layernorm.weight") ? Init::One : Init::Zero) << spec.name;
    }
  }
}

// As Glorot and Bengio 2010 have it, each matrix of a split model as the whole one; embeddings as they are told.
TEST(ModelParameters, StartEvenlyWithinTheirBound) {
  config::ModelConfig model;
  model.init_method_xavier_uniform = true;
  model.num_layers = 2;
  model.hidden_size = 64;
  model.ffn_hidden_size = 128;
  model.vocab_size = model.max_position_embeddings = 10;
  for (const double embeddings : {0.0, 0.02, 0.5}) {
    model.embedding_init_method_std = embeddings;
    for (const ParameterSpec& spec : model_parameters(model_shape(model, 2), 2, 1)) {
      if (spec.shape.size() != 2) continue;
      const bool told = spec.name.starts_with("embedding.") && embeddings == 0.5;  // 0.02: init_method_std
      EXPECT_EQ(spec.init, told ? Init::Normal : Init::Uniform) << spec.name;
      EXPECT_DOUBLE_EQ(spec.init_std, told ? 0.5 : std::sqrt(6.0 / static_cast<double>(spec.shape[0] + spec.shape[1])))
          << spec.name;
    }
  }
}

TEST(ModelParameters, StartAtADeviationOfTheEmbeddingsOwn) {
  config::ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = model.mup_base_hidden_size = 64;
  model.vocab_size = model.max_position_embeddings = 10;
  model.untie_embeddings_and_output_weights = true;
  model.embedding_init_method_std = 0.5;
  for (const bool scaled : {false, true}) {  // then the output layer's matrix goes with them
    model.use_mup = scaled;
    std::map<std::string, double> deviations;
    for (const ParameterSpec& spec : model_parameters(model_shape(model, 1), 1, 0))
      if (spec.init == Init::Normal) deviations[spec.name] = spec.init_std;
    EXPECT_EQ(deviations.at(kWordEmbedding), 0.5);
    EXPECT_EQ(deviations.at("embedding.position_embeddings.weight"), 0.5);
    EXPECT_EQ(deviations.at(kOutputMatrix), scaled ? 0.5 : 0.02);
    EXPECT_EQ(deviations.at("decoder.layers.0.mlp.linear_fc1.weight"), 0.02);
  }
}

// Megatron-LM's: sigma / sqrt(m) for linear layers, sigma / (sqrt(2 L) sqrt(m)) where they end a branch, sigma for
// embeddings and an output layer of its own.
TEST(ModelParameters, StartNarrowerWhereTheWidthIsScaled) {
  config::ModelConfig model;
  model.use_mup = true;
  model.num_layers = 2;
  model.hidden_size = 64;
  model.mup_base_hidden_size = 16;
  model.ffn_hidden_size = 128;
  model.vocab_size = model.max_position_embeddings = 10;
  model.untie_embeddings_and_output_weights = true;
  model.init_method_std = 0.02;
  const ModelShape shape = model_shape(model, 1);
  int matrices = 0;
  for (const ParameterSpec& spec : model_parameters(shape, 1, 0)) {
    if (spec.init != Init::Normal) continue;
    const bool ends_branch = spec.name.ends_with("linear_proj.weight") || spec.name.ends_with("linear_fc2.weight");
    EXPECT_DOUBLE_EQ(spec.init_std, ends_branch ? 0.005 : spec.is_layer_matrix() ? 0.01 : 0.02) << spec.name;
    matrices += spec.is_layer_matrix() ? 1 : 0;
  }
  EXPECT_EQ(matrices, 8);
  EXPECT_DOUBLE_EQ(shape.output_scale, 0.25);
  EXPECT_DOUBLE_EQ(shape.layer(0).attention().scale, 1 / 16.0);
  model.mup_base_head_dim = 4;
  model.mup_attn_scale_power = 0.5;
  model.mup_output_mult = 3;
  EXPECT_DOUBLE_EQ(model_shape(model, 1).output_scale, 3);
  EXPECT_DOUBLE_EQ(model_shape(model, 1).attention_scale, 2 / 4.0);
}

TEST(ModelParameters, ShareTheEmbeddingWithTheOutputUnlessUntied) {
  ModelShape shape = small_shape();
  EXPECT_EQ(model_parameters(shape, 1, 0).front().gradient_uses, 2);
  shape.tied_output = false;
  const auto specs = model_parameters(shape, 1, 0);
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
          ModelShape shape = small_shape();
          shape.tied_output = tied;
          shape.num_layers = 2 * pp * vpp + 1;
          std::vector<std::int64_t> layers(static_cast<std::size_t>(pp * vpp), 2);
          ++layers.front();
          const auto parts = parts_of_layers(layers);
          check(shape, parts, schedule::Placement::looped(pp, vpp), tp);
          if (vpp == 2) check(shape, parts, schedule::Placement::v_shaped(pp), tp);
        }
}

TEST(ModelParameters, OfAllRanksAreTheModelOnceButForATiedCopyOnAnotherRank) {
  int layouts = 0;
  for_all_layouts([&](const ModelShape& shape, const auto& parts, const schedule::Placement& placement, int tp) {
    std::map<std::string, std::int64_t> held, counted;  // elements over one model replica
    for (int pp_rank = 0; pp_rank < placement.num_ranks(); ++pp_rank)
      for (int tp_rank = 0; tp_rank < tp; ++tp_rank)
        for (const auto& spec : model_parameters(shape, tp, tp_rank, parts_of_rank(parts, placement, pp_rank))) {
          ASSERT_EQ(placement.rank_of(spec.stage), pp_rank);
          held[spec.name] += spec.local_size();
          if (!spec.shared_copy) counted[spec.name] += spec.local_size();
        }
    const bool apart = placement.rank_of(0) != placement.rank_of(placement.num_stages() - 1);
    const auto whole = model_parameters(shape, 1, 0);
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

TEST(ModelParameters, OfARankAreThoseOfItsStagesInModelOrder) {
  for_all_layouts([](const ModelShape& shape, const auto& parts, const schedule::Placement& placement, int tp) {
    for (int pp_rank = 0; pp_rank < placement.num_ranks(); ++pp_rank) {
      const auto held = parts_of_rank(parts, placement, pp_rank);
      int stage = 0;
      for (const ParameterSpec& spec : model_parameters(shape, tp, 0, held)) {
        ASSERT_GE(spec.stage, stage);
        stage = spec.stage;
        const StageSpec& part = parts[static_cast<std::size_t>(stage)];
        if (!spec.name.starts_with("decoder.layers.")) continue;
        const std::int64_t layer = std::stoll(spec.name.substr(15));
        ASSERT_GE(layer, part.first_layer);
        ASSERT_LT(layer, part.first_layer + part.num_layers);
      }
    }
  });
}

TEST(ModelParameters, CountTheUsesOfATiedEmbeddingOnEachRank) {
  const ModelShape shape = small_shape();
  const auto uses = [&](const std::vector<StageSpec>& parts) {
    std::vector<std::pair<int, bool>> found;  // uses, and whether it is a copy
    for (const ParameterSpec& spec : model_parameters(shape, 1, 0, parts))
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

/// Depths of prediction look learned positions up on the stage with the output, once each.
TEST(ModelParameters, CountTheUsesOfPositionsByDepthsOfPrediction) {
  ModelShape shape = small_shape();
  shape.mtp_depths = 3;
  const auto parts = parts_of_layers({1, 0, 1});
  const auto positions = [&](const std::vector<StageSpec>& of) {
    const auto specs = model_parameters(shape, 1, 0, of);
    const auto found = std::ranges::find(specs, "embedding.position_embeddings.weight", &ParameterSpec::name);
    return found == specs.end() ? std::pair(0, false) : std::pair(found->gradient_uses, found->shared_copy);
  };
  EXPECT_EQ(positions({parts[0]}), std::pair(1, false));
  EXPECT_EQ(positions({parts[1]}), std::pair(0, false));
  EXPECT_EQ(positions({parts[2]}), std::pair(3, true));
  EXPECT_EQ(positions({parts[0], parts[2]}), std::pair(4, false));
  const auto copies = shared_copies(shape, parts, schedule::Placement::looped(3, 1));
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[1].name, "embedding.position_embeddings.weight");
  EXPECT_EQ(copies[1].pipeline_ranks, (std::vector<int>{0, 2}));
  shape.mtp_depths = 0;
  EXPECT_EQ(shared_copies(shape, parts, schedule::Placement::looped(3, 1)).size(), 1u);
}

TEST(ModelParameters, AreAppliedToPartsOfTheSequenceWhereReplicated) {
  for (const ParameterSpec& spec : model_parameters(small_shape(), 2, 0))
    EXPECT_EQ(spec.sequence_partial, spec.split_dim < 0) << spec.name;
}

TEST(ModelParameters, RefuseSizesThatDoNotDivide) {
  EXPECT_THROW(model_parameters(small_shape(), 3, 0), ConfigError);
  EXPECT_THROW(model_parameters(small_shape(), 8, 0), ConfigError);  // 4 heads
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
