#include "megatron/plan/steps/faults.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

TEST(Faults, AreReadAsTheyAreWritten) {
  EXPECT_EQ(faults_of({"nan:7", "spike:1", "exit:6:3", "hang:2", "flip:4:1", "stuck:5:2"}),
            (std::vector<Fault>{{Fault::Kind::Nan, 7, 0},
                                {Fault::Kind::Spike, 1, 0},
                                {Fault::Kind::Exit, 6, 3},
                                {Fault::Kind::Hang, 2, 0},
                                {Fault::Kind::Flip, 4, 1},
                                {Fault::Kind::Stuck, 5, 2}}));
}

TEST(Faults, OthersAreRefused) {
  for (const char* text : {"", "nan", "nan:", "nan:0", "nan:-1", "nan:7:0", "exit:6:-1", "exit:6:3:4",
                           "exit:6:", "exit::1", "bang:6", "nan:7 ", "nan:99999999999999999999", "exit:6:99999999"})
    EXPECT_THROW(faults_of({text}), ConfigError) << text;
}

TEST(Faults, OfARecipeAreRules) {
  config::RunConfig config;
  config.guard.inject_faults = {"bang:6"};
  config.guard.skip_iterations = {0};
  config.guard.spike_factor = 0.5;
  const std::string broken = broken_rules(config);
  for (const char* option : {"guard.inject_faults", "guard.skip_iterations", "guard.spike_factor"})
    EXPECT_NE(broken.find(option), std::string::npos) << broken;
}

}  // namespace
}  // namespace megatron::plan
