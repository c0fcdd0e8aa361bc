#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunConfig read(const std::string& text) {
  RunConfig run;
  read_toml(fields_of(run), text, "recipe.toml");
  return run;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Toml, SetsOptionsAndLeavesTheOthers) {
  const RunConfig run = read(
      "train.seed = 5\n[model]\nnum-layers = 7  # a comment\nlayernorm_epsilon = 1\nlongrope_long_factor = [1, 2.5, "
      "1e3]\n[data]\ndata_path = [\"a\", "
      "\"b\"]\n"
      "[schedule]\nrampup_batch_size = [1, 2, 3]\n[optimizer]\noverlap_grad_reduce = false\n");
  EXPECT_EQ(run.train.seed, 5u);
  EXPECT_EQ(run.model.num_layers, 7);
  EXPECT_EQ(run.model.layernorm_epsilon, 1.0);
  EXPECT_THAT(run.data.data_path, ElementsAre("a", "b"));
  EXPECT_THAT(run.schedule.rampup_batch_size, ElementsAre(1, 2, 3));
  EXPECT_THAT(run.model.longrope_long_factor, ElementsAre(1, 2.5, 1e3));
  EXPECT_FALSE(run.optimizer.overlap_grad_reduce);
  EXPECT_EQ(run.model.hidden_size, ModelConfig().hidden_size);
}

TEST(Toml, AsksForOneTableWhereASectionIsAListOfThem) {
  const std::string fix = "fix:  [model], and under it its options";
  EXPECT_THAT(error_of("[[model]]\nnum_layers = 2\n"),
              HasSubstr("recipe.toml:1: model must be one table.\n  got:  a list of tables, [[model]]\n  " + fix));
  EXPECT_THAT(error_of("[[model]]\n[[model]]\n"), HasSubstr(fix));
}

// Each is typed and read, as the user would.
TEST(Toml, ProposesValuesThatAreTaken) {
  const auto fix_of = [](const std::string& error) {
    const std::string mark = "fix:  such as ";
    const std::size_t at = error.find(mark);
    return at == std::string::npos ? "" : error.substr(at + mark.size(), error.find('\n', at) - at - mark.size());
  };
  const std::pair<const char*, const char*> cases[] = {
      {"[data]\ndata_path = [1, \"x\"]\n", "data_path = [\"1\", \"x\"]"},
      {"[data]\ndata_path = 0.5\n", "data_path = [\"0.5\"]"},
      {"[data]\ndata_path = [[1], [2]]\n", "data_path = [\"a\", \"b\"]"},
      {"[data]\ntokenizer = 7\n", "tokenizer = \"7\""},
      {"[data]\ntokenizer = [7]\n", "tokenizer = \"text\""},
      {"[schedule]\nrampup_batch_size = \"x\"\n", "rampup_batch_size = [1, 2]"},
      {"[train]\nseed = -1\n", "seed = 1234"}};
  for (const auto& [text, fix] : cases) {
    EXPECT_EQ(fix_of(error_of(text)), fix) << text;
    const std::string recipe = text;
    EXPECT_EQ(error_of(recipe.substr(0, recipe.find('\n') + 1) + fix + "\n"), "no error") << fix;
  }
}

TEST(Toml, ReadsTheOptionsOfEarlierRecipes) {
  const auto activation = [](const std::string& text) {
    RunConfig run;
    read_toml(fields_of(run), text, "recipe.toml");
    return run.model.activation;
  };
  EXPECT_EQ(activation("[model]\ngelu = \"tanh\"\n"), "gelu_tanh");
  EXPECT_EQ(activation("model.gelu = \"erf\"\n"), "gelu");
  EXPECT_THROW(activation("model.gelu = \"silu\"\n"), ConfigError);
  EXPECT_THROW(activation("model.gelu = 3\n"), ConfigError);
  EXPECT_THROW(activation("[model]\ngelu = \"tanh\"\nactivation = \"relu\"\n"), ConfigError);
}

TEST(Toml, NamesTheLineOfEveryWrongKeyAndValue) {
  const std::string error = error_of(
      "[model]\nnum_layer = 3\nhidden_size = 2.5\nactivation = true\n\n[paralel]\ntp = 2\n[parallel]\ntp = 3000000000\n"
      "[data]\ndata_path = [1]\n[train]\nseed = -1\ndtype = []\nseq_lenght = 8\n");
  EXPECT_THAT(error,
              HasSubstr("recipe.toml:2: a recipe's key must be a known option.\n  got:  model.num_layer\n  fix:  "
                        "model.num_layers"));
  EXPECT_THAT(error, HasSubstr("recipe.toml:3: model.hidden_size takes an integer.\n  got:  2.5"));
  EXPECT_THAT(error, HasSubstr("recipe.toml:4: model.activation takes a string."));
  EXPECT_THAT(error,
              HasSubstr("recipe.toml:6: a recipe's key must be a known option.\n  got:  paralel\n  fix:  parallel"));
  EXPECT_THAT(error, HasSubstr("train.seq_lenght\n  fix:  data.seq_length")) << "of another table";
  EXPECT_THAT(error, HasSubstr("recipe.toml:9: parallel.tp takes an integer."));
  EXPECT_THAT(error, HasSubstr("recipe.toml:11: data.data_path takes a list of strings."));
  EXPECT_THAT(error, HasSubstr("recipe.toml:13: train.seed takes an integer >= 0."));
  EXPECT_THAT(error, HasSubstr("recipe.toml:14: train.dtype takes a string.\n  got:  an array"));
}

TEST(Toml, RefusesTextsInWhichTheSystemWouldSeeAnEnd) {
  EXPECT_THAT(error_of("[train]\nout = \"a\\u0000b\"\n"),
              HasSubstr("recipe.toml:2: train.out must be a string without NUL characters.\n  got:  "));
  EXPECT_THAT(error_of("[data]\ndata_path = [\"whole\", \"a\\u0000b\"]\n"), HasSubstr("data.data_path must be"));
}

TEST(Toml, RefusesWhatIsNotTomlWithItsPlace) {
  EXPECT_THAT(error_of("[model]\nnum_layers = = 3\n"), HasSubstr("recipe.toml:2:"));
  EXPECT_THAT(error_of("[model]\nnum_layers = 1\nnum_layers = 2\n"), HasSubstr("recipe.toml:3:"));
  EXPECT_THAT(error_of("[model]\nnum_layers = 1\nnum-layers = 2\n"), HasSubstr("must be given once"));
  EXPECT_THAT(error_of("model = 3\n"),
              HasSubstr("recipe.toml:1: model must be one table.\n  got:  3\n  fix:  [model],"));
  EXPECT_THAT(error_of("lr = nan\n[schedule]\nlr = nan\n"), HasSubstr("recipe.toml:3: schedule.lr takes a number."));
}

TEST(Toml, RefusesTextsBuiltToExhaustTheParser) {
  std::string dots = "a";
  for (int i = 0; i < 100000; ++i) dots += ".a";
  for (const std::string& hostile :
       {std::string(100000, '['), "x = " + std::string(100000, '['), "x = " + std::string(100000, '{'), dots + " = 1",
        "[" + dots + "]", std::string(2 << 20, '#'), "[model]\nnum_layers = " + std::string(100000, '9'),
        std::string("\0\0\0", 3), std::string("\xff\xfe[model]")})
    EXPECT_NE(error_of(hostile), "no error") << hostile.substr(0, 20);
}

// Texts just inside the bounds must parse, or fail cleanly, without exhausting the stack.
TEST(Toml, SurvivesTheDeepestTextItAccepts) {
  std::string dots = "a";
  for (int i = 0; i < 2000; ++i) dots += ".a";
  EXPECT_THAT(error_of(dots + " = 1"), HasSubstr("known option"));
  EXPECT_THAT(error_of("[" + dots + "]\n"), HasSubstr("known option"));
  EXPECT_NE(error_of("x = " + std::string(250, '[') + std::string(250, ']')), "no error");
}

TEST(Toml, ReadsBackExactlyWhatItWrote) {
  RunConfig run;
  run.model.activation = "quote \" backslash \\ newline \n tab \t bell \a del \x7f and \xc3\xa9\xf0\x9f\x98\x80";
  run.data.data_path = {"", "b,c", "[x]"};
  run.schedule.rampup_batch_size = {std::numeric_limits<std::int64_t>::min(), 0,
                                    std::numeric_limits<std::int64_t>::max()};
  run.train.seed = std::numeric_limits<std::uint64_t>::max();
  run.optimizer.overlap_grad_reduce = false;
  run.schedule.lr = 0.1 + 0.2;
  run.model.longrope_short_factor = {0.1 + 0.2, 3, 1e300};
  run.schedule.min_lr = std::numeric_limits<double>::denorm_min();
  const RunConfig again = read(save_toml(run));
  EXPECT_EQ(save_toml(again), save_toml(run));
  EXPECT_EQ(again.model.activation, run.model.activation);
  EXPECT_EQ(again.data.data_path, run.data.data_path);
  EXPECT_EQ(again.schedule.rampup_batch_size, run.schedule.rampup_batch_size);
  EXPECT_EQ(again.train.seed, run.train.seed);
  EXPECT_FALSE(again.optimizer.overlap_grad_reduce);
  EXPECT_EQ(again.schedule.lr, run.schedule.lr);
  EXPECT_EQ(again.model.longrope_short_factor, run.model.longrope_short_factor);
  EXPECT_EQ(again.schedule.min_lr, run.schedule.min_lr);
}

TEST(Toml, KeepsEveryBitOfADouble) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bits = random();
    ScheduleConfig schedule, again;
    std::memcpy(&schedule.lr, &bits, sizeof(bits));
    if (!std::isfinite(schedule.lr)) continue;
    read_toml(fields_of(again), save_toml(schedule), "saved");
    EXPECT_EQ(again.lr, schedule.lr);
  }
}

TEST(Toml, RefusesToWriteTextThatIsNotUtf8) {
  for (const char* bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80"}) {
    RunConfig run;
    run.train.out = bad;
    EXPECT_THROW(save_toml(run), ConfigError) << bad;
  }
}

TEST(RecipeCommand, SetsTheRecipeFirstAndTheFlagsOverIt) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "recipe.toml";
  std::ofstream(path) << "[model]\nnum_layers = 9\nhidden_size = 64\n[data]\ndata_path = [\"old\"]\n";
  RunConfig run;
  EXPECT_EQ(parse_recipe_command(run, {"--hidden-size", "32", path.string(), "--data-path", "new"}, "usage").recipe,
            path.string());
  EXPECT_EQ(run.model.num_layers, 9);
  EXPECT_EQ(run.model.hidden_size, 32);
  EXPECT_THAT(run.data.data_path, ElementsAre("new"));
  std::filesystem::remove(path);
  EXPECT_THROW(parse_recipe_command(run, {path.string()}, "usage"), ConfigError);
  EXPECT_THROW(parse_recipe_command(run, {}, "usage"), ConfigError);
  EXPECT_THROW(parse_recipe_command(run, {"a", "b"}, "usage"), ConfigError);
  EXPECT_THROW(parse_recipe_command(run, {"/"}, "usage"), ConfigError);
}

}  // namespace
}  // namespace megatron::config
