#include "megatron/config/unused_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "megatron/config/options.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::config {
namespace {

using testing::HasSubstr;

/// What is said of a command with these words and this recipe.
std::string note(std::vector<std::string> words, const std::string& recipe = "") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "recipe.toml").string();
  std::ofstream(path) << recipe;
  words.insert(words.begin(), path);
  RunConfig config;
  const RecipeCommand command = parse_recipe_command(config, words, "usage");
  return unread_note(config, command.given);
}

TEST(UnreadNote, NamesWhatIsGivenAndHasNoEffect) {
  EXPECT_EQ(note({}), "");
  EXPECT_EQ(note({"--adam-beta1", "0.9"}), "");
  EXPECT_EQ(note({"--optimizer", "sgd", "--adam-beta1", "0.9"}),
            "note: --adam-beta1 has no effect with --optimizer sgd");  // also where it is the default
  EXPECT_EQ(note({"--optimizer", "sgd", "--adam-beta1", "0.9", "--adam_beta2", "0.95", "--adam-eps=1e-8",
                  "--hysteresis", "2"}),
            "note: --adam-beta1, --adam_beta2 and --adam-eps have no effect with --optimizer sgd; "
            "--hysteresis has no effect with --train.dtype fp32");
}

TEST(UnreadNote, TakesOfARecipeWhatItSetsToAnotherValue) {
  const std::string recipe = "[optimizer]\nname = 'lion'\nadam_beta1 = 0.9\nsgd_momentum = 0.5\n";
  EXPECT_EQ(note({}, recipe), "note: optimizer.sgd_momentum has no effect with --optimizer lion");
  EXPECT_EQ(note({"--optimizer", "sgd"}, recipe), "");
  EXPECT_EQ(note({}, save_toml(RunConfig())), "") << "a saved recipe has every option";
}

// Each pair by what the option's own documentation says of it: first without, then with what it needs.
TEST(UnreadNote, KnowsWhatEachOptionNeeds) {
  struct Case {
    std::vector<std::string> unread, needs;
  };
  const std::vector<Case> cases = {
      {{"--lion-beta1", "0.9"}, {"--optimizer", "lion"}},
      {{"--sgd-momentum", "0.9"}, {"--optimizer", "sgd"}},
      {{"--loss-scale-window", "500"}, {"--fp16"}},
      {{"--fp16", "--initial-loss-scale", "1024", "--loss-scale", "512"}, {"--loss-scale", "0"}},
      {{"--optimizer.min_loss_scale", "2"}, {"--fp16"}},
      {{"--bert-no-binary-head"}, {"--model.architecture", "bert"}},
      {{"--mask-prob", "0.2"}, {"--model.architecture", "t5"}},
      {{"--relative-attention-num-buckets", "16"}, {"--position-embedding-type", "relative"}},
      {{"--rotary-base", "50000"}, {"--use-rotary-position-embeddings"}},
      {{"--position-embedding-type", "rope", "--model.rope_low_freq_factor", "2"}, {"--use-rope-scaling"}},
      {{"--add-qkv-bias"}, {"--disable-bias-linear"}},
      {{"--sequence-parallel"}, {"--tensor-model-parallel-size", "2"}},
      {{"--account-for-loss-in-pipeline-split"}, {"--pp", "2"}},
      {{"--pp-communication", "batched"}, {"--pp", "2"}},
      {{"--full-validation"}, {"--eval-interval", "10"}},
      {{"--eval-iters", "5"}, {"--eval-interval", "10"}},
      {{"--eval-iters", "5"}, {"--test-data-path", "test"}},
      {{"--fim-rate", "0.9"}, {"--fim-data"}},
      {{"--fp8-margin", "1", "--no-fp8-wgrad"}, {"--fp8-format", "hybrid"}},
      {{"--fp8-format", "hybrid", "--fp8-recipe", "tensorwise", "--fp8-margin", "1"}, {"--fp8-recipe", "delayed"}},
      {{"--fp8-format", "e4m3", "--fp8-recipe", "blockwise", "--fp8-amax-history-len", "4"},
       {"--fp8-recipe", "delayed"}},
      {{"--fp8-format", "e4m3", "--fp8-recipe", "mxfp8", "--fp8-margin", "1"}, {"--fp8-recipe", "delayed"}},
      {{"--optimizer.wd_mult", "*=1", "--weight-decay", "0"}, {"--weight-decay", "0.1"}},
      {{"--overlap-param-gather"}, {"--use-distributed-optimizer"}},
      {{"--data-parallel-sharding-strategy", "optim"}, {"--use-distributed-optimizer"}},
      {{"--lr-decay-style", "constant", "--min-lr", "1e-5"}, {"--lr-decay-style", "linear"}},
      {{"--lr-decay-style", "constant", "--lr-decay-samples", "99"}, {"--lr-warmup-fraction", "0.1"}},
      {{"--lr-warmup-init", "1e-6"}, {"--lr-warmup-samples", "8"}},
      {{"--lr-warmup-fraction", "0.1", "--lr-warmup-samples", "8"}, {"--lr-warmup-samples", "0"}},
      {{"--lr-wsd-decay-samples", "100"}, {"--lr-decay-style", "WSD"}},
      {{"--recompute-method", "block"}, {"--recompute-granularity", "full"}},
      {{"--recompute-modules", "mlp"}, {"--recompute-granularity", "selective"}},
      {{"--no-load-optim", "--finetune"}, {"--finetune", "false"}},
      {{"--save-retain-interval", "100", "--checkpoint.keep_last", "0"}, {"--checkpoint.keep_last", "1"}},
      {{"--split", "9,1", "--train-data-path", "a"}, {}},
  };
  for (const Case& pair : cases) {
    const std::string said = note(pair.unread);
    EXPECT_EQ(said.find("note: "), 0U) << testing::PrintToString(pair.unread);
    EXPECT_THAT(said, HasSubstr("no effect")) << testing::PrintToString(pair.unread);
    EXPECT_EQ(said.find(';'), std::string::npos) << said;
    if (pair.needs.empty()) continue;
    std::vector<std::string> words = pair.unread;
    words.insert(words.end(), pair.needs.begin(), pair.needs.end());
    EXPECT_EQ(note(words), "");
  }
}

TEST(UnreadNote, LeavesOutSwitchesThatStayOff) {
  EXPECT_EQ(note({"--no-sequence-parallel", "--sp", "false"}), "");
  EXPECT_THAT(note({"--no-overlap-param-gather"}), HasSubstr("without --use-distributed-optimizer"));
}

}  // namespace
}  // namespace megatron::config
