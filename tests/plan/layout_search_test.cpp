#include "megatron/plan/layout_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/config/options.h"
#include "megatron/schedule/table.h"
#include "tests/testing/folders.h"
#include "tests/testing/sanitized.h"

namespace megatron::plan {
namespace {

Hardware h100() {
  const auto path = std::filesystem::path(tests_folder()).parent_path() / "configs/hardware/dgx-h100.toml";
  return parse_hardware(read_file(path, 1 << 20), path.string());
}

config::RunConfig recipe() {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.hidden_size = 2048;
  config.model.num_attention_heads = 16;
  config.model.vocab_size = 32000;
  config.data.seq_length = 2048;
  config.train.dtype = "bf16";
  config.train.global_batch_size = 32;
  config.parallel.world_size = 16;
  config.parallel.device = "cuda";
  return config;
}

struct Pipelined {
  int pp, vpp;
  std::string schedule, stages;
};

/// Every pipeline that a search may choose for so many layers on at most `ranks` ranks.
std::vector<Pipelined> pipelines(std::int64_t layers, std::int64_t ranks) {
  std::vector<Pipelined> all{{1, 1, "", ""}};
  for (int pp = 2; pp <= std::min(layers, ranks); ++pp)
    for (int vpp = 1; pp * vpp <= layers; ++vpp)
      for (const schedule::ScheduleInfo& each : schedule::schedules())
        for (const char* stages : {"", "balanced"}) {
          const bool divide = layers % (pp * vpp) == 0, even = *stages == '\0';
          if (each.takes(vpp) && (each.is_default || each.splits_backward) && (even ? divide : vpp <= (divide ? 1 : 2)))
            all.push_back({pp, vpp, each.name, stages});
        }
  return all;
}

/// Every way in which ranks may share sequences, experts and weights: tp, cp with its ways, ep, and whole experts.
std::vector<LayoutChoice> rank_shares(const config::RunConfig& recipe) {
  std::vector<LayoutChoice> all;
  const std::int64_t experts = std::max<std::int64_t>(1, recipe.model.num_experts);
  for (int tp = 1; tp <= 8; ++tp)
    for (int cp = 1; tp * cp <= recipe.parallel.world_size; ++cp)
      for (int ep = 1; ep <= experts && ep <= recipe.parallel.world_size; ++ep)
        for (const char* way : {"", "allgather", "a2a", "p2p"})
          for (const int etp : {0, 1})
            if (recipe.model.num_attention_heads % tp == 0 && (cp > 1) == (*way != '\0') &&
                (cp == 1 || recipe.data.seq_length >= cp * kLeastSharedTokens) &&
                (etp == 0 || (tp > 1 && recipe.model.num_experts > 0)))
              all.push_back({.tp = tp, .cp = cp, .cp_comm_type = way, .ep = ep, .etp = etp});
  return all;
}

/// Keys and values of whole sequences with their gradients, twice: what gathering them needs.
std::int64_t gathered_by(const config::RunConfig& recipe, const LayoutChoice& choice) {
  if (choice.cp_comm_type != "allgather") return 0;
  const std::int64_t groups = recipe.model.num_query_groups > 0 ? recipe.model.num_query_groups : 16;
  const std::int64_t keys = choice.micro_batch_size * recipe.data.seq_length *
                            std::max<std::int64_t>(1, groups / choice.tp) * recipe.model.hidden_size /
                            recipe.model.num_attention_heads;
  return 3 * 2 * keys * 2;  // bf16
}

/// Every layout, planned: the truth.
std::vector<FoundLayout> all_layouts(const config::RunConfig& recipe, const Hardware& hardware, double capacity) {
  std::vector<FoundLayout> found;
  const std::int64_t world = recipe.parallel.world_size, layers = recipe.model.num_layers,
                     batch = recipe.train.global_batch_size;
  for (LayoutChoice choice : rank_shares(recipe))
    for (const auto& [pp, vpp, schedule, stages] : pipelines(layers, world)) {
      const std::int64_t cp = choice.cp, dp = world / choice.tp / cp / pp;
      const std::int64_t holders = dp * cp * (choice.etp == 0 ? 1 : choice.tp);
      if (dp * choice.tp * cp * pp != world || batch % std::max<std::int64_t>(dp, 1) != 0 || holders % choice.ep != 0)
        continue;
      choice.pp = pp, choice.vpp = vpp, choice.schedule = schedule, choice.stages = stages;
      for (std::int64_t micro = 1; micro <= batch / dp; ++micro) {
        const std::int64_t microbatches = batch / dp / micro;
        if (batch / dp % micro != 0 || (vpp > 1 && microbatches % pp != 0)) continue;
        choice.micro_batch_size = micro;
        for (const char* recompute : {"none", "selective", "full"})
          for (const char* sharding : {"", "optim", "optim_grads", "optim_grads_params"}) {
            if (dp * cp == 1 && *sharding != '\0') continue;
            choice.recompute = recompute;
            choice.sharding = sharding;
            const config::RunConfig config = with_layout(recipe, choice);
            if (!broken_rules(config).empty()) continue;
            const ResolvedRun run = resolve(config);
            if (!stages.empty() &&
                std::ranges::all_of(run.parts, [&](auto& part) { return part.num_layers * pp * vpp == layers; }))
              continue;  // equal stages
            const MemoryPlan memory = largest_memory(run);
            const std::int64_t gathered = gathered_by(recipe, choice);
            if (static_cast<double>(memory.total() + gathered) > capacity) continue;
            found.push_back({.choice = choice,
                             .dp = run.grid.sample_shares(),
                             .microbatches = microbatches,
                             .memory = memory,
                             .gathered_bytes = gathered,
                             .cost = step_cost(run, hardware)});
          }
      }
    }
  std::ranges::stable_sort(found, {}, [](const FoundLayout& each) { return each.cost.step_s; });
  return found;
}

/// Without those that recompute as few layers as fit, which all_layouts() has not.
std::vector<FoundLayout> but_fit(std::vector<FoundLayout> layouts) {
  std::erase_if(layouts, [](const FoundLayout& each) { return each.choice.recompute == "fit"; });
  return layouts;
}

/// The first layouts of a search in such memory are those of `truth`, which has all; returns the first of them.
FoundLayout expect_the_fastest_of(const std::vector<FoundLayout>& truth, const config::RunConfig& recipe,
                                  double capacity, int most = 3) {
  std::vector<FoundLayout> fitting;
  std::ranges::copy_if(truth, std::back_inserter(fitting),
                       [&](const FoundLayout& each) { return static_cast<double>(each.held_bytes()) <= capacity; });
  const LayoutSearch found = search_layouts(recipe, h100(), capacity, {}, most, 1 << 20, 2);
  EXPECT_TRUE(found.complete);
  EXPECT_LT(found.evaluated, found.allowed);
  const std::vector<FoundLayout> layouts = but_fit(found.layouts);
  const std::size_t first = std::min(static_cast<std::size_t>(most), fitting.size());
  EXPECT_GE(layouts.size(), first) << capacity;
  for (std::size_t i = 0; i < std::min(first, layouts.size()); ++i)
    EXPECT_DOUBLE_EQ(layouts[i].cost.step_s, fitting[i].cost.step_s)
        << capacity << ": " << flags_of(recipe, layouts[i].choice) << "; " << flags_of(recipe, fitting[i].choice);
  for (const FoundLayout& each : found.layouts) {
    EXPECT_EQ(broken_rules(with_layout(recipe, each.choice)), "") << flags_of(recipe, each.choice);
    EXPECT_LE(static_cast<double>(each.held_bytes()), capacity);
    EXPECT_EQ(each.choice.tp * each.choice.cp * each.choice.pp * each.dp, recipe.parallel.world_size);
    EXPECT_EQ(each.gathered_bytes, gathered_by(recipe, each.choice));
  }
  return layouts.empty() ? FoundLayout() : layouts.front();
}

TEST(LayoutSearch, FindsTheFastestOfAllThatFitWithoutPlanningThemAll) {
  const auto truth = all_layouts(recipe(), h100(), 1e18);
  for (const double capacity : {6e9, 80e9, 4e9}) {
    if (kSanitized && capacity != 6e9) continue;
    const FoundLayout best = expect_the_fastest_of(truth, recipe(), capacity, 5);
    const auto first = std::ranges::find_if(
        truth, [&](const FoundLayout& each) { return static_cast<double>(each.held_bytes()) <= capacity; });
    ASSERT_NE(first, truth.end());
    EXPECT_EQ(best.choice, first->choice) << flags_of(recipe(), first->choice);
  }
}

TEST(LayoutSearch, KnowsWhatProductsIn8BitsCost) {
  config::RunConfig config = recipe();
  config.model.num_layers = 2;
  config.parallel.world_size = 4;
  config.train.global_batch_size = 16;
  const LayoutSearch in_bf16 = search_layouts(config, h100(), 80e9, {}, 1, 1 << 20, 2);
  config.fp8.format = "hybrid";
  const FoundLayout best = expect_the_fastest_of(all_layouts(config, h100(), 80e9), config, 80e9);
  EXPECT_LT(best.cost.parts.matrices, in_bf16.layouts.at(0).cost.parts.matrices);
  config.fp8.recipe = "tensorwise";  // scales follow from the tensors of a microbatch
  config.train.micro_batch_size = 2;
  config.data.seq_length = 8192;
  const LayoutSearch as_asked = search_layouts(config, h100(), 80e9, {}, 1000, 1 << 20, 2);
  EXPECT_GT(as_asked.layouts.size(), 1U);
  for (const FoundLayout& each : as_asked.layouts) EXPECT_EQ(each.choice.micro_batch_size, 2);
  EXPECT_TRUE(std::ranges::any_of(as_asked.layouts, [](const FoundLayout& each) { return each.choice.cp == 2; }))
      << "a smaller microbatch, which would share less, is not allowed";
}

TEST(LayoutSearch, ProposesUnequalStagesWhereTheLayersDoNotDivideOrTheOutputIsLarge) {
  config::RunConfig odd = recipe();
  odd.model.num_layers = 7;
  odd.parallel.world_size = 8;
  odd.train.global_batch_size = 8;
  const auto truth = all_layouts(odd, h100(), 8e9);
  const LayoutSearch found = search_layouts(odd, h100(), 8e9, {}, 3, 1 << 20, 2);
  const std::vector<FoundLayout> layouts = but_fit(found.layouts);
  ASSERT_GE(layouts.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(layouts[i].cost.step_s, truth.at(i).cost.step_s) << i;

  config::RunConfig large = recipe();
  large.model.vocab_size = 64'000;  // the output costs as much as 2.6 layers
  large.parallel.world_size = 8;
  large.train.global_batch_size = 8;
  int balanced = 0;
  for (const FoundLayout& each : search_layouts(large, h100(), 12e9, {}, 1000, 1 << 20, 2).layouts) {
    if (each.choice.pp != 2 || each.choice.vpp != 1 || each.choice.stages.empty()) continue;
    ++balanced;
    EXPECT_THAT(flags_of(large, each.choice), testing::HasSubstr(" --pp-layout balanced"));
    EXPECT_THAT(each.stage_layers, testing::ElementsAre(5, 3));
  }
  EXPECT_GT(balanced, 0);
}

TEST(LayoutSearch, RecomputesAsFewLayersAsFit) {
  const LayoutSearch found = search_layouts(recipe(), h100(), 4e9, {}, 300, 1 << 20, 2);
  int fewer = 0;
  for (const FoundLayout& each : found.layouts) {
    EXPECT_LE(static_cast<double>(each.memory.total()), 4e9);
    if (each.choice.recompute != "fit") continue;
    ++fewer;
    EXPECT_GT(each.recomputed, 0);
    EXPECT_LT(each.recomputed, 8);
    EXPECT_THAT(flags_of(recipe(), each.choice),
                testing::HasSubstr("--train.recompute full --train.recompute_layers fit --train.memory_limit_gb 4"));
    LayoutChoice all = each.choice;
    all.recompute = "full";
    all.limit_gb = 0;
    EXPECT_LT(each.cost.step_s, step_cost(resolve(with_layout(recipe(), all)), h100()).step_s);
  }
  EXPECT_GT(fewer, 0);
}

// As a run writes that took what a search has found: it can be searched again.
TEST(LayoutSearch, ReplacesWhatARecipeSaysOfItsLayout) {
  config::RunConfig resolved = recipe();
  resolved.parallel.tp = resolved.parallel.pp = 2;
  resolved.parallel.pp_layout = "Et*3|t*5L";
  resolved.parallel.account_for_loss = true;
  resolved.train.recompute = "full";
  resolved.train.recompute_layers = "0-1";
  resolved.train.recompute_partial_microbatches = 2;
  resolved.optimizer.use_distributed_optimizer = true;
  resolved.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  const LayoutSearch want = search_layouts(recipe(), h100(), 80e9, {}, 3, 1000, 2),
                     got = search_layouts(resolved, h100(), 80e9, {}, 3, 1000, 2);
  ASSERT_EQ(got.layouts.size(), want.layouts.size());
  for (std::size_t i = 0; i < want.layouts.size(); ++i) EXPECT_EQ(got.layouts[i].choice, want.layouts[i].choice) << i;
  resolved.train.recompute_num_layers = 2;
  resolved.train.recompute_method = "block";
  resolved.train.distribute_saved_activations = true;
  resolved.parallel.vpp = 2;
  resolved.parallel.microbatch_group_size = 4;
  resolved.train.recompute_layers = "";
  EXPECT_EQ(search_layouts(resolved, h100(), 80e9, {}, 1, 1000, 2).layouts.at(0).choice, want.layouts.at(0).choice);
  resolved.train.recompute_layers = "0-1";
  const std::string flags = flags_of(resolved, {});
  EXPECT_THAT(flags, testing::HasSubstr(" --pp-layout= --parallel.account_for_loss false "));
  EXPECT_THAT(flags, testing::HasSubstr(" --train.recompute_layers= --train.recompute_num_layers 0 "));
  EXPECT_THAT(flags, testing::HasSubstr(" --use-distributed-optimizer false "));
}

/// What `recipe` becomes by the words of flags_of().
config::RunConfig by_flags(config::RunConfig recipe, const std::string& flags) {
  std::istringstream words(flags);
  config::parse_words(config::fields_of(recipe), {std::istream_iterator<std::string>(words), {}}, "");
  return recipe;
}

// Recipes with stages of all kinds: a launch command must take back what its layout does without.
TEST(LayoutSearch, NamesFlagsThatMakeOfARecipeTheLayoutThatWasFound) {
  for (const char* name : {"gpt_145.6b", "gpt_39.1b", "gpt_tiny_pp", "gpt_1.3b", "moe_tiny", "llama2_7b", "t5_220m"}) {
    config::RunConfig recipe;
    config::load_toml(recipe, concat(tests_folder() + "/../configs/", name, ".toml"));
    recipe.data.tokenizer = "";
    if (recipe.model.vocab_size == 0) recipe.model.vocab_size = 32'000;
    recipe.train.recompute_num_layers = 1;
    recipe.train.recompute = "full";
    recipe.parallel.dp = 3;
    if (recipe.model.architecture == "t5") recipe.parallel.pipeline_split_rank = 1;
    for (const int ranks : {1, 8, 64}) {
      recipe.parallel.world_size = ranks;
      const LayoutSearch found = search_layouts(recipe, h100(), 1e18, {}, 3, 60, 2);
      EXPECT_FALSE(found.layouts.empty() && recipe.parallel.pipeline_split_rank > 0) << found.refused;
      for (const FoundLayout& each : found.layouts) {
        const std::string flags = flags_of(recipe, each.choice);
        SCOPED_TRACE(concat(name, ", ", ranks, " ranks: ", flags));
        config::RunConfig want = with_layout(recipe, each.choice), got = by_flags(recipe, flags);
        EXPECT_EQ(broken_rules(got), "");
        EXPECT_EQ(config::to_toml(config::fields_of(got)), config::to_toml(config::fields_of(want)));
      }
    }
  }
}

/// The least that any of them holds for which `holds`.
double least_bytes_of(const std::vector<FoundLayout>& layouts, const std::function<bool(const LayoutChoice&)>& holds) {
  double least = 1e30;
  for (const FoundLayout& each : layouts)
    if (holds(each.choice)) least = std::min(least, static_cast<double>(each.held_bytes()));
  return least;
}

TEST(LayoutSearch, SharesExpertsAsTheFastestOfAllLayoutsDo) {
  config::RunConfig experts = recipe();
  experts.model.num_layers = 2;
  experts.model.add_bias_linear = false;
  experts.model.num_experts = 8;
  experts.model.moe_ffn_hidden_size = 2048;
  experts.model.moe_shared_expert_intermediate_size = 4 * 33;  // which 8 does not divide
  experts.parallel.world_size = 8;
  experts.train.global_batch_size = 8;
  const auto truth = all_layouts(experts, h100(), 1e18);
  expect_the_fastest_of(truth, experts, 80e9);
  // In a little less than what it takes without, there are only layouts that divide the experts.
  const double without = least_bytes_of(truth, [](const LayoutChoice& each) { return each.ep == 1; });
  ASSERT_LT(least_bytes_of(truth, [](const LayoutChoice& each) { return each.ep > 1; }), without);
  const FoundLayout best = expect_the_fastest_of(truth, experts, without - 1);
  EXPECT_GT(best.choice.ep, 1);
  EXPECT_THAT(flags_of(experts, best.choice), testing::HasSubstr(concat(" --ep ", best.choice.ep)));
}

TEST(LayoutSearch, SharesSequencesAsTheFastestOfAllLayoutsDo) {
  config::RunConfig sequences = recipe();
  sequences.model.num_layers = 2;
  sequences.model.num_query_groups = 4;
  sequences.data.seq_length = 16384;
  sequences.parallel.world_size = 8;
  sequences.train.global_batch_size = 4;
  const auto truth = all_layouts(sequences, h100(), 1e18);
  expect_the_fastest_of(truth, sequences, 80e9);
  const auto shares = [](const LayoutChoice& each) { return each.cp > 1; };
  const double without = least_bytes_of(truth, std::not_fn(shares)), with = least_bytes_of(truth, shares);
  ASSERT_LT(with, without);
  const FoundLayout best = expect_the_fastest_of(truth, sequences, without - 1);
  EXPECT_GT(best.choice.cp, 1);
  EXPECT_THAT(flags_of(sequences, best.choice),
              testing::HasSubstr(concat(" --cp ", best.choice.cp, " --cp-comm-type ", best.choice.cp_comm_type)));
  expect_the_fastest_of(truth, sequences, with);
}

// Depths of multi-token prediction are behind the last layer, on one stage: they weigh in its time and memory.
TEST(LayoutSearch, PlacesDepthsAsTheFastestOfAllLayoutsDo) {
  config::RunConfig ahead = recipe();
  ahead.model.num_layers = 4;
  ahead.model.position_embedding_type = "rope";
  ahead.model.mtp_num_layers = 2;
  ahead.parallel.world_size = 4;
  ahead.train.global_batch_size = 4;
  const auto truth = all_layouts(ahead, h100(), 1e18);
  expect_the_fastest_of(truth, ahead, 80e9);
  const double unpiped = least_bytes_of(truth, [](const LayoutChoice& each) { return each.pp == 1; });
  const double piped = least_bytes_of(truth, [](const LayoutChoice& each) { return each.pp > 1; });
  expect_the_fastest_of(truth, ahead, (unpiped + piped) / 2);
}

// With every size that a search chooses: a recipe that names others gives the same, and the flags take them back.
TEST(LayoutSearch, ReplacesRanksThatShareExpertsOrSequences) {
  config::RunConfig shared = recipe();
  shared.parallel.cp = 4;
  shared.parallel.cp_comm_type = "a2a";
  EXPECT_EQ(with_layout(shared, {}).parallel.cp, 1);
  EXPECT_THAT(flags_of(shared, {}), testing::HasSubstr(" --cp 1"));
  shared.parallel.ep = 2;
  EXPECT_EQ(with_layout(shared, {}).parallel.ep, 1);
  EXPECT_THAT(flags_of(shared, {}), testing::HasSubstr(" --ep 1"));
  shared.parallel.etp = 2;
  EXPECT_EQ(with_layout(shared, {}).parallel.etp, 0);
  EXPECT_THAT(flags_of(shared, {}), testing::HasSubstr(" --ep 1 --etp 0"));
  EXPECT_THAT(flags_of(recipe(), {.tp = 2, .ep = 2, .etp = 1}), testing::HasSubstr(" --ep 2 --etp 1"));
  EXPECT_THAT(flags_of(recipe(), {}),
              testing::Not(
                  testing::AnyOf(testing::HasSubstr("--cp"), testing::HasSubstr("--ep"), testing::HasSubstr("--etp"))));
}

TEST(LayoutSearch, SharesNoSequencesThatAreShortOrThatRulesKeepWhole) {
  config::RunConfig whole = recipe();
  whole.model.num_layers = 2;
  whole.parallel.world_size = 4;
  whole.train.global_batch_size = 4;
  const auto most_cp = [&] {
    int most = 1;
    for (const FoundLayout& each : search_layouts(whole, h100(), 80e9, {}, 1000, 1 << 20, 2).layouts)
      most = std::max(most, each.choice.cp);
    return most;
  };
  whole.data.seq_length = 2 * kLeastSharedTokens - 2;
  EXPECT_EQ(most_cp(), 1);
  whole.data.seq_length = 2 * kLeastSharedTokens;
  EXPECT_EQ(most_cp(), 2);
  whole.model.head = "classes";  // for which it may not be
  whole.model.num_classes = 2;
  EXPECT_EQ(most_cp(), 1);
}

TEST(LayoutSearch, IsTheSameForAnyNumberOfThreadsAndSaysWhereItStopped) {
  const Hardware hardware = h100();
  const LayoutSearch one = search_layouts(recipe(), hardware, 6e9, {}, 3, 32, 1);
  const LayoutSearch four = search_layouts(recipe(), hardware, 6e9, {}, 3, 32, 4);
  EXPECT_EQ(one.evaluated, 32);
  EXPECT_EQ(four.evaluated, one.evaluated);
  ASSERT_EQ(one.layouts.size(), four.layouts.size());
  for (std::size_t i = 0; i < one.layouts.size(); ++i) EXPECT_EQ(one.layouts[i].choice, four.layouts[i].choice);
  EXPECT_EQ(one.complete, four.complete);
}

// As `megatron plan` counts it with --processor.
TEST(LayoutSearch, CountsPackedWeightsOfTheHardwaresProcessor) {
  config::RunConfig on_cpu = recipe();
  on_cpu.parallel.device = "cpu";
  on_cpu.parallel.world_size = 4;
  on_cpu.data.seq_length = 8;  // fewer tokens than are packed while products read them
  for (const char* processor : {"amx", "avx512_bf16", "avx2"}) {
    Hardware hardware = h100();
    hardware.processor = processor;
    const FoundLayout best = search_layouts(on_cpu, hardware, 80e9, {}, 1, 1000, 2).layouts.at(0);
    const MemoryPlan want = largest_memory(resolve(with_layout(on_cpu, best.choice)), processor);
    EXPECT_EQ(want.packed_weights > 0, processor != std::string("avx2"));
    EXPECT_EQ(best.memory.packed_weights, want.packed_weights);
    EXPECT_EQ(best.memory.total(), want.total());
  }
}

TEST(LayoutSearch, OfTooLittleMemoryFindsNothing) {
  const LayoutSearch none = search_layouts(recipe(), h100(), 1e8, {}, 3, 1000, 2);
  EXPECT_TRUE(none.layouts.empty());
  EXPECT_EQ(none.refused, "");
  config::RunConfig wrong = recipe();
  wrong.model.num_attention_heads = 15;
  EXPECT_THROW(search_layouts(wrong, h100(), 80e9, {}, 3, 1000, 2), ConfigError);
}

TEST(LayoutSearch, SaysTheRuleThatIsAgainstEveryLayout) {
  config::RunConfig late = recipe();
  late.schedule.lr_decay_samples = 1000;
  late.schedule.lr_warmup_samples = 2000;
  for (const int ranks : {1, 8}) {
    late.parallel.world_size = ranks;
    const std::string refused = search_layouts(late, h100(), 80e9, {}, 3, 1000, 2).refused;
    EXPECT_NE(refused.find("the warm-up must end before the decay does."), std::string::npos) << refused;
  }
}

TEST(Pareto, LeavesWhatIsBeatenInSpeedAndMemory) {
  const auto layout = [](int tp, double step_s, std::int64_t bytes) {
    FoundLayout found;
    found.choice.tp = tp;
    found.cost.step_s = step_s;
    found.memory.parameters = bytes;
    return found;
  };
  std::vector<int> kept;
  for (const FoundLayout& each :
       pareto({layout(1, 3, 10), layout(2, 1, 30), layout(3, 2, 30), layout(4, 2, 20), layout(5, 4, 10)}))
    kept.push_back(each.choice.tp);
  EXPECT_THAT(kept, testing::ElementsAre(2, 4, 1));
}

}  // namespace
}  // namespace megatron::plan
