#include "megatron/config/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <set>

#include "megatron/base/error.h"
#include "megatron/config/megatron_flags.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

struct Inner {
  int count = 3;
  bool fast = true;
  void visit(auto& v) {
    v("count", count, "How many.", "num-things", "n");
    v("fast", fast, "Whether to hurry.", "go-fast");
  }
};

/// One option of every type.
struct Everything {
  bool flag = false;
  std::int64_t large = -7;
  std::uint64_t natural = 7;
  double real = 0.5;
  std::string text = "a";
  std::vector<std::string> texts = {"x"};
  std::vector<std::int64_t> numbers;
  Inner inner;
  void visit(auto& v) {
    v("flag", flag, "A flag.");
    v("large", large, "An integer.");
    v("natural", natural, "A natural number.");
    v("real_number", real, "A real number.");
    v("text", text, "A text.");
    v("texts", texts, "Texts.");
    v("numbers", numbers, "Numbers.");
    v("inner", inner, "A section.");
  }
};

std::string error_of(const Words& words) {
  Everything options;
  try {
    parse_command_line(options, words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CommandLine, SetsEveryTypeOfOption) {
  Everything options;
  const Words rest = parse_command_line(
      options, {"--flag", "--large", "-9000000000", "--natural=18446744073709551615", "--real-number", "-1.5e-3",
                "--text", "", "--texts", "a b", "c,d", "--numbers", "1,2", "-3", "--inner.count=5", "--no-inner.fast"});
  EXPECT_TRUE(rest.empty());
  EXPECT_TRUE(options.flag);
  EXPECT_EQ(options.large, -9'000'000'000);
  EXPECT_EQ(options.natural, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(options.real, -1.5e-3);
  EXPECT_EQ(options.text, "");
  EXPECT_THAT(options.texts, ElementsAre("a b", "c,d"));
  EXPECT_THAT(options.numbers, ElementsAre(1, 2, -3));
  EXPECT_EQ(options.inner.count, 5);
  EXPECT_FALSE(options.inner.fast);
}

TEST(CommandLine, TakesUnderscoresAndDashesAndAliasesAlike) {
  for (const char* name : {"--inner.count", "--num-things", "--num_things", "--n"}) {
    Everything options;
    parse_command_line(options, {name, "8"});
    EXPECT_EQ(options.inner.count, 8) << name;
  }
  for (const char* name : {"--real_number", "--real-number"}) {
    Everything options;
    parse_command_line(options, {name, "8"});
    EXPECT_EQ(options.real, 8) << name;
  }
}

TEST(CommandLine, ReadsBooleansInEveryForm) {
  const auto fast_after = [](const Words& words) {
    Everything options;
    parse_command_line(options, words);
    return options.inner.fast;
  };
  EXPECT_TRUE(fast_after({"--go-fast"}));
  EXPECT_TRUE(fast_after({"--go-fast", "true"}));
  EXPECT_FALSE(fast_after({"--go-fast", "false"}));
  EXPECT_FALSE(fast_after({"--go-fast=false"}));
  EXPECT_FALSE(fast_after({"--no-go-fast"}));
  EXPECT_TRUE(fast_after({"--no-go-fast", "--go-fast"}));
}

TEST(CommandLine, ReturnsPositionalWordsAndLeavesAWordAfterAFlagAlone) {
  Everything options;
  EXPECT_THAT(parse_command_line(options, {"a.toml", "--flag", "b", "--large", "1", "-", "-2", "--", "--flag", "-x"}),
              ElementsAre("a.toml", "b", "-", "-2", "--flag", "-x"));
}

TEST(CommandLine, ReplacesAListAndAppendsWhenItsOptionIsRepeated) {
  Everything options;
  parse_command_line(options, {"--texts", "a", "--flag", "--texts", "b", "--numbers=", "--numbers", "4"});
  EXPECT_THAT(options.texts, ElementsAre("a", "b"));
  EXPECT_THAT(options.numbers, ElementsAre(4));
}

TEST(CommandLine, NamesTheNearestOptionForEachUnknownOne) {
  const std::string error = error_of({"--tezt", "v", "--inner.cuont", "4", "--cout=4", "--zzzzzzzz", "-q"});
  EXPECT_THAT(error, HasSubstr("got:  --tezt\n  fix:  --text"));
  EXPECT_THAT(error, HasSubstr("got:  --inner.cuont\n  fix:  --inner.count"));
  EXPECT_THAT(error, HasSubstr("got:  --cout\n  fix:  --inner.count"));
  EXPECT_THAT(error, HasSubstr("got:  --zzzzzzzz\n  fix:  leave --zzzzzzzz out; --help"));
  EXPECT_THAT(error, HasSubstr("got:  -q"));
}

TEST(CommandLine, RefusesValuesOfTheWrongType) {
  EXPECT_EQ(error_of({"--inner.count", "many"}),
            "--inner.count takes an integer.\n  got:  'many'\n  fix:  --inner.count 3 (the default)");
  const std::vector<Words> wrong = {{"--inner.count", "3000000000"},
                                    {"--inner.count", "1.5"},
                                    {"--inner.count", "1 "},
                                    {"--inner.count="},
                                    {"--inner.count"},
                                    {"--large", "1e3"},
                                    {"--natural", "-1"},
                                    {"--real-number", "nan"},
                                    {"--real-number", "inf"},
                                    {"--real-number", "1e999"},
                                    {"--flag=maybe"},
                                    {"--no-flag=true"},
                                    {"--numbers", "1,,2"},
                                    {"--numbers", "1,"},
                                    {"--numbers", "x"},
                                    {"--numbers"},
                                    {"--texts"},
                                    {"--text", "--flag"},
                                    {"--natural", "18446744073709551616"}};
  for (const Words& words : wrong) EXPECT_THAT(error_of(words), HasSubstr("takes")) << testing::PrintToString(words);
}

TEST(CommandLine, ReportsAllErrorsTogetherAndAssignsNothing) {
  Everything options;
  try {
    parse_command_line(options, {"--large", "1", "--natural", "x", "--bogus", "--flag=7"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--natural takes"));
    EXPECT_THAT(error.what(), HasSubstr("--bogus"));
    EXPECT_THAT(error.what(), HasSubstr("--flag takes"));
  }
  EXPECT_EQ(options.large, -7);
}

TEST(CommandLine, AnswersHelpWithEveryOptionAndItsDefault) {
  Everything options;
  for (const char* word : {"--help", "-h"}) try {
      parse_command_line(options, {"--bogus", word}, "megatron example");
      FAIL();
    } catch (const HelpRequested& help) {
      const std::string text = help.what();
      EXPECT_THAT(text, testing::StartsWith("megatron example\n"));
      EXPECT_THAT(text, HasSubstr("[inner] A section."));
      EXPECT_THAT(text, HasSubstr("--inner.count, --num-things, --n INT"));
      EXPECT_THAT(text, HasSubstr("How many. (default 3)"));
      EXPECT_THAT(text, HasSubstr("--real-number"));
      for (const Field& field : fields_of(options).fields)
        EXPECT_TRUE(field.path == "real_number" || text.find("--" + field.path) != std::string::npos) << field.path;
    }
}

struct Titled {
  std::int64_t first_one = 1, second = 2, third = 3;
  void visit(auto& v) {
    v("first_one", first_one, "A.");
    v.title("what is written");
    v("second", second, "B.");
    v("third", third, "C.");
  }
};

TEST(CommandLine, AnswersHelpUnderTheTitlesThatAJobGives) {
  Titled options;
  const std::string text = help_text(fields_of(options), "megatron example");
  EXPECT_THAT(text, testing::MatchesRegex("megatron example\n\noptions\n  --first-one .*A.*\n\nwhat is written\n"
                                          "  --second .*B.*\n  --third .*C.*\n"));
}

struct Marked {
  std::string name = "adam", input, plain;
  std::vector<std::string> modules = {"mlp"};
  double lr = 0.5;
  bool sp = false, async_save = true;
  Inner inner;
  void visit(auto& v) {
    v("input", input, "File.", Required());
    v("name", name, "Rule.", "optimizer", Choices({"adam", "sgd"}), Common());
    v("modules", modules, "What.", Choices({"attn", "mlp"}));
    v("learning_rate", lr, "Peak.", "lr", Common());
    v("sp", sp, "Split.");
    v("async_save", async_save, "Write.", Common());
    v("plain", plain, "Rest.");
    v("inner", inner, "A section.");
  }
};

std::string help_of(const std::vector<std::string>& words) {
  Marked options;
  try {
    parse_command_line(options, words, "megatron example --input F");
  } catch (const HelpRequested& help) {
    return help.what();
  }
  return "";
}

TEST(CommandLine, ShowsTheCommonOptionsFirstAndTheRestWhenAsked) {
  EXPECT_EQ(help_of({"--help"}),
            "megatron example --input F\n\ncommon options\n"
            "  --input STRING                  File. (required)\n"
            "  --name {adam,sgd}               Rule. (default adam)\n"
            "  --lr FLOAT                      Peak. (default 0.5)\n"
            "  --async-save, --no-async-save   Write. (default true)\n"
            "\n--help all lists every option, --help SECTION those of a section:\n  inner\n");
  const std::string all = help_of({"--help", "all"});
  EXPECT_THAT(all, HasSubstr("  --name, --optimizer {adam,sgd}  Rule. (default adam)\n"));
  EXPECT_THAT(all, HasSubstr("  --modules {attn,mlp}...         What. (default mlp)\n"));
  EXPECT_THAT(all, HasSubstr("  --learning-rate, --lr FLOAT     Peak. (default 0.5)\n"));
  EXPECT_THAT(all, HasSubstr("  --sp                            Split.\n"));
  EXPECT_THAT(all, HasSubstr("  --plain STRING                  Rest.\n"));
  EXPECT_THAT(all, HasSubstr("[inner] A section."));
  EXPECT_THAT(help_of({"--help", "inner"}), Not(HasSubstr("--plain")));
  EXPECT_THAT(help_of({"--help", "inner"}), HasSubstr("--inner.count"));
  EXPECT_THAT([] { help_of({"--help", "iner"}); }, ThrowsMessage<ConfigError>(HasSubstr("one of all, inner.")));
}

TEST(CommandLine, RefusesWhatIsNoneOfTheChoices) {
  Marked options;
  EXPECT_THAT(
      [&] {
        parse_command_line(options, {"--name", "sgdd", "--modules", "mlp", "norm"}, "megatron example");
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("--name must be one of adam, sgd.\n  got:  'sgdd'\n  fix:  --name sgd"),
                HasSubstr("--modules must be one of attn, mlp.\n  got:  'norm'\n  fix:  --modules attn"))));
  parse_command_line(options, {"--name", "sgd", "--modules", "attn", "mlp"}, "megatron example");
  EXPECT_EQ(options.name, "sgd");
  EXPECT_EQ(options.modules, (std::vector<std::string>{"attn", "mlp"}));
  RunConfig run;  // an option without a value, whose default is none
  EXPECT_THAT([&] { parse_command_line(run, {"--log.fields"}, "megatron example"); },
              ThrowsMessage<ConfigError>(HasSubstr("fix:  --log.fields tokens_per_s")));
}

TEST(RunOptions, HaveDefaultsThatAreAmongTheirChoices) {
  RunConfig run;
  for (const Field& field : fields_of(run).fields) {
    if (field.meaning.choices.empty()) continue;
    const std::string value = plain_value(field.value);
    if (is_list(field.value) && value.empty()) continue;
    EXPECT_THAT(field.meaning.choices, testing::Contains(value)) << field.path;
  }
}

TEST(RunOptions, AnswerToDistinctNamesAndAllHaveHelp) {
  RunConfig run;
  std::set<std::string> names;
  for (const Field& field : fields_of(run).fields) {
    EXPECT_FALSE(field.help.empty()) << field.path;
    EXPECT_TRUE(names.insert(field.path).second) << field.path;
    for (const std::string& alias : field.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
  EXPECT_GT(names.size(), 60u);
}

TEST(RunOptions, AnswerToMegatronsFlags) {
  RunConfig run;
  parse_command_line(run, {"--tensor-model-parallel-size",
                           "2",
                           "--num-layers=12",
                           "--micro-batch-size",
                           "4",
                           "--untie-embeddings-and-output-weights",
                           "--lr",
                           "1e-4",
                           "--model.longrope_long_factor",
                           "1,2.5",
                           "3",
                           "--rampup-batch-size",
                           "16",
                           "8",
                           "1000",
                           "--pipeline-model-parallel-size",
                           "4",
                           "--num-virtual-stages-per-pipeline-rank",
                           "2",
                           "--sequence-parallel",
                           "--recompute-granularity",
                           "full",
                           "--no-scatter-gather-tensors-in-pipeline"});
  EXPECT_EQ(run.parallel.tp, 2);
  EXPECT_EQ(run.parallel.pp, 4);
  EXPECT_EQ(run.parallel.vpp, 2);
  EXPECT_TRUE(run.parallel.sp);
  EXPECT_FALSE(run.parallel.scatter_gather);
  EXPECT_EQ(run.train.recompute, "full");
  EXPECT_EQ(run.model.num_layers, 12);
  EXPECT_EQ(run.train.micro_batch_size, 4);
  EXPECT_TRUE(run.model.untie_embeddings_and_output_weights);
  EXPECT_EQ(run.schedule.lr, 1e-4);
  EXPECT_THAT(run.schedule.rampup_batch_size, ElementsAre(16, 8, 1000));
  EXPECT_THAT(run.model.longrope_long_factor, ElementsAre(1, 2.5, 3));
}

/// What a job that takes a recipe says to these words; the recipe holds `toml`.
std::string recipe_error(const std::string& toml, Words words) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "recipe.toml";
  std::ofstream(path) << toml;
  words.insert(words.begin(), path);
  RunConfig run;
  std::string message = "no error";
  try {
    parse_recipe_command(run, words, "megatron train RECIPE.toml");
  } catch (const ConfigError& error) {
    message = error.what();
  }
  return message;
}

TEST(Recipe, ReportsWrongWordsAndWrongKeysTogether) {
  const std::string error = recipe_error("[model]\nnum_layrs = 2\n", {"--train.train_iters", "many"});
  EXPECT_THAT(error, HasSubstr("--train.train_iters takes an integer."));
  EXPECT_THAT(error, HasSubstr("num_layrs"));
  EXPECT_EQ(recipe_error("[model]\nnum_layers = 2\n", {"--train.train_iters", "7"}), "no error");
}

TEST(Recipe, ChecksTheValuesThatAreRightAlsoWhenWordsAndKeysAreWrong) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "values.toml";
  RunConfig run;
  const auto error_of = [&](const std::string& toml, Words words) -> std::string {
    std::ofstream(path) << toml;
    words.insert(words.begin(), path);
    try {
      parse_recipe_command(run, words, "usage", [&] {
        throw ConfigError(concat("checked with ", run.model.num_layers, " layers, ", run.train.train_iters, " steps"));
      });
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of("[model]\nnum_layers = 7\nhiden = 2\n", {"--train-iters", "9", "--tpp", "2"}),
              AllOf(HasSubstr("--tpp"), HasSubstr("hiden"), HasSubstr("checked with 7 layers, 9 steps")));
  EXPECT_THAT(error_of("[model", {"--tpp", "2"}),
              AllOf(HasSubstr("--tpp"), HasSubstr("must be TOML"), Not(HasSubstr("checked"))))
      << "values of a recipe that cannot be read are not judged";
}

TEST(Recipe, TakesMegatronsNameOfATokenizersKind) {
  EXPECT_EQ(recipe_error("", {"--tokenizer-type", "NullTokenizer", "--tokenizer-model", "5000"}), "no error");
}

TEST(Recipe, AnswersMegatronsFlagsThatAreNoOptionHere) {
  EXPECT_EQ(recipe_error("", {"--lr-warmup-iters", "20"}),
            "this flag of Megatron-LM is not supported.\n  got:  --lr-warmup-iters\n"
            "  fix:  leave --lr-warmup-iters out; instead: --lr-warmup-samples, iterations x global batch");
  for (const char* flag : {"--exp-avg-dtype", "--exp-avg-sq-dtype"})
    EXPECT_THAT(recipe_error("", {flag, "bf16"}), HasSubstr("instead: --optimizer.state_dtype, of both moments"));
  EXPECT_THAT(recipe_error("", {"--use-precision-aware-optimizer"}), HasSubstr("--optimizer.state_dtype"));
  EXPECT_THAT(recipe_error("", {"--hybrid_context_parallel"}),
              HasSubstr("fix:  leave --hybrid_context_parallel out; not here: context"));
  EXPECT_THAT(recipe_error("", {"--no-overlap-p2p-communication"}), HasSubstr("--pp-communication batched"));
  EXPECT_THAT(recipe_error("", {"--distributed-timeout-minutes", "5"}), HasSubstr("--parallel.timeout_s"));
  EXPECT_THAT(recipe_error("", {"--distributed-timeout-seconds", "5"}), HasSubstr("an option must be one"));
}

// A flag without a value must not take the recipe for its value.
TEST(Recipe, StaysTheRecipeAfterAFlagOfMegatrons) {
  RunConfig run;
  try {
    parse_recipe_command(run, {"--use-flash-attn", "absent.toml"}, "megatron train RECIPE.toml");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--use-flash-attn"));
    EXPECT_THAT(error.what(), Not(HasSubstr("takes one recipe")));
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("absent.toml"));
  }
}

TEST(Recipe, TakesMegatronsSwitchesForTheValuesThatTheyStandFor) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "switches.toml";
  std::ofstream(path) << "[train]\ndtype = 'fp64'\n[optimizer]\ngrad_dtype = 'bf16'\n";
  const auto given = [&](Words words) {
    words.insert(words.begin(), path);
    RunConfig run;
    parse_recipe_command(run, words, "megatron train RECIPE.toml");
    return run;
  };
  EXPECT_EQ(given({}).train.dtype, "fp64");
  EXPECT_EQ(given({"--bf16"}).train.dtype, "bf16");
  EXPECT_EQ(given({"--fp16"}).train.dtype, "fp16");
  EXPECT_EQ(given({"--bf16"}).optimizer.grad_dtype, "bf16");
  EXPECT_THAT(recipe_error("", {"--bf16", "--fp16"}), HasSubstr("--bf16 and --fp16"));
  EXPECT_EQ(given({"--bf16", "--accumulate-allreduce-grads-in-fp32"}).optimizer.grad_dtype, "fp32");
  EXPECT_EQ(given({"--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"}).optimizer.grad_dtype, "bf16");
  EXPECT_TRUE(given({"--use-distributed-optimizer"}).optimizer.use_distributed_optimizer);
  EXPECT_EQ(given({"--swiglu", "--model.activation", "silu"}).model.activation, "silu");
  EXPECT_EQ(given({"--lr", "1", "--lr", "2"}).schedule.lr, 2) << "the last, as scripts add to their words";
}

TEST(Recipe, RefusesASwitchOfMegatronsBesideAnOptionThatSaysOtherwise) {
  EXPECT_EQ(recipe_error("", {"--swiglu", "--model.activation", "relu"}),
            "one of two options excludes the other: both say model.activation.\n"
            "  got:  --swiglu and --model.activation\n  fix:  leave --swiglu out");
  for (const Words& words : {Words{"--model.activation", "gelu", "--swiglu"}, Words{"--swiglu", "--squared-relu"},
                             Words{"--squared-relu", "--swiglu"}, Words{"--swiglu", "--no-model.gated_linear_unit"},
                             Words{"--bf16", "--train.dtype", "fp32"}})
    EXPECT_THAT(recipe_error("", words), AllOf(HasSubstr(words.front()), HasSubstr("fix:  leave --")));
}

TEST(Recipe, HasNoFlagOfMegatronsThatIsAnOption) {
  RunConfig run;
  for (const Field& field : fields_of(run).fields) {
    EXPECT_FALSE(megatron_answer(normalized(field.path))) << field.path;
    for (const std::string& alias : field.aliases) {
      EXPECT_FALSE(megatron_answer(normalized(alias))) << alias;
      EXPECT_EQ(megatron_switch(normalized(alias)), nullptr) << alias;
    }
  }
}

TEST(Recipe, AnswersEveryFlagOfMegatrons) {
  RunConfig run;
  std::set<std::string> names;
  for (const Field& field : fields_of(run).fields)
    for (const std::string& alias : field.aliases) names.insert(normalized(alias));
  for (const MegatronFlag& flag : megatron_flags()) {
    const std::string name = normalized(flag.names.front());
    const bool negated = name.starts_with("no-") && names.contains(name.substr(3));
    EXPECT_TRUE(names.contains(name) || negated || megatron_switch(name) != nullptr || megatron_answer(name)) << name;
  }
  EXPECT_FALSE(megatron_answer("no-such-flag"));
}

TEST(Markdown, HasARowForEveryOption) {
  Everything options;
  const std::string text = to_markdown(fields_of(options));
  EXPECT_THAT(text, HasSubstr("## [inner]\n\nA section.\n"));
  EXPECT_THAT(text, HasSubstr("| `--inner.count` | `3` | `--num-things`, `--n` | step |  | How many. |"));
  for (const Field& field : fields_of(options).fields) EXPECT_THAT(text, HasSubstr("| `--" + field.path + "` |"));
}

TEST(ModelKinds, AreNamedByWhatTheyAre) {
  EXPECT_EQ(ModelConfig().architecture, model_kinds().front());
  EXPECT_EQ(names_with(&ModelTraits::causal), "gpt");
  EXPECT_EQ(names_with(&ModelTraits::reads_sentences, " or "), "bert or t5");
  EXPECT_TRUE(model_traits("t5").encoder_decoder && model_traits("bert").two_segments);
  EXPECT_FALSE(model_traits("gpt").two_segments);
  for (const std::string& name : model_kinds())
    EXPECT_FALSE(model_traits(name).causal && model_traits(name).encoder_decoder) << name;
}

}  // namespace
}  // namespace megatron::config
