#include "megatron/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/schedule/text.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/chosen_iteration.h"
#include "megatron/train/resume/resumed_batch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"
#include "tests/train/tiny_text.h"
#include "tests/train/trainer_fixture.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_F(TrainerTest, WritesTheFilesOfARun) {
  auto options = config("run", 2, 2);
  options.train.eval_interval = 3;
  options.train.eval_iters = 2;
  options.checkpoint.save_interval = 2;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 6u + 2u);
  EXPECT_EQ(lines[0]["iteration"], 1);
  EXPECT_EQ(lines[0]["consumed_samples"], 4);
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(61), 0.2);
  const auto rate = plan::resolve(options).learning_rate;
  EXPECT_EQ(lines[0]["learning_rate"].get<double>(), rate.at(0));
  EXPECT_EQ(lines[2]["learning_rate"].get<double>(), rate.at(8)) << "what the third iteration used";
  EXPECT_EQ(lines[3]["iteration"], 3);
  EXPECT_NEAR(lines[3]["valid_ppl"].get<double>(), std::exp(lines[3]["valid_loss"].get<double>()), 1e-9);
  EXPECT_EQ(lines[7]["iteration"], 6);
  EXPECT_TRUE(lines[7].contains("valid_loss"));
  EXPECT_TRUE(checkpoint::has_checkpoint(folder_ / "run" / "checkpoints"));
  config::RunConfig saved;
  config::load_toml(saved, (folder_ / "run" / "recipe.toml").string());
  EXPECT_EQ(saved.model.ffn_hidden_size, 96) << "the recipe is saved as it was resolved";
  EXPECT_EQ(config::save_toml(plan::resolve(saved).config), config::save_toml(saved)) << "and runs again as it is";
}

TEST_F(TrainerTest, WithoutStepsTheWeightsOfARunAreEvaluatedAlone) {
  auto options = config("trained");
  options.train.eval_interval = 3;
  options.train.eval_iters = 2;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto trained = metrics("trained");
  ASSERT_EQ(trained.size(), 6u + 2u);
  options.train.out = (folder_ / "evaluated").string();
  options.checkpoint.load = (folder_ / "trained").string();
  options.train.skip_train = true;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto evaluated = metrics("evaluated");
  ASSERT_EQ(evaluated.size(), 1u);
  EXPECT_EQ(evaluated[0], trained[7]);
  EXPECT_FALSE(checkpoint::has_checkpoint(folder_ / "evaluated" / "checkpoints"));
  options.checkpoint.load.clear();  // new weights
  options.train.out = (folder_ / "new").string();
  ASSERT_EQ(run(options), Outcome::Done);
  EXPECT_NE(metrics("new").at(0)["valid_loss"], evaluated[0]["valid_loss"]);
}

TEST_F(TrainerTest, EvaluatingAnIterationLeavesWhatTheRunHasWritten) {
  auto options = config("whole");
  options.train.eval_interval = 3;
  options.train.eval_iters = 2;
  options.checkpoint.save_interval = 3;
  options.log.tensorboard = true;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto before = metrics("whole");
  ASSERT_EQ(before.size(), 6u + 2u);
  std::map<fs::path, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder_ / "whole"))
    if (const std::string name = entry.path().filename(); name == "recipe.toml" || name.starts_with("events.out"))
      files[entry.path()] = read_file(entry.path());
  ASSERT_EQ(files.size(), 2u);
  options.train.skip_train = true;
  options.checkpoint.load = options.train.out;
  options.checkpoint.ckpt_step = 3;
  name_chosen_iteration(options);
  ASSERT_EQ(run(options), Outcome::Done);
  auto after = metrics("whole");
  ASSERT_EQ(after.size(), before.size() + 1);
  EXPECT_EQ(after.back(), before[3]) << "the validation of iteration 3";
  after.pop_back();
  EXPECT_EQ(after, before);
  for (const auto& [path, text] : files) EXPECT_EQ(read_file(path), text) << path;
}

TEST_F(TrainerTest, AnInterruptedRunGoesOnAsIfItHadNotStopped) {
  auto options = config("straight", 2, 1);
  options.schedule.rampup_batch_size = {2, 1, 9};
  options.schedule.lr_warmup_samples = 5;
  options.train.eval_interval = 2;
  options.train.eval_iters = 1;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto timeless = [](const std::vector<json>& lines) {
    std::vector<json> kept;
    for (json line : lines) {
      for (const char* field :
           {"tokens_per_s", "tflops_per_rank", "step_ms", "data_wait_ms", "memory_bytes", "peak_memory_bytes"})
        line.erase(field);
      kept.push_back(line);
    }
    return kept;
  };
  const auto straight = timeless(metrics("straight"));
  for (int stop = 1; stop <= 9; ++stop) {  // in each of the 6 steps and 3 validations
    options.train.out = (folder_ / ("stopped" + std::to_string(stop))).string();
    const Outcome outcome = run(options, stop);
    EXPECT_EQ(outcome, stop == 9 ? Outcome::Done : Outcome::Interrupted) << stop;
    ASSERT_EQ(run(options), Outcome::Done);
    EXPECT_EQ(timeless(metrics("stopped" + std::to_string(stop))), straight) << "not bit for bit; stopped at " << stop;
  }
}

TEST_F(TrainerTest, ARunThatLeavesEarlyGoesOnAsIfItHadNot) {
  auto options = config("straight", 2, 1);
  options.train.eval_interval = 4;
  options.train.eval_iters = 1;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto losses = [&](const std::string& name) {
    std::vector<json> kept;
    for (const json& line : metrics(name))
      kept.emplace_back(line.value(line.contains("loss") ? "loss" : "valid_loss", 0.0));
    return kept;
  };
  options.train.out = (folder_ / "parts").string();
  options.train.exit_interval = 4;
  ASSERT_EQ(run(options), Outcome::Left);
  EXPECT_EQ(losses("parts").size(), 4u + 1u) << "four iterations and the validation after them";
  EXPECT_EQ(checkpoint::find_checkpoint(folder_ / "parts" / "checkpoints").filename(), "iter_0000004");
  ASSERT_EQ(run(options), Outcome::Done) << "the end of the run is no early one";
  EXPECT_EQ(losses("parts"), losses("straight"));

  options.train.out = (folder_ / "timed").string();
  options.train.exit_interval = 0;
  options.train.exit_duration_mins = 1e-12;  // over before the first step is
  for (int part = 1; part < 6; ++part) {
    ASSERT_EQ(run(options), Outcome::Left);
    EXPECT_EQ(metrics("timed").back()["iteration"], part);
  }
  options.train.exit_duration_mins = 1e9;
  ASSERT_EQ(run(options), Outcome::Done);
  EXPECT_EQ(losses("timed"), losses("straight"));
}

TEST_F(TrainerTest, AValidationMayHaveABatchOfItsOwn) {
  const auto losses = [&](const char* name, std::int64_t batch, std::int64_t iters, int dp) {
    auto options = config(name, 1, dp);
    options.train.eval_interval = 3;
    options.train.eval_global_batch_size = batch;
    options.train.eval_iters = iters;
    EXPECT_EQ(run(options), Outcome::Done);
    std::vector<double> valid;
    for (const json& line : metrics(name))
      if (line.contains("valid_loss")) valid.push_back(line["valid_loss"]);
    return valid;
  };
  const auto six = losses("six", 6, 2, 1), four = losses("four", 0, 3, 1), both = losses("both", 6, 2, 2);
  ASSERT_EQ(six.size(), 2u);
  EXPECT_EQ(six, four) << "two batches of six samples are three of four";
  for (std::size_t i = 0; i < six.size(); ++i) EXPECT_NEAR(both[i], six[i], 1e-10);
  EXPECT_NE(losses("more", 12, 2, 1), six) << "the batch must count";
}

TEST_F(TrainerTest, TheBatchTakesItsSteps) {
  auto options = config("straight");
  options.train.global_batch_size = 0;
  options.schedule.step_batch_size = "0:2 40:4 120:8";  // of 10 tokens a sample: after 4 and 12 samples
  ASSERT_EQ(run(options), Outcome::Done);
  std::vector<std::int64_t> consumed;
  const auto straight = metrics("straight");
  for (const json& line : straight) consumed.push_back(line["consumed_samples"]);
  EXPECT_EQ(consumed, (std::vector<std::int64_t>{2, 4, 8, 12, 20, 28}));
  const auto rate = plan::resolve(options).learning_rate;
  EXPECT_EQ(rate.decay_samples, 28);
  EXPECT_EQ(straight[4]["learning_rate"].get<double>(), rate.at(12));
  options.train.out = (folder_ / "spread").string();
  options.parallel.dp = options.parallel.world_size = 2;
  ASSERT_EQ(run(options, 3), Outcome::Interrupted);
  // From here on the smallest size is over: as many ranks as the next one has samples.
  options.parallel.dp = options.parallel.world_size = 4;
  const ResumedBatch resumed = resumed_batch(options);
  EXPECT_EQ(resumed.size, 8);
  EXPECT_EQ(resumed.samples, 8);
  EXPECT_THROW(plan::resolve(options), ConfigError) << "a new run has the smallest size too";
  ASSERT_EQ(run(options, 1 << 30, resumed), Outcome::Done);
  const auto spread = metrics("spread");
  ASSERT_EQ(spread.size(), straight.size());
  for (std::size_t i = 0; i < spread.size(); ++i)
    EXPECT_NEAR(spread[i]["loss"].get<double>(), straight[i]["loss"].get<double>(), 1e-10) << i;
}

TEST_F(TrainerTest, SkippedIterationsConsumeSamplesButDoNotAdvanceTheSchedule) {
  auto options = config("run");
  options.optimizer.weight_decay = 1e300;  // the first update throws the weights out of every range
  EXPECT_THROW(run(options), std::runtime_error) << "nothing was learned in its last steps";
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_FALSE(lines[0].contains("skipped"));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["skipped"], true);
    EXPECT_TRUE(lines[i]["loss"].is_null() || lines[i]["grad_norm"].is_null()) << lines[i];
    EXPECT_EQ(lines[i]["consumed_samples"], 4 * (i + 1));
    EXPECT_EQ(lines[i]["learning_rate"], lines[1]["learning_rate"]);
  }
  options.train.out = (folder_ / "strict").string();
  options.train.exit_on_nan = true;
  // On every rank, not through the failure of another.
  std::atomic<int> refused = 0;
  options.parallel.tp = options.parallel.world_size = 2;
  const plan::ResolvedRun split = plan::resolve(options);
  try {
    comm::run_ranks(2, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      try {
        train(split, /*eod=*/0, world, at::kCPU, [] { return false; });
      } catch (const comm::PeerError&) {
        throw;
      } catch (const std::runtime_error& e) {
        EXPECT_NE(std::string(e.what()).find("iteration 2: the loss must be finite and no spike (train.exit_on_nan)"),
                  std::string::npos)
            << e.what();
        ++refused;
        throw;
      }
    });
    FAIL() << "trained";
  } catch (const std::runtime_error&) {
    EXPECT_EQ(refused, 2);
  }
  EXPECT_EQ(events("strict"), (std::vector<std::string>{"nan", "stopped"})) << "a supervisor must know";
  options.train.out = (folder_ / "explicit").string();
  options.parallel.tp = options.parallel.world_size = 1;
  options.guard.on_nan = "skip";
  EXPECT_THROW(run(options), std::runtime_error);
  EXPECT_EQ(metrics("explicit").size(), 6u) << "what was said of guard.on_nan holds";
}

// On a GPU the passes of a step begin before the host knows what has become of the step before.
TEST_F(TrainerTest, IterationsThatBeginBeforeTheOneBeforeHasEndedAreTheSame) {
  struct Emulated {
    Emulated() { kernels::force_instruction_set(kernels::kCudaEmulated); }
    ~Emulated() { kernels::force_instruction_set("auto"); }
  } const emulated;
  const auto options = [&](const std::string& name, bool ahead, double decay) {
    auto options = config(name, 1, 2);
    options.train.train_iters = 7;
    options.train.eval_interval = 3;
    options.train.eval_iters = 1;
    options.checkpoint.save_interval = 4;
    options.checkpoint.keep_last = 100;
    options.optimizer.weight_decay = decay;  // the second throws the weights out of every range: steps are skipped
    if (!ahead) options.train.exit_duration_mins = 1e6;  // the ranks look at a clock after each step
    return options;
  };
  for (const bool skips : {false, true}) {
    const std::string after = skips ? "skips_after" : "after", ahead = skips ? "skips_ahead" : "ahead";
    for (const bool runs_ahead : {false, true}) {
      const auto one = options(runs_ahead ? ahead : after, runs_ahead, skips ? 1e300 : 0.01);
      if (skips) {
        EXPECT_THROW(run(one), std::runtime_error);
      } else {
        EXPECT_EQ(run(one), Outcome::Done);
      }
    }
    const auto want = metrics(after), got = metrics(ahead);
    ASSERT_EQ(got.size(), 7u + 3u);
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      for (const char* field :
           {"iteration", "loss", "grad_norm", "learning_rate", "consumed_samples", "skipped", "valid_loss"}) {
        EXPECT_EQ(got[i].contains(field), want[i].contains(field)) << field << " of line " << i;
        if (got[i].contains(field)) {
          EXPECT_EQ(got[i][field], want[i][field]) << field << " of line " << i;
        }
      }
    for (const char* saved : {"iter_0000004", "iter_0000007"})
      EXPECT_TRUE(fs::exists(folder_ / ahead / "checkpoints" / saved)) << saved;
  }

  // Whoever asks for an end gets it behind the step that has begun meanwhile; the run resumes from there.
  ASSERT_EQ(run(options("stopped", true, 1e-2), 1), Outcome::Interrupted);
  EXPECT_EQ(metrics("stopped").size(), 2u);
  ASSERT_EQ(run(options("stopped", true, 1e-2)), Outcome::Done);
  const auto whole = metrics("ahead"), resumed = metrics("stopped");
  ASSERT_EQ(resumed.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(resumed[i].value("loss", 0.0), whole[i].value("loss", 0.0)) << "line " << i;
}

TEST_F(TrainerTest, ASaveThatWasAskedForIsNotLostWithTheStep) {
  const auto saved_at = [&](config::RunConfig options, int asks_at) {
    options.checkpoint.keep_last = 100;
    const plan::ResolvedRun resolved = plan::resolve(options);
    int steps = 0;
    RunWatch watch{.saves_requested = [&] { return ++steps >= asks_at ? 1 : 0; }};
    train(
        resolved, /*eod=*/0, comm::Group(), at::kCPU, [] { return false; }, {}, {}, {}, watch);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(fs::path(options.train.out) / "checkpoints"))
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  };
  auto skips = config("skips");
  skips.guard.skip_iterations = {3, 4};
  skips.guard.on_nan = "skip";
  EXPECT_EQ(saved_at(skips, 3), (std::vector<std::string>{"iter_0000005", "iter_0000006"})) << "after the next step";
  auto rolls_back = config("rolls_back");
  rolls_back.checkpoint.save_interval = 2;
  rolls_back.guard.on_nan = "rollback";
  rolls_back.guard.inject_faults = {"nan:3"};
  EXPECT_EQ(saved_at(rolls_back, 3),
            (std::vector<std::string>{"iter_0000002", "iter_0000003", "iter_0000004", "iter_0000006"}));
}

TEST_F(TrainerTest, AFlippedBitIsRepairedAndAPersistentErrorEndsTheRun) {
  const auto options = [&](const char* name, std::int64_t interval, const char* fault) {
    auto checked = config(name, 1, 4);
    checked.guard.rerun_interval = interval;
    if (fault) checked.guard.inject_faults = {fault};
    checked.checkpoint.save_interval = 2;
    return checked;
  };
  ASSERT_EQ(run(options("plain", 0, nullptr)), Outcome::Done);
  ASSERT_EQ(run(options("flipped", 2, "flip:4:1")), Outcome::Done);
  const auto plain = metrics("plain"), flipped = metrics("flipped");
  ASSERT_EQ(flipped.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(flipped[i]["loss"], plain[i]["loss"]) << i;
    EXPECT_EQ(flipped[i].contains("wrong_ranks"), i % 2 == 1) << i;
  }
  EXPECT_EQ(flipped[1]["wrong_ranks"], json::array());
  EXPECT_EQ(flipped[3]["wrong_ranks"], json::array({1}));
  EXPECT_EQ(events("flipped"), (std::vector<std::string>{"wrong_gradients"}));

  ASSERT_EQ(run(options("stuck", 2, "stuck:4:1")), Outcome::Faulty);
  EXPECT_EQ(events("stuck"), (std::vector<std::string>{"wrong_gradients", "stopped"})) << "a supervisor must know";
  std::ifstream in(folder_ / "stuck" / "events.jsonl");
  std::string line;
  std::getline(in, line);
  const json event = json::parse(line);
  EXPECT_EQ(event["iteration"], 4);
  EXPECT_EQ(event["error"], "persistent");
  ASSERT_EQ(event["ranks"].size(), 1u);
  EXPECT_EQ(event["ranks"][0]["name"], "rank 1 (tp 0, cp 0, dp 1, pp 0)");
  EXPECT_EQ(event["ranks"][0]["wrong"], 6);
  EXPECT_EQ(checkpoint::find_checkpoint(folder_ / "stuck" / "checkpoints").filename(), "iter_0000002");
}

TEST_F(TrainerTest, AnOverflowEndsAStrictRunWhereTheLossScaleCannotComeDown) {
  const auto options = [&](const char* name) {
    auto strict = config(name);
    strict.train.dtype = "fp16";
    strict.train.exit_on_nan = true;
    return strict;
  };
  ASSERT_EQ(run(options("dynamic")), Outcome::Done);
  EXPECT_EQ(metrics("dynamic")[0]["skipped"], true) << "2^32 was to overflow";
  auto constant = options("constant"), least = options("least");
  constant.optimizer.loss_scale = 0x1p32;
  least.optimizer.min_loss_scale = least.optimizer.initial_loss_scale;
  for (const auto& strict : {constant, least}) {
    try {
      run(strict);
      ADD_FAILURE() << "trained to its end without a step";
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find("iteration 1: the loss must be finite"), std::string::npos) << e.what();
    }
  }
}

TEST_F(TrainerTest, TheSecondRunOfAFinishedRecipeDoesNothing) {
  ASSERT_EQ(run(config("run")), Outcome::Done);
  const auto lines = metrics("run").size();
  ASSERT_EQ(run(config("run")), Outcome::Done);
  EXPECT_EQ(metrics("run").size(), lines);
}

TEST_F(TrainerTest, StartsFromTheCheckpointOfAnotherRunInAnotherLayout) {
  auto options = config("long");
  ASSERT_EQ(run(options), Outcome::Done);
  options.train.out = (folder_ / "half").string();
  ASSERT_EQ(run(options, 3), Outcome::Interrupted);
  options = config("rest", 3, 2);
  options.train.micro_batch_size = 2;
  options.checkpoint.load = (folder_ / "half").string();
  ASSERT_EQ(run(options), Outcome::Done);
  const auto whole = metrics("long"), rest = metrics("rest");
  ASSERT_EQ(rest.size(), 3u);
  for (std::size_t i = 0; i < rest.size(); ++i)
    EXPECT_NEAR(rest[i]["loss"].get<double>(), whole[i + 3]["loss"].get<double>(), 1e-11);
}

TEST_F(TrainerTest, ARunThatWasStartedFromAnotherGoesOnFromItsOwnCheckpoint) {
  auto options = config("other");
  options.train.train_iters = 2;
  ASSERT_EQ(run(options), Outcome::Done);
  options = config("run");
  options.checkpoint.load = (folder_ / "other").string();
  ASSERT_EQ(run(options, 2), Outcome::Interrupted);
  ASSERT_EQ(metrics("run").size(), 2u);
  const json fourth = metrics("run")[1];
  ASSERT_EQ(run(options), Outcome::Done);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], fourth) << "done again";
  EXPECT_EQ(lines[3]["iteration"], 6);
}

TEST_F(TrainerTest, ACheckpointOfAnotherArchitectureIsRefusedNamingEachDifference) {
  ASSERT_EQ(run(config("run")), Outcome::Done);
  const auto error = [&](const config::RunConfig& options) -> std::string {
    try {
      check_inputs(plan::resolve(options));
      EXPECT_EQ(run(options), Outcome::Done);
    } catch (const ConfigError& e) {
      EXPECT_THROW(run(options), ConfigError) << "only found before ranks start";
      return e.what();
    }
    return "no error";
  };
  const auto saved = metrics("run");
  auto options = config("run");
  options.model.num_attention_heads = 4;
  options.model.activation = "gelu";
  options.model.layernorm_epsilon = 1e-6;
  const std::string several = error(options);
  for (const char* line : {"model.num_attention_heads must be 6", "got:  4", "--model.num_attention_heads=6",
                           "model.activation must be gelu_tanh", "model.layernorm_epsilon must be 1e-05"})
    EXPECT_NE(several.find(line), std::string::npos) << line << " is missing in\n" << several;
  options = config("run");
  options.model.num_layers = 1;
  const std::string fewer = error(options);
  EXPECT_NE(fewer.find("model.num_layers must be 2"), std::string::npos) << fewer;
  EXPECT_NE(fewer.find("iter_0000006 --finetune --load-strict false --train.out FOLDER"), std::string::npos) << fewer;
  EXPECT_EQ(fewer.find("fix:"), fewer.rfind("fix:")) << "no block for each weight: they follow from the option";
  options = config("run");
  options.model.untie_embeddings_and_output_weights = true;
  EXPECT_NE(error(options).find("model.untie_embeddings_and_output_weights must be false"), std::string::npos);
  EXPECT_EQ(metrics("run"), saved) << "a refused run has changed files";
  options = config("run", 2, 2);
  options.model.hidden_dropout = 0.5;  // how it is trained is free
  options.train.seed = 7;
  EXPECT_EQ(error(options), "no error");
}

TEST_F(TrainerTest, ARunThatWouldSaveOverACheckpointOfANewerVersionDoesNotBegin) {
  auto options = config("run");
  options.checkpoint.save_interval = 2;
  ASSERT_EQ(run(options), Outcome::Done);
  const fs::path checkpoints = folder_ / "run/checkpoints";
  write_file(checkpoints / "iter_0000006/manifest.json", R"({"format":"megatron-cpp checkpoint","version":7})");
  const auto refusal = [&] {
    try {
      check_inputs(plan::resolve(options));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  for (const int interval : {0, 2, 3, 4}) {
    for (const int last : {6, 8, 5}) {
      options.checkpoint.save_interval = interval;
      options.train.train_iters = last;
      const bool saves_there = last == 6 || (last == 8 && (interval == 2 || interval == 3));
      EXPECT_EQ(refusal().find("A run must not save where a checkpoint of a newer version is") == 0, saves_there)
          << refusal() << "; interval " << interval << ", iterations " << last;
      EXPECT_EQ(refusal() == "no error", !saves_there) << refusal();
    }
  }
  options.train.train_iters = 6;
  EXPECT_NE(refusal().find((checkpoints / "iter_0000006").string()), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("resumes from iteration 4"), std::string::npos) << refusal();
  options.checkpoint.load = (folder_ / "run").string();
  options.train.out = (folder_ / "another").string();
  EXPECT_EQ(refusal(), "no error") << "as its fix says";
}

TEST_F(TrainerTest, FindsAnEmptySplitAndUnknownTokensBeforeRanksStart) {
  const auto error = [](const config::RunConfig& options) -> std::string {
    try {
      check_inputs(plan::resolve(options));
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  auto options = config("run");
  EXPECT_EQ(error(options), "no error");
  options.data.split = "1";
  EXPECT_EQ(error(options), "no error") << "nobody asks for validation";
  options.train.eval_interval = 2;
  EXPECT_NE(error(options), "no error");
  options = config("run");
  options.model.vocab_size = 50;
  const std::string text = options.data.data_path[0];
  EXPECT_NE(error(options).find(text + ", sequence 0: every token must be one of 0 … 49.\n  got:  token 5"),
            std::string::npos)
      << error(options);
  try {
    run(options);  // the tokens further back are found when their sample comes
    FAIL() << "trained";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find(text + ", sample "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(": every token"), std::string::npos) << e.what();
  }
}

TEST_F(TrainerTest, NamesTheCheckpointThatIsNotThere) {
  auto options = config("run");
  options.checkpoint.load = (folder_ / "nowhere").string();
  try {
    run(options);
    FAIL() << "trained";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("nowhere"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(fs::exists(folder_ / "run")) << "a wrong configuration has written files";
}

TEST_F(TrainerTest, KeepsTheScheduleFileThatItRuns) {
  fs::create_directories(folder_);
  const fs::path named = folder_ / "mine.txt";
  const auto program =
      schedule::generate(schedule::schedule_named("gpipe"), {.num_ranks = 1, .num_chunks = 1, .num_microbatches = 4});
  write_file(named, schedule::to_text(program));
  auto options = config("run", 1, 1);
  options.parallel.pp_schedule = named.string();
  options.train.train_iters = 2;
  ASSERT_EQ(run(options), Outcome::Done);
  const fs::path copy = folder_ / "run" / "schedule.txt";
  EXPECT_EQ(schedule::parse_program(read_file(copy), "copy"), program);
  fs::remove(named);
  config::RunConfig saved;
  config::load_toml(saved, (folder_ / "run" / "recipe.toml").string());
  EXPECT_EQ(saved.parallel.pp_schedule, fs::absolute(copy).string());
  saved.train.train_iters = 3;
  EXPECT_EQ(run(saved), Outcome::Done) << "without the file that was named";
  EXPECT_EQ(metrics("run").size(), 3u);
  // Another program under the same name is said.
  auto other = options;
  other.train.train_iters = 4;
  write_file(named, schedule::to_text(schedule::accumulate({.num_ranks = 1, .num_chunks = 1, .num_microbatches = 4})));
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run(other), Outcome::Done);
  EXPECT_NE(::testing::internal::GetCapturedStdout().find("no longer the schedule"), std::string::npos);
}

TEST_F(TrainerTest, SaysWhereNoStepWasRunForATrace) {
  auto options = config("run", 1, 1);
  options.log.trace = (folder_ / "run" / "trace.json").string();
  ASSERT_EQ(run(options), Outcome::Done);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "trace.json"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "trace.svg"));
  ::testing::internal::CaptureStdout();
  ASSERT_EQ(run(options), Outcome::Done);
  EXPECT_NE(::testing::internal::GetCapturedStdout().find("no step was run"), std::string::npos);
}

}  // namespace
}  // namespace megatron::train
