#include "megatron/plan/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/schedule/passes.h"
#include "megatron/schedule/text.h"
#include "megatron/schedule/validate.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::plan {
namespace {

using config::RunConfig;
using schedule::Kind;
using schedule::Program;
using testing::HasSubstr;

RunConfig two_ranks() {
  RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 1000;
  config.parallel.world_size = config.parallel.pp = 2;
  config.train.global_batch_size = 6;
  return config;
}

ResolvedRun run_of(const std::function<void(RunConfig&)>& change) {
  RunConfig config = two_ranks();
  change(config);
  Facts facts;
  if (const std::string& path = config.parallel.pp_schedule; std::filesystem::exists(path))
    facts.schedule_file = read_file(path);
  return resolve(config, facts);
}

std::string error_of(const std::function<void(RunConfig&)>& change) {
  try {
    run_of(change);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::map<Kind, int> count(const Program& program) {
  std::map<Kind, int> counts;
  for (const auto& ops : program.ranks)
    for (const schedule::Op& op : ops) ++counts[op.kind];
  return counts;
}

/// A schedule file that goes with the test's run unless told otherwise.
class ScheduleFile {
 public:
  explicit ScheduleFile(const Program& program) : ScheduleFile(schedule::to_text(program)) {}
  explicit ScheduleFile(const std::string& text) { std::ofstream(path) << text; }

 private:
  const TemporaryFolder folder_;

 public:
  const std::string path = folder_.path() / "schedule.txt";
};

TEST(PipelineProgram, OfOneRankIsAccumulationWithReduction) {
  const ResolvedRun run = run_of([](auto& c) { c.parallel.world_size = c.parallel.pp = 1; });
  const Program program = pipeline_program(run, 3);
  EXPECT_EQ(count(program), (std::map<Kind, int>{{Kind::Forward, 3}, {Kind::Backward, 3}, {Kind::ReduceGradients, 1}}));
  EXPECT_EQ(count(evaluation_program(run, 5)), (std::map<Kind, int>{{Kind::Forward, 5}}));
}

TEST(PipelineProgram, IsLoweredReducedAndValidForEverySchedule) {
  std::vector<std::pair<const char*, int>> schedules = {{"", 1}, {"auto", 1}, {"", 2}, {"auto", 2}, {"", 4}};
  for (const schedule::ScheduleInfo& info : schedule::schedules()) schedules.emplace_back(info.name, info.min_chunks);
  for (const auto& [name, vpp] : schedules)
    for (const char* communication : {"unbatched", "batched", "overlapped"}) {
      const ResolvedRun run = run_of([&, name = name, vpp = vpp](auto& c) {
        c.parallel.pp_schedule = name;
        c.parallel.vpp = vpp;
        c.parallel.pp_communication = communication;
      });
      const auto stages = static_cast<std::int64_t>(run.parts.size());
      EXPECT_TRUE(stages == 2 * vpp || name == std::string("auto")) << name;
      for (const std::int64_t microbatches : {1, 6, 7}) {
        if (microbatches < schedule::schedule_named(run.schedule_name).min_microbatches(2)) continue;
        const Program program = pipeline_program(run, microbatches);
        EXPECT_NO_THROW(schedule::validate(program));
        EXPECT_EQ(program.placement, run.placement) << name;
        auto counts = count(program);
        EXPECT_EQ(counts[Kind::Forward], stages * microbatches);
        EXPECT_EQ(counts[Kind::Backward] + counts[Kind::BackwardInput], stages * microbatches);
        EXPECT_EQ(counts[Kind::ReduceGradients], stages);
        EXPECT_GT(counts[Kind::SendActivation], 0);
        const Program evaluation = evaluation_program(run, microbatches);
        EXPECT_TRUE(evaluation.forward_only);
        EXPECT_EQ(evaluation.placement, run.placement);
        EXPECT_EQ(count(evaluation)[Kind::Forward], stages * microbatches);
      }
    }
}

TEST(PipelineProgram, FollowsTheNameAndTheStagesOfARank) {
  const auto name = [](const char* schedule, int vpp) {
    return run_of([=](auto& c) {
             c.parallel.pp_schedule = schedule;
             c.parallel.vpp = vpp;
           })
        .schedule_name;
  };
  EXPECT_EQ(name("", 1), "1f1b");
  EXPECT_EQ(name("", 2), "interleaved");
  EXPECT_EQ(name("zb-v", 2), "zb-v");
  EXPECT_EQ(run_of([](auto& c) { c.parallel.pp_schedule = "zb-v", c.parallel.vpp = 2; }).placement,
            schedule::Placement::v_shaped(2));
  EXPECT_NE(name("auto", 1), "auto");
}

TEST(PipelineProgram, IsChosenAmongOneAndTwoStagesARankWhereTheLayersDivide) {
  const auto chosen = [](std::int64_t layers, auto more) {
    return run_of([=](auto& c) {
      c.model.num_layers = layers;
      c.parallel.pp_schedule = "auto";
      more(c);
    });
  };
  const auto nothing = [](auto&) {};
  const ResolvedRun two = chosen(8, nothing);
  EXPECT_EQ(two.schedule_name, "zb-v");
  EXPECT_EQ(two.parts.size(), 4u);
  EXPECT_EQ(two.parts[3].first_layer, 6);
  EXPECT_EQ(two.placement, schedule::Placement::v_shaped(2));
  EXPECT_EQ(two.config.parallel.pp_schedule, "auto") << "the recipe chooses again";
  const ResolvedRun one = chosen(6, nothing);
  EXPECT_EQ(one.parts.size(), 2u);
  EXPECT_EQ(chosen(8, [](auto& c) { c.parallel.layers_per_virtual_stage = 4; }).parts.size(), 2u);
  EXPECT_EQ(chosen(8, [](auto& c) { c.parallel.pp_layout = "Et*4|t*4L"; }).parts.size(), 2u);
  EXPECT_EQ(chosen(8, [](auto& c) { c.parallel.pp = c.parallel.world_size = 1; }).parts.size(), 1u);
  // No other schedule takes less, whatever the stages of a rank.
  const auto time = [](const ResolvedRun& run) {
    return schedule::simulate(pipeline_program(run, 6), stage_costs(run.config, run.shape, run.parts)).makespan;
  };
  for (const char* how : {"unbatched", "batched", "overlapped"}) {
    const ResolvedRun best = chosen(8, [=](auto& c) { c.parallel.pp_communication = how; });
    for (const schedule::ScheduleInfo& info : schedule::schedules())
      EXPECT_LE(time(best) * (1 - 1e-9), time(run_of([&](auto& c) {
                  c.parallel.pp_communication = how;
                  c.parallel.pp_schedule = info.name;
                  c.parallel.vpp = info.min_chunks;
                })))
          << how << " " << info.name;
  }
}

TEST(PipelineProgram, IsChosenWithItsMessages) {
  const schedule::Candidate candidate{{.num_ranks = 4, .num_microbatches = 8}, {.latency = 0.25}};
  const auto makespan = [&](schedule::Communication how) {
    return schedule::choose({candidate}, how, 0).timeline.makespan;
  };
  EXPECT_LT(makespan(schedule::Communication::Overlapped), makespan(schedule::Communication::Unbatched));
}

TEST(PipelineProgram, IsChosenWithinTheMemoryLimitWithWhatIsComputedAgain) {
  for (const char* recompute : {"none", "full"}) {
    const auto chosen = [=](std::int64_t limit) {
      return [=](RunConfig& c) {
        c.train.recompute = recompute;
        c.parallel.pp_schedule = "auto";
        c.parallel.pp_memory_limit = limit;
      };
    };
    const auto planned = [](const ResolvedRun& run) {
      const auto timeline = schedule::simulate(pipeline_program(run, 6), stage_costs(run.config, run.shape, run.parts));
      std::int64_t most = 0;
      for (int rank = 0; rank < 2; ++rank)
        most =
            std::max(most, memory_plan(run, 0, rank, timeline.peak_bytes[static_cast<std::size_t>(rank)]).activations);
      return most;
    };
    const std::string error = error_of(chosen(1000));
    const std::string option = "fix:  --parallel.pp_memory_limit ";
    ASSERT_THAT(error, HasSubstr(option));
    EXPECT_EQ(error.find("e+"), std::string::npos) << "whole numbers: " << error;
    const std::int64_t least = std::stoll(error.substr(error.find(option) + option.size()));
    EXPECT_LE(planned(run_of(chosen(least))), least) << recompute;
    EXPECT_THAT(error_of(chosen(least - 1)), HasSubstr(option));
    EXPECT_LE(planned(run_of(chosen(least + least / 8))), least + least / 8);
  }
}

TEST(PipelineProgram, SaysTheNearestNameOfASchedule) {
  const auto error = [](const char* name) { return error_of([=](auto& c) { c.parallel.pp_schedule = name; }); };
  EXPECT_THAT(error("zb_h1"), HasSubstr("got:  'zb_h1'\n  fix:  --schedule zb-h1"));
  EXPECT_THAT(error("1F1B"), HasSubstr("fix:  --schedule 1f1b"));
  EXPECT_THAT(error("interleave"), HasSubstr("fix:  --schedule auto")) << "interleaved needs several stages per rank";
  EXPECT_THAT(error_of([](auto& c) {
                c.parallel.pp_schedule = "interleave";
                c.parallel.vpp = 2;
              }),
              HasSubstr("fix:  --schedule interleaved"));
  EXPECT_THAT(error("mine"), HasSubstr("is one of: auto, " + schedule::schedule_names() + "; or a file"));
}

TEST(PipelineProgram, ComesFromAFileWhereNoScheduleIsSoCalled) {
  const auto resolved = [](const char* name) {
    RunConfig config = two_ranks();
    config.parallel.pp_schedule = name;
    return resolve(config, {.schedule_file = schedule::to_text(schedule::generate("gpipe", {2, 1, 6}))});
  };
  EXPECT_TRUE(resolved("mine").schedule_file.has_value());
  EXPECT_FALSE(resolved("1f1b").schedule_file.has_value()) << "a fix that is tried names another schedule";
  EXPECT_FALSE(resolved("").schedule_file.has_value());
}

TEST(PipelineProgram, IsCalledNoneWhereThereIsNoPipeline) {
  EXPECT_EQ(schedule_text(run_of([](auto& c) { c.parallel.pp = c.parallel.world_size = 1; })), "none");
  EXPECT_EQ(schedule_text(run_of([](auto&) {})), "1f1b");
}

TEST(PipelineProgram, ComesFromAFile) {
  const Program written = schedule::generate("gpipe", {.num_ranks = 2, .num_chunks = 1, .num_microbatches = 6});
  const ScheduleFile file(written);
  const ResolvedRun run = run_of([&](auto& c) { c.parallel.pp_schedule = file.path; });
  Program expected =
      schedule::insert_gradient_reduction(schedule::insert_communication(written, schedule::Communication::Overlapped));
  EXPECT_EQ(pipeline_program(run, 6).ranks, expected.ranks);
  EXPECT_EQ(evaluation_program(run, 2).num_microbatches, 2);
}

TEST(PipelineProgram, FromAFileWithMessagesStaysAsItIs) {
  const Program written = schedule::insert_gradient_reduction(schedule::insert_communication(
      schedule::generate("zb-h1", {.num_ranks = 2, .num_chunks = 1, .num_microbatches = 6}),
      schedule::Communication::Unbatched));
  const ScheduleFile file(written);
  EXPECT_EQ(pipeline_program(run_of([&](auto& c) { c.parallel.pp_schedule = file.path; }), 6).ranks, written.ranks);
}

TEST(PipelineProgram, RefusesAFileOfAnotherShapeWithBothNumbers) {
  const auto error = [](const Program& program, auto more) {
    const ScheduleFile file(program);
    return error_of([&](auto& c) {
      c.parallel.pp_schedule = file.path;
      more(c);
    });
  };
  const auto nothing = [](auto&) {};
  EXPECT_THAT(error(schedule::generate("gpipe", {2, 1, 5}), nothing),
              HasSubstr("microbatches.\n  got:  5 in the file, 6 in the run"));
  EXPECT_THAT(error(schedule::generate("gpipe", {3, 1, 6}), nothing),
              HasSubstr("pipeline ranks.\n  got:  3 in the file, 2 in"));
  EXPECT_THAT(error(schedule::generate("interleaved", {2, 2, 6}), nothing),
              HasSubstr("stages.\n  got:  4 in the file, 2 in"));
  const auto growing = [](RunConfig& c) { c.schedule.rampup_batch_size = {2, 2, 100}; };
  EXPECT_THAT(error(schedule::generate("gpipe", {2, 1, 6}), growing), HasSubstr("rampup_batch_size"));
}

TEST(PipelineProgram, RefusesLayersOfTheFirstRankWhereRanksDoNotHoldEachPpThStage) {
  const auto first_rank_of = [](const char* schedule) {
    return error_of([&](auto& c) {
      c.model.num_layers = 6;
      c.parallel.vpp = 2;
      c.parallel.pp_schedule = schedule;
      c.parallel.first_stage_layers = 2;
    });
  };
  EXPECT_THAT(first_rank_of("zb-v"), HasSubstr("gives ranks each pp-th stage"));
  EXPECT_THAT(first_rank_of("interleaved"), "no error");
}

TEST(PipelineProgram, RefusesAFileThatLies) {
  Program program = schedule::generate("gpipe", {2, 1, 6});
  std::swap(program.ranks[1].front(), program.ranks[1].back());  // a backward before its forward
  const ScheduleFile file(program);
  EXPECT_NE(error_of([&](auto& c) { c.parallel.pp_schedule = file.path; }), "no error");
  Program evaluation = schedule::forward_only({.num_ranks = 2, .num_chunks = 1, .num_microbatches = 6});
  const ScheduleFile trains_nothing(evaluation);
  EXPECT_THAT(error_of([&](auto& c) { c.parallel.pp_schedule = trains_nothing.path; }),
              testing::AllOf(HasSubstr("must have the backward of every microbatch"), HasSubstr("forward-only"),
                             HasSubstr("fix:")));
  const ScheduleFile garbage("stages 0 one\n");
  EXPECT_THAT(error_of([&](auto& c) { c.parallel.pp_schedule = garbage.path; }), HasSubstr(garbage.path));
  EXPECT_THAT(error_of([&](auto& c) { c.parallel.pp_schedule = "/absent/file.txt"; }), HasSubstr("/absent/file.txt"));
}

TEST(PipelineProgram, IsMadeForEveryBatchOfARampBeforeTheRun) {
  const ResolvedRun run = run_of([](auto& c) { c.schedule.rampup_batch_size = {1, 1, 100}; });
  ASSERT_EQ(run.batch_schedule.num_sizes(), 6);
  for (std::int64_t k = 0; k < 6; ++k) {
    EXPECT_EQ(run.batch_schedule.size(k), k + 1);
    EXPECT_EQ(pipeline_program(run, k + 1).num_microbatches, k + 1);
  }
}

TEST(PipelineProgram, RefusesSchedulesThatDoNotSuitTheStagesInOneError) {
  struct Case {
    std::function<void(RunConfig&)> change;
    const char* error;
  };
  const std::vector<Case> cases = {
      {[](auto& c) { c.parallel.pp_schedule = "interleaved"; }, "schedule interleaved has at least 2 stages per rank"},
      {[](auto& c) { c.parallel.pp_schedule = "zb-v"; }, "schedule zb-v has 2 stages per rank"},
      {[](auto& c) { c.parallel.pp_schedule = "zb-v", c.parallel.vpp = 4; }, "schedule zb-v has 2 stages per rank"},
      {[](auto& c) { c.parallel.pp_schedule = "1f1b", c.parallel.vpp = 2; }, "schedule 1f1b has 1 stage per rank"},
      {[](auto& c) { c.parallel.pp_schedule = "dualpipev", c.parallel.vpp = 2, c.train.global_batch_size = 3; },
       "schedule dualpipev has at least 2 microbatches per pipeline rank in every step.\n  got:  3 microbatches, 2 "
       "pipeline ranks\n  fix:  --global-batch-size 4, or --schedule interleaved"},
      {[](auto& c) {
         c.parallel.pp_schedule = "dualpipev", c.parallel.vpp = 2;
         c.schedule.rampup_batch_size = {1, 1, 100};
       },
       "1 microbatches in the smallest step, 2 pipeline ranks\n  fix:  --schedule interleaved"},
      {[](auto& c) { c.parallel.pp_schedule = "1b1f"; }, "a pipeline schedule is one of"},
      {[](auto& c) { c.parallel.vpp = 2, c.parallel.microbatch_group_size = 1; }, "parallel.microbatch_group_size=1"},
      {[](auto& c) { c.parallel.pp = 3, c.model.num_layers = 9; }, "tp*cp*dp*pp must equal the world size"},
      {[](auto& c) { c.model.num_layers = 7; }, "must divide by the stages"},
      {[](auto& c) { c.train.global_batch_size = 1 << 24; }, "microbatches"},
  };
  for (const Case& bad : cases) {
    const std::string error = error_of(bad.change);
    EXPECT_THAT(error, HasSubstr(bad.error));
    EXPECT_EQ(error.find("got:"), error.rfind("got:")) << error;
  }
  // Together with other violations.
  EXPECT_THAT(error_of([](auto& c) {
                c.parallel.pp_schedule = "zb-v";
                c.train.dtype = "fp8";
              }),
              testing::AllOf(HasSubstr("zb-v"), HasSubstr("train.dtype")));
}

}  // namespace
}  // namespace megatron::plan
