#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"

namespace megatron::config {
namespace {

using testing::HasSubstr;

constexpr const char* kSmallGpt =
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --train-iters 4 --lr 1e-4 ";

std::string refusal_of_small(const std::string& words) {
  try {
    translate_megatron_arguments("pretrain_gpt", shell_words(kSmallGpt + words, "words"), {.world_size = 1});
    return "no error";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(MegatronArguments, AdviseNoOppositeOfWhatIsTyped) {
  const auto fix = [](const std::string& word) {
    const MegatronArguments args({word});
    return args.errors().empty() ? "" : args.errors()[0].substr(args.errors()[0].rfind("  fix:  ") + 8);
  };
  for (const std::string word :
       {"--bias-gelu-fusion", "--load-optim", "--save-optim", "--check-for-nan-in-loss-and-grad", "--bias-linear",
        "--tie-embeddings-and-output-weights", "--no-swiglu", "--no-apply-query-key-layer-scaling"})
    EXPECT_EQ(fix(word), "leave " + word + " out: it is the default");
  for (const std::string word : {"--multi-query-attention", "--gradient-accumulation-steps", "--tie-weights"})
    EXPECT_EQ(fix(word), "leave " + word + " out");
  EXPECT_EQ(fix("--recompute-granulariti"), "--recompute-granularity");
  EXPECT_EQ(fix("--no-bias-gelu-fusoin"), "--no-bias-gelu-fusion");
}

TEST(MegatronArgs, NameWhatStandsForFlagsOfOlderVersions) {
  for (const auto& [words, instead] :
       {std::pair<std::string, std::string>{"--no-query-key-layer-scaling", "leave it out"},
        {"--data-impl mmap", "leave it out"},
        {"--delay-grad-reduce", "leave it out"},
        {"--no-delay-grad-reduce", "--no-align-grad-reduce"},
        {"--log-learning-rate-to-tensorboard", "leave it out"},
        {"--log-batch-size-to-tensorboard", "leave it out"},
        {"--glu-activation swiglu", "--swiglu"},
        {"--fp8-hybrid", "--fp8-format hybrid"},
        {"--fp8-e4m3", "--fp8-format e4m3"}})
    EXPECT_THAT(refusal_of_small(words), HasSubstr(words + " (gone from Megatron-LM; " + instead + ")"));
}

TEST(MegatronArgs, ProposeAValueOfWhatMustBeGiven) {
  EXPECT_THAT(refusal_of_small("--lr x"), HasSubstr("got:  'x'\n  fix:  --lr 1e-4"));
  EXPECT_THAT(refusal_of_small("--train-iters 1.5"), HasSubstr("fix:  --train-iters 100000"));
  EXPECT_THAT(refusal_of_small("--kv-channels x"), HasSubstr("fix:  leave --kv-channels out"));
}

}  // namespace
}  // namespace megatron::config
