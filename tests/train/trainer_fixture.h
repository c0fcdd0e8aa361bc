#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/resumed_batch.h"
#include "megatron/train/trainer.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"
#include "tests/train/tiny_text.h"

namespace megatron::train {

/// Whole runs on a text of 60 documents, and what they leave in their folders.
class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    testing::write_tiny_text((folder_ / "text").string(), 60);
  }

  config::RunConfig config(const std::string& name, int tp = 1, int dp = 1) const {
    auto config = testing::tiny_config(tp, dp);
    config.data.data_path = {(folder_ / "text").string()};
    config.data.split = "80,20,0";
    config.train.out = (folder_ / name).string();
    config.log.progress = "off";
    return config;
  }

  // Trains; every rank is asked to stop once `stop_after` steps have begun on the first.
  static Outcome run(const config::RunConfig& config, int stop_after = 1 << 30, const ResumedBatch& resumed = {}) {
    plan::Facts facts{.resumed_batch = resumed.size, .resumed_samples = resumed.samples};
    if (std::filesystem::exists(config.parallel.pp_schedule))
      facts.schedule_file = read_file(config.parallel.pp_schedule);
    const plan::ResolvedRun resolved = plan::resolve(config, facts);
    std::atomic<int> asked = 0;
    std::atomic<Outcome> outcome{};
    comm::run_ranks(resolved.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      outcome = train(resolved, /*eod=*/0, world, at::kCPU,
                      [&] { return world.rank() == 0 && asked.fetch_add(1) + 1 >= stop_after; });
    });
    return outcome;
  }

  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::ifstream in(folder_ / name / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  std::vector<std::string> events(const std::string& name) const {
    std::ifstream in(folder_ / name / "events.jsonl");
    std::vector<std::string> names;
    for (std::string line; std::getline(in, line);)
      names.push_back(nlohmann::json::parse(line)["event"].get<std::string>());
    return names;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path() / "run";
};

}  // namespace megatron::train
