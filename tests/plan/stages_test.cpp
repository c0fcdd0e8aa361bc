#include "megatron/plan/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

using config::ParallelConfig;
using testing::HasSubstr;
using Layers = std::vector<std::int64_t>;

Layers layers_of(const std::vector<StageSpec>& parts) {
  Layers layers;
  for (const StageSpec& part : parts) layers.push_back(part.num_layers);
  return layers;
}

template <class F>
std::string error_of(F&& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Layers split(std::int64_t num_layers, const std::function<void(ParallelConfig&)>& options) {
  ParallelConfig parallel;
  options(parallel);
  return layers_of(stage_parts(parallel, num_layers, {}));
}

/// The layers that `pp_rank` holds, by chunk.
std::vector<Layers> held_by(const std::vector<StageSpec>& parts, const schedule::Placement& placement, int pp_rank) {
  std::vector<Layers> chunks;
  for (const StageSpec& part : parts_of_rank(parts, placement, pp_rank)) {
    chunks.emplace_back(static_cast<std::size_t>(part.num_layers));
    std::iota(chunks.back().begin(), chunks.back().end(), part.first_layer);
  }
  return chunks;
}

// The examples in Megatron-LM's source: 8 layers on 2 ranks; 16 layers on 4.
TEST(Stages, InterleaveAsInMegatronsExamples) {
  const auto stages = [](std::int64_t layers, int pp, int vpp) {
    ParallelConfig parallel;
    parallel.pp = pp;
    parallel.vpp = vpp;
    return stage_parts(parallel, layers, {});
  };
  using Chunks = std::vector<Layers>;
  const auto two = schedule::Placement::looped(2, 2), four = schedule::Placement::looped(2, 4);
  EXPECT_EQ(held_by(stages(8, 2, 2), two, 0), (Chunks{{0, 1}, {4, 5}}));
  EXPECT_EQ(held_by(stages(8, 2, 2), two, 1), (Chunks{{2, 3}, {6, 7}}));
  EXPECT_EQ(held_by(stages(8, 2, 4), four, 0), (Chunks{{0}, {2}, {4}, {6}}));
  EXPECT_EQ(held_by(stages(8, 2, 4), four, 1), (Chunks{{1}, {3}, {5}, {7}}));
  const auto loop = schedule::Placement::looped(4, 2);
  EXPECT_EQ(held_by(stages(16, 4, 2), loop, 0), (Chunks{{0, 1}, {8, 9}}));
  EXPECT_EQ(held_by(stages(16, 4, 2), loop, 3), (Chunks{{6, 7}, {14, 15}}));
  const auto straight = schedule::Placement::looped(2, 1);
  EXPECT_EQ(held_by(stages(8, 2, 1), straight, 1), (Chunks{{4, 5, 6, 7}}));
  EXPECT_EQ(held_by(stages(8, 2, 2), schedule::Placement::v_shaped(2), 0), (Chunks{{0, 1}, {6, 7}}));
}

TEST(Stages, CoverAllLayersInOrderWithEmbeddingFirstAndOutputLast) {
  for (int pp = 1; pp <= 8; ++pp)
    for (int vpp = 1; vpp <= (pp == 1 ? 1 : 4); ++vpp)
      for (const std::int64_t each : {1, 2, 5}) {
        ParallelConfig parallel;
        parallel.pp = pp;
        parallel.vpp = vpp;
        const std::int64_t layers = each * pp * vpp;
        const auto parts = stage_parts(parallel, layers, {});
        ASSERT_EQ(parts.size(), static_cast<std::size_t>(pp * vpp));
        std::int64_t next = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          EXPECT_EQ(parts[i].first_layer, next);
          EXPECT_EQ(parts[i].num_layers, each);
          EXPECT_EQ(parts[i].embedding, i == 0);
          EXPECT_EQ(parts[i].output, i + 1 == parts.size());
          EXPECT_EQ(parts[i].stage, static_cast<int>(i));
          next += parts[i].num_layers;
        }
        EXPECT_EQ(next, layers);
      }
}

TEST(Stages, ThatAreBalancedCoverAllLayersInOrder) {
  for (int pp = 2; pp <= 6; ++pp)
    for (int vpp = 1; vpp <= 3; ++vpp)
      for (std::int64_t layers = pp * vpp; layers <= 4 * pp * vpp; ++layers) {
        ParallelConfig parallel;
        parallel.pp = pp;
        parallel.vpp = vpp;
        parallel.pp_layout = "balanced";
        SplitCosts costs{.embedding = 0.2, .output = 0.1 * static_cast<double>(layers % 30)};
        for (std::int64_t l = 0; l < layers; ++l) costs.layers.push_back(1 + static_cast<double>(l % 3));
        const auto parts = stage_parts(parallel, layers, costs);
        ASSERT_EQ(parts.size(), static_cast<std::size_t>(pp * vpp));
        std::int64_t next = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          EXPECT_EQ(parts[i].first_layer, next);
          EXPECT_TRUE(parts[i].num_layers > 0 || parts[i].embedding || parts[i].output);
          EXPECT_EQ(parts[i].embedding, i == 0);
          EXPECT_EQ(parts[i].output, i + 1 == parts.size());
          next += parts[i].num_layers;
        }
        EXPECT_EQ(next, layers);
      }
}

TEST(Stages, TakeMegatronsWaysToSplitUnevenly) {
  const auto pp4 = [](auto more) {
    return [more](ParallelConfig& p) {
      p.pp = 4;
      more(p);
    };
  };
  EXPECT_EQ(split(14, pp4([](auto& p) { p.first_stage_layers = p.last_stage_layers = 3; })), (Layers{3, 4, 4, 3}));
  EXPECT_EQ(split(14, pp4([](auto& p) { p.first_stage_layers = 2; })), (Layers{2, 4, 4, 4}));
  EXPECT_EQ(split(13, pp4([](auto& p) { p.last_stage_layers = 1; })), (Layers{4, 4, 4, 1}));
  EXPECT_EQ(split(14, pp4([](auto& p) { p.account_for_embedding = p.account_for_loss = true; })), (Layers{3, 4, 4, 3}));
  EXPECT_EQ(split(15, pp4([](auto& p) { p.account_for_loss = true; })), (Layers{4, 4, 4, 3}));
  EXPECT_EQ(split(12, pp4([](auto& p) { p.standalone_embedding_stage = true; })), (Layers{0, 4, 4, 4}));
  EXPECT_EQ(split(16, pp4([](auto& p) { p.layers_per_virtual_stage = 2; })), (Layers{2, 2, 2, 2, 2, 2, 2, 2}));
  const auto interleaved_ends = [](auto& p) {
    p.vpp = 2;
    p.first_stage_layers = 2;
    p.last_stage_layers = 4;
  };
  EXPECT_EQ(split(14, pp4(interleaved_ends)), (Layers{1, 2, 2, 2, 1, 2, 2, 2}));
  const auto interleaved_accounts = [](auto& p) {
    p.vpp = 2;
    p.account_for_embedding = p.account_for_loss = true;
  };
  EXPECT_EQ(split(14, pp4(interleaved_accounts)), (Layers{1, 2, 2, 2, 2, 2, 2, 1}));
}

TEST(Layout, IsReadAsMegatronDocumentsIt) {
  EXPECT_EQ(layers_of(parse_layout("E,t*3|t*4|t*4|t*3,L")), (Layers{3, 4, 4, 3}));
  EXPECT_EQ(layers_of(parse_layout("Et*3|(tt|)*3,L")), (Layers{3, 2, 2, 2, 0}));
  EXPECT_EQ(layers_of(parse_layout("Et|(t|)*3tL")), (Layers{1, 1, 1, 1, 1}));
  EXPECT_EQ(layers_of(parse_layout("E|((t*2,|)*2 t|) * 2 L")), (Layers{0, 2, 2, 1, 2, 2, 1, 0}));
  EXPECT_EQ(layers_of(parse_layout("EtttL")), (Layers{3}));
  const auto parts = parse_layout("E|t|L");
  EXPECT_EQ(parts[0], (StageSpec{0, 0, true, false, 0}));
  EXPECT_EQ(parts[1], (StageSpec{0, 1, false, false, 1}));
  EXPECT_EQ(parts[2], (StageSpec{1, 0, false, true, 2}));
  // Megatron-LM's own example for 61 layers, its last stage without what we have not: 16 ranks x 2 stages.
  const Layers deep = layers_of(parse_layout("Et*3|(tt|)*29,t|L"));
  EXPECT_EQ(deep.size(), 32u);
  EXPECT_EQ(std::accumulate(deep.begin(), deep.end(), std::int64_t{0}), 62);
}

TEST(Layout, ShowsWhereItCannotBeRead) {
  const auto error = [](const std::string& layout) { return error_of([&] { parse_layout(layout); }); };
  EXPECT_EQ(error("Et*3|x|tL"),
            "parallel.pp_layout cannot be read: only E, t, L, |, (, ), * and numbers have a meaning (character 6).\n"
            "  got:  Et*3|x|tL\n"
            "             ^\n"
            "  fix:  --pp-layout balanced, or such as \"Et*3|t*4|t*4|t*3L\"");
  EXPECT_THAT(error("Et*3|(tt|)*29,m|L"), HasSubstr("m, a depth of multi-token prediction, is not placed here: all are "
                                                    "on the stage with the output (character 15)"));
  EXPECT_THAT(error("E(t|tL"), HasSubstr("')' is missing (character 7)"));
  EXPECT_THAT(error("Et)|tL"), HasSubstr("')' without '(' (character 3)"));
  EXPECT_THAT(error("Et*|tL"), HasSubstr("'*' needs a number of at least 1 (character 4)"));
  EXPECT_THAT(error("Et*0|tL"), HasSubstr("'*' needs a number"));
  for (const char* not_once : {"", "t|tL", "Et|t", "tE|L", "Et|Lt", "EE|tL", "(Et|L)*2", "L|E"})
    EXPECT_THAT(error(not_once), HasSubstr("must begin with E, end with L")) << not_once;
  EXPECT_THAT(error("Et||tL"), HasSubstr("(stage 1 has nothing)"));
}

TEST(Layout, StaysSmallWhateverItsText) {
  const auto error = [](const std::string& layout) { return error_of([&] { parse_layout(layout); }); };
  EXPECT_THAT(error("E(((t*60000)*60000)*60000)*60000L"), HasSubstr("more than 65536 letters"));
  EXPECT_THAT(error("Et*99999999999999999999999999L"), HasSubstr("more than 65536 letters"));
  EXPECT_THAT(error(std::string(1 << 17, 't')), HasSubstr("at most 65536 characters"));
  EXPECT_THAT(error(std::string(60000, '(')), HasSubstr("too deep"));
}

TEST(BalancedLayers, ReplaceAnEvenSplitThatDoesNotDivide) {
  ParallelConfig parallel;
  parallel.pp = 4;
  parallel.pp_layout = "balanced";
  EXPECT_EQ(layers_of(stage_parts(parallel, 14, {.embedding = 0, .output = 2})), (Layers{4, 4, 4, 2}));
}

TEST(Stages, RefuseWhatDoesNotFitTheModelInOneError) {
  struct Case {
    std::int64_t layers;
    std::function<void(ParallelConfig&)> options;
    const char* error;
  };
  const std::vector<Case> cases = {
      {7, [](auto& p) { p.pp = 2; }, "got:  7 layers, 2 stages\n  fix:  --pp-layout balanced"},
      {2, [](auto& p) { p.pp = 4; }, "got:  2 layers, 4 stages\n  fix:  --pp 2"},
      {7, [](auto& p) { p.pp = 2, p.vpp = 4; }, "got:  7 layers, 8 stages\n  fix:  --vpp 3 --pp-layout balanced"},
      {6, [](auto& p) { p.pp = 2, p.vpp = 4; }, "got:  6 layers, 8 stages\n  fix:  --vpp 3"},
      {4, [](auto& p) { p.pp = 2, p.first_stage_layers = 4; },
       "0 layers, 1 stage\n  fix:  --parallel.first_stage_layers 3"},
      {2, [](auto& p) { p.last_stage_layers = 3; }, "pp 1, vpp 1\n  fix:  --parallel.last_stage_layers 0"},
      {2, [](auto& p) { p.first_stage_layers = p.last_stage_layers = 1; },
       "fix:  --parallel.first_stage_layers 0 --parallel.last_stage_layers 0"},
      {6, [](auto& p) { p.pp = 3, p.last_stage_layers = 1; },
       "5 layers, 2 stages\n  fix:  --parallel.last_stage_layers 2"},
      {4, [](auto& p) { p.pp = p.vpp = 2, p.standalone_embedding_stage = true; },
       "4 layers, 3 stages\n  fix:  --vpp 1"},
      {4, [](auto& p) { p.pp = p.vpp = 2, p.standalone_embedding_stage = true, p.pp_schedule = "zb-v"; },
       "4 layers, 3 stages\n  fix:  --parallel.standalone_embedding_stage false"},
      {4, [](auto& p) { p.pp = 8, p.standalone_embedding_stage = true; }, "4 layers, 7 stages\n  fix:  --pp 5"},
      {8, [](auto& p) { p.pp = 2, p.account_for_loss = true; },
       "9 layers, 2 stages\n  fix:  --parallel.account_for_loss false"},
      {8, [](auto& p) { p.pp = 3, p.pp_layout = "Et*4|t*4L"; }, "a multiple of 3 stages, as parallel.pp says."},
      {8, [](auto& p) { p.vpp = 2; }, "several stages on a rank need a pipeline"},
      {8, [](auto& p) { p.pp_layout = "Et*4|t*4L"; }, "several stages on a rank need a pipeline"},
      {8, [](auto& p) { p.pp = 2, p.pp_layout = "Et*4|t*3L"; }, "7 layers in the layout, model.num_layers 8"},
      {8, [](auto& p) { p.pp = 2, p.pp_layout = "Et*4|t|t*3L"; }, "a multiple of 2 stages"},
      {8, [](auto& p) { p.pp = p.vpp = 2, p.pp_layout = "Et*4|t*4L"; }, "must have 4 stages"},
      {8, [](auto& p) { p.pp = 2, p.pp_layout = "Et*4|t*4M"; }, "(character 9)"},
      {8, [](auto& p) { p.pp = 2, p.pp_layout = "Et*4|t*4mL"; }, "multi-token prediction"},
      {8, [](auto& p) { p.pp = 2, p.vpp = 2, p.layers_per_virtual_stage = 2; }, "must not both be given"},
      {8, [](auto& p) { p.pp = 2, p.layers_per_virtual_stage = 3; }, "model.num_layers must divide by"},
      {8, [](auto& p) { p.pp = 2, p.first_stage_layers = 9; }, "9 and 0 of 8 layers"},
      {8, [](auto& p) { p.pp = 2, p.first_stage_layers = 3, p.last_stage_layers = 3; }, "3 and 3 of 8 layers"},
      {8, [](auto& p) { p.first_stage_layers = 3; }, "3 and 0 of 8 layers"},
      {8, [](auto& p) { p.pp = 4, p.first_stage_layers = 3; }, "layers between the first and the last"},
      {8, [](auto& p) { p.pp = 2, p.vpp = 2, p.first_stage_layers = 3; }, "divide by the stages of a rank"},
      {8, [](auto& p) { p.pp = 2, p.account_for_loss = true; }, "model.num_layers + loss must divide"},
      {1, [](auto& p) { p.pp = 3, p.account_for_loss = p.account_for_embedding = true; }, "no error"},
      {8, [](auto& p) { p.pp = 2, p.account_for_loss = p.standalone_embedding_stage = true; }, "in one way"},
      {8, [](auto& p) { p.pp = 2, p.pp_layout = "balanced", p.last_stage_layers = 3; }, "in one way"},
      {8, [](auto& p) { p.standalone_embedding_stage = true; },
       "8 layers, 0 stages\n  fix:  --parallel.standalone_embedding_stage false"},
  };
  for (const Case& bad : cases) EXPECT_THAT(error_of([&] { split(bad.layers, bad.options); }), HasSubstr(bad.error));
}

TEST(SplitStageParts, ShareEachStackAmongTheRanksOnItsSideOfTheSplit) {
  config::ParallelConfig parallel;
  parallel.pp = 4;
  parallel.pipeline_split_rank = 1;
  const auto parts = [&](std::int64_t encoder, std::int64_t decoder, const SplitCosts& costs = {}) {
    return split_stage_parts(parallel, encoder, decoder, costs);
  };
  EXPECT_EQ(parts(6, 9), parts_of_layers({6, 3, 3, 3}));
  parallel.pipeline_split_rank = 2;
  EXPECT_EQ(parts(6, 8), parts_of_layers({3, 3, 4, 4}));
  EXPECT_THAT(error_of([&] { parts(6, 9); }), HasSubstr("fix:  --pp-layout balanced"));
  EXPECT_THAT(error_of([&] { parts(6, 1); }), HasSubstr("fix:  --parallel.pipeline_split_rank 0"));
  parallel.pp_layout = "balanced";
  EXPECT_EQ(parts(6, 9), parts_of_layers({3, 3, 4, 5}));
  EXPECT_EQ(parts(5, 9, {.embedding = 3, .output = 3}), parts_of_layers({1, 4, 6, 3}));
  EXPECT_EQ(parts(2, 2, {.embedding = 30, .output = 30}), parts_of_layers({0, 2, 2, 0}));
  EXPECT_EQ(parts(2, 3, {.layers = {1, 1, 9, 1, 1}}), parts_of_layers({1, 1, 1, 2})) << "the decoder's own costs";
  EXPECT_THROW(parts(6, 1), ConfigError);
  parallel.pp_layout = "E|t|t|tL";
  EXPECT_THAT(error_of([&] { parts(2, 2); }), HasSubstr("in one way"));
  parallel.pp_layout.clear();
  parallel.first_stage_layers = 1;
  EXPECT_THROW(parts(6, 8), ConfigError);
}

}  // namespace
}  // namespace megatron::plan
