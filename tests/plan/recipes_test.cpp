#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <map>
#include <string>

#include "megatron/base/error.h"
#include "megatron/config/finetune_recipe.h"
#include "megatron/config/options.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/rules.h"
#include "tests/testing/folders.h"

// configs/: every recipe is consistent and is the size that its name says.
namespace megatron::plan {
namespace {

std::map<std::string, ResolvedRun> recipes() {
  std::map<std::string, ResolvedRun> runs;
  for (const auto& entry : std::filesystem::directory_iterator(tests_folder() + "/../configs")) {
    if (!entry.is_regular_file()) continue;  // configs/hardware/
    config::RunConfig config;
    config::load_toml(config, entry.path().string());
    runs.emplace(entry.path().stem().string(), resolve(config));
  }
  return runs;
}

TEST(Recipes, AreOfTheSizesInTheirNames) {
  const std::map<std::string, std::pair<double, double>> millions = {{"gpt_tiny", {2, 3}},
                                                                     {"gpt2_124m", {124, 125}},
                                                                     {"megatron_355m", {354, 356}},
                                                                     {"megatron_1.2b", {1150, 1250}},
                                                                     {"gpt_1.3b", {1300, 1350}},
                                                                     {"megatron_2.5b", {2450, 2550}},
                                                                     {"megatron_8.3b", {8250, 8350}},
                                                                     {"gpt_tiny_pp", {2, 3}},
                                                                     {"gpt_18.4b", {18300, 18500}},
                                                                     {"gpt_39.1b", {39000, 39200}},
                                                                     {"gpt_145.6b", {145500, 145700}},
                                                                     {"gpt_529.6b", {529500, 529700}},
                                                                     {"llama_tiny", {2.3, 2.4}},
                                                                     {"moe_tiny", {4.7, 4.75}},
                                                                     {"mtp_tiny", {2.8, 2.9}},
                                                                     {"smollm2_135m", {134.5, 134.6}},
                                                                     {"smollm2_1.7b", {1711, 1712}},
                                                                     {"llama3.2_1b", {1235, 1237}},
                                                                     {"llama2_7b", {6738, 6739}},
                                                                     {"llama3_8b", {8030, 8031}},
                                                                     {"gemma2_2b", {2614, 2615}},
                                                                     {"gemma3_270m", {268, 268.2}},
                                                                     {"olmo2_1b", {1484, 1486}},
                                                                     {"smollm3_3b", {3075, 3076}},
                                                                     {"phi4_mini", {3835, 3837}},
                                                                     {"falcon_7b", {6921, 6923}},
                                                                     {"gpt_oss_20b", {20914.7, 20914.8}},
                                                                     {"deepseek_v2_lite", {15706.4, 15706.6}},
                                                                     {"qwen2.5_0.5b", {494, 495}},
                                                                     {"qwen3_0.6b", {596, 597}},
                                                                     {"mistral_7b", {7241, 7242}},
                                                                     {"mixtral_8x7b", {46702, 46703}},
                                                                     {"qwen3_30b_a3b", {30532, 30533}},
                                                                     {"starcoder2_3b", {3030, 3031}},
                                                                     {"olmo3_7b", {7298, 7299}},
                                                                     {"gemma_2b", {2506, 2507}},
                                                                     {"deepseek_v3", {682636, 682637}},
                                                                     {"pythia_160m", {162, 163}},
                                                                     {"bert_tiny", {2.6, 2.8}},
                                                                     {"bert_336m", {336, 338}},
                                                                     {"roberta_base", {124, 125.5}},
                                                                     {"modernbert_base", {149, 150}},
                                                                     {"bert_1.3b", {1270, 1290}},
                                                                     {"bert_3.9b", {3850, 3900}},
                                                                     {"t5_tiny", {3.8, 3.95}},
                                                                     {"t5_220m", {222, 224}},
                                                                     {"t5_3b", {2850, 2853}},
                                                                     {"t5_11b", {11300, 11310}}};
  const auto runs = recipes();
  for (const auto& [name, range] : millions) {
    ASSERT_TRUE(runs.contains(name)) << name;
    const double count = static_cast<double>(parameter_count(runs.at(name).shape)) / 1e6;
    EXPECT_GE(count, range.first) << name;
    EXPECT_LE(count, range.second) << name;
  }
  EXPECT_EQ(runs.size(), millions.size()) << "a recipe without a line in this test";
}

/// What each publisher's weights hold, without depths of prediction and rows that pad the vocabulary.
constexpr std::pair<const char*, std::int64_t> kPublished[] = {
    {"deepseek_v2_lite", 15706484224}, {"deepseek_v3", 671026419200}, {"falcon_7b", 6921720704},
    {"gemma_2b", 2506172416},          {"gemma2_2b", 2614341888},     {"gemma3_270m", 268098176},
    {"gpt_oss_20b", 20914757184},      {"llama2_7b", 6738415616},     {"llama3_8b", 8030261248},
    {"llama3.2_1b", 1235814400},       {"mistral_7b", 7241732096},    {"mixtral_8x7b", 46702792704},
    {"olmo2_1b", 1484916736},          {"olmo3_7b", 7298011136},      {"phi4_mini", 3836021760},
    {"qwen2.5_0.5b", 494032768},       {"qwen3_0.6b", 596049920},     {"qwen3_30b_a3b", 30532122624},
    {"smollm2_1.7b", 1711376384},      {"smollm2_135m", 134515008},   {"smollm3_3b", 3075098624},
    {"starcoder2_3b", 3030371328}};

TEST(Recipes, OfPublishedModelsHaveTheirParameters) {
  for (const auto& [name, parameters] : kPublished) {
    config::RunConfig config;
    config::load_toml(config, concat(tests_folder() + "/../configs/", name, ".toml"));
    config.parallel = {};
    config.model.make_vocab_size_divisible_by = 1;
    config.model.mtp_num_layers = 0;
    EXPECT_EQ(parameter_count(resolve(config).shape), parameters) << name;
  }
}

TEST(Recipes, OfThePaperTrainAsItDid) {
  for (const auto& [name, run] : recipes()) {
    if (!name.starts_with("megatron_")) continue;
    EXPECT_EQ(run.shape.padded_vocab, 51200) << name;
    EXPECT_EQ(run.train_samples, 300000LL * 512) << name;
    EXPECT_EQ(run.learning_rate.at(3000 * 512), 1.5e-4) << name;
    EXPECT_EQ(run.learning_rate.at(300000LL * 512), 1e-5) << name;
  }
}

TEST(Recipes, OfThePapersBertsTrainAsItDid) {
  for (const char* name : {"bert_336m", "bert_1.3b", "bert_3.9b"}) {
    const ResolvedRun run = recipes().at(name);
    EXPECT_EQ(run.shape.head(), 64) << name;
    EXPECT_EQ(run.config.train.global_batch_size, 1024) << name;
    EXPECT_DOUBLE_EQ(run.learning_rate.at(10000 * 1024), 1e-4) << name;
    EXPECT_DOUBLE_EQ(run.learning_rate.at(1005000LL * 1024), 0.5e-4) << name;
    EXPECT_TRUE(run.shape.sentence_head) << name;
  }
}

/// Table 6 of the 2019 paper: batch sizes and learning rates of 336M, 1.3B and 3.9B parameters.
struct TableSix {
  const char* task;
  double epochs;
  std::array<std::int64_t, 3> batch;
  std::array<double, 3> learning_rate;
  const char* head;
  std::int64_t classes = 0;
};
constexpr TableSix kTableSix[] = {{"mnli", 10, {128, 128, 128}, {1e-5, 1e-5, 1e-5}, "classes", 3},
                                  {"qqp", 12, {128, 128, 256}, {5e-5, 3e-5, 4e-5}, "classes", 2},
                                  {"squad1", 2, {64, 48, 48}, {3e-5, 3e-5, 1e-5}, "span"},
                                  {"squad2", 2, {48, 64, 48}, {3e-5, 3e-5, 1e-5}, "span"},
                                  {"race", 3, {32, 16, 32}, {2e-5, 1e-5, 2e-5}, "options"}};

TEST(Recipes, OfTuningFitAModelThatIsNamed) {
  const config::ModelConfig llama = recipes().at("llama3.2_1b").config.model;
  const auto tuned = [&](const char* name) {
    config::RunConfig config;
    config::load_toml(config, concat(tests_folder() + "/../configs/tuning/", name, ".toml"));
    config.model = llama;
    return config;
  };
  config::RunConfig adapters = tuned("lora_sft"), preferences = tuned("dpo");
  for (const char* name : {"lora_sft", "dpo"}) {  // a reference without dropout equals the policy at first
    config::RunConfig config;
    config::load_toml(config, concat(tests_folder() + "/../configs/tuning/", name, ".toml"));
    EXPECT_EQ(config.model.hidden_dropout, 0) << name;
    EXPECT_EQ(config.model.attention_dropout, 0) << name;
  }
  adapters.lora.base = preferences.checkpoint.load = "model";
  EXPECT_EQ(resolve(adapters).shape.lora->rank, 16);
  EXPECT_EQ(resolve(preferences).config.dpo.beta, 0.1);
}

TEST(Recipes, OfFineTuningAreThoseOfTableSixForEachOfThePapersBerts) {
  const auto berts = recipes();
  for (const TableSix& row : kTableSix) {
    config::FinetuneRecipe recipe;
    config::load_toml(recipe, concat(tests_folder() + "/../configs/finetune/", row.task, ".toml"));
    EXPECT_EQ(recipe.task.name, row.task);
    EXPECT_EQ(recipe.task.epochs, row.epochs) << row.task;
    EXPECT_EQ(recipe.task.seeds.size(), 5u) << row.task;
    EXPECT_TRUE(recipe.task.ensemble) << row.task;
    EXPECT_EQ(recipe.train.global_batch_size, row.batch[0]) << row.task;
    EXPECT_DOUBLE_EQ(recipe.schedule.lr, row.learning_rate[0]) << row.task;
    const std::array<const char*, 3> names = {"bert_336m", "bert_1.3b", "bert_3.9b"};
    for (std::size_t size = 0; size < names.size(); ++size) {
      config::FinetuneRecipe sized = recipe;
      sized.model = berts.at(names[size]).config.model;
      sized.model.head = row.head;
      sized.model.num_classes = row.classes;
      sized.train.global_batch_size = row.batch[size];
      sized.schedule.lr = row.learning_rate[size];
      sized.train.train_iters = 1000;
      const ResolvedRun run = resolve(sized);
      EXPECT_DOUBLE_EQ(run.learning_rate.peak, sized.schedule.lr) << row.task;
      EXPECT_FALSE(run.shape.predicts_tokens()) << row.task;
    }
  }
}

TEST(Recipes, ReadBackExactlyAfterBeingSaved) {
  for (const auto& [name, run] : recipes()) {
    const std::string saved = config::save_toml(run.config);
    config::RunConfig config;
    config::read_toml(config::fields_of(config), saved, name);
    EXPECT_EQ(config::save_toml(config), saved) << name;
    EXPECT_EQ(config::save_toml(resolve(config).config), saved) << name;
  }
}

}  // namespace
}  // namespace megatron::plan
