#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"

namespace megatron::config {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Errors name them as a fix, so whoever types them behind a script's own words must be understood.
/// The recipe of a small GPT on so many ranks, with `words` besides.
RunConfig translated_small(const std::string& words, int world_size) {
  const std::string small =
      "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
      "--micro-batch-size 4 --train-iters 100 --lr 1e-4 --global-batch-size 16 ";
  return translate_megatron_arguments("pretrain_gpt", shell_words(small + words, "test"), {.world_size = world_size})
      .config;
}

TEST(MegatronArguments, OfEightBitsAreThoseOfTheRecipe) {
  const Fp8Config usual = translated_small("--fp8-format hybrid", 1).fp8;
  EXPECT_EQ(usual.format, "hybrid");
  EXPECT_EQ(usual.margin, 0);
  EXPECT_EQ(usual.amax_history_len, 1);
  EXPECT_EQ(usual.amax_compute_algo, "most_recent");
  EXPECT_TRUE(usual.wgrad);
  const Fp8Config other = translated_small(
                              "--fp8-format e4m3 --fp8-recipe delayed --fp8-margin 2 --fp8-amax-history-len 16 "
                              "--fp8-amax-compute-algo max --disable-fp8-wgrad",
                              1)
                              .fp8;
  EXPECT_EQ(other.format, "e4m3");
  EXPECT_EQ(other.margin, 2);
  EXPECT_EQ(other.amax_history_len, 16);
  EXPECT_EQ(other.amax_compute_algo, "max");
  EXPECT_FALSE(other.wgrad);
  EXPECT_EQ(translated_small("--fp8-margin 2 --no-fp8-wgrad --fp8-recipe mxfp8", 1).fp8.format, "none");
  EXPECT_EQ(usual.recipe, "delayed");
  EXPECT_FALSE(usual.first_last_layers_bf16);
  const Fp8Config wide =
      translated_small("--fp8-format hybrid --first-last-layers-bf16 --num-layers-at-start-in-bf16 2", 1).fp8;
  EXPECT_TRUE(wide.first_last_layers_bf16);
  EXPECT_EQ(wide.num_layers_at_start_in_bf16, 2);
  EXPECT_EQ(wide.num_layers_at_end_in_bf16, 1);
  EXPECT_EQ(translated_small("--fp8-format hybrid --fp8-recipe tensorwise", 1).fp8.recipe, "tensorwise");
  EXPECT_EQ(translated_small("--fp8-format e4m3 --fp8-recipe blockwise", 1).fp8.recipe, "blockwise");
  EXPECT_EQ(translated_small("--fp8-format e4m3 --fp8-recipe mxfp8", 1).fp8.recipe, "mxfp8");
  std::string error;
  try {
    translated_small("--fp8-format hybrid --fp8-recipe custom", 1);
  } catch (const ConfigError& refused) {
    error = refused.what();
  }
  EXPECT_THAT(error, testing::HasSubstr("--fp8-recipe custom (FP8 scaled otherwise than by --fp8-recipe"));
}

TEST(MegatronArguments, TakeThisProgramsNamesOfTheLayout) {
  const MegatronArguments args({"--pipeline-model-parallel-size", "16", "--pp", "8", "--parallel.tp=2", "--vpp", "3",
                                "--sp", "--dp=3", "--schedule", "auto", "--world-size", "48"});
  EXPECT_THAT(args.errors(), IsEmpty());
  EXPECT_EQ(args.integer("pipeline-model-parallel-size"), 8);
  EXPECT_EQ(args.integer("tensor-model-parallel-size"), 2);
  EXPECT_EQ(args.integer("num-virtual-stages-per-pipeline-rank"), 3);
  EXPECT_TRUE(args.has("sequence-parallel"));
  EXPECT_THAT(args.own_words(),
              ElementsAre("--parallel.dp=3", "--parallel.pp_schedule", "auto", "--parallel.world_size", "48"));
  const MegatronArguments fixes({"--ep", "2", "--etp=1", "--pp-layout", "balanced", "--tokenizer", "DIR"});
  EXPECT_THAT(fixes.errors(), IsEmpty());
  EXPECT_EQ(fixes.integer("expert-model-parallel-size"), 2);
  EXPECT_EQ(fixes.integer("expert-tensor-parallel-size"), 1);
  EXPECT_THAT(fixes.own_words(), ElementsAre("--parallel.pp_layout", "balanced", "--data.tokenizer", "DIR"));
  EXPECT_THAT(MegatronArguments({"--pq", "8"}).errors(), testing::SizeIs(1));
}

TEST(MegatronArguments, ShareSequencesBetweenRanks) {
  const auto parallel_of = [](const std::string& words) { return translated_small(words, 8).parallel; };
  const auto error_of = [&](const std::string& words) -> std::string {
    try {
      parallel_of(words);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(parallel_of("").cp, 1);
  EXPECT_EQ(parallel_of("--cp-comm-type p2p").cp_comm_type, "auto") << "of one rank";
  EXPECT_EQ(parallel_of("--context-parallel-size 4").cp, 4);
  EXPECT_EQ(parallel_of("--context-parallel-size 4").cp_comm_type, "auto") << "which changes no result";
  EXPECT_EQ(parallel_of("--cp 2 --cp-comm-type a2a a2a").cp_comm_type, "a2a");
  for (const std::string words : {"--cp-comm-type a2a p2p", "--cp-comm-type a2a+p2p"})
    EXPECT_THAT(error_of("--context-parallel-size 2 " + words), testing::HasSubstr("context parallelism")) << words;
  EXPECT_THAT(error_of("--context-parallel-size 3"), testing::HasSubstr("a multiple of tp x cp x pp"));
}

TEST(MegatronArguments, ShareWhatBothKindsOfFsdpShare) {
  const auto optimizer_of = [](const std::string& words) { return translated_small(words, 2).optimizer; };
  const auto shared = [&](const std::string& words) -> std::string {
    const OptimizerConfig optimizer = optimizer_of(words);
    return optimizer.use_distributed_optimizer ? optimizer.data_parallel_sharding_strategy : "nothing";
  };
  EXPECT_EQ(shared("--data-parallel-sharding-strategy optim_grads"), "nothing");
  EXPECT_EQ(shared("--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads"), "optim");
  EXPECT_EQ(shared("--use-megatron-fsdp"), "optim_grads_params");
  EXPECT_EQ(shared("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"), "optim_grads");
  EXPECT_EQ(shared("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard"), "nothing");
  EXPECT_EQ(shared("--use-torch-fsdp2"), "optim_grads_params");
  EXPECT_EQ(shared("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward"), "optim_grads");
  EXPECT_THROW(optimizer_of("--use-torch-fsdp2 --use-distributed-optimizer"), ConfigError);
  EXPECT_THROW(optimizer_of("--use-torch-fsdp2 --use-megatron-fsdp"), ConfigError);
  EXPECT_THROW(optimizer_of("--use-megatron-fsdp --megatron-fsdp-main-params-dtype bf16"), ConfigError);
}

TEST(MegatronArguments, RunStepsTwiceWhereStatisticsOfRerunsAreAskedFor) {
  const auto interval_of = [](const std::string& words) { return translated_small(words, 1).guard.rerun_interval; };
  EXPECT_EQ(interval_of(""), 0);
  EXPECT_EQ(interval_of("--rerun-mode validate_results"), 0);
  EXPECT_EQ(interval_of("--rerun-mode report_stats"), 1);
}

}  // namespace
}  // namespace megatron::config
