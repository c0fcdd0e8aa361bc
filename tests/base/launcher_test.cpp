#include "megatron/base/machine/launcher.h"

#include <gtest/gtest.h>

#include <string>

namespace megatron {
namespace {

std::string variable_in(const Environment& environment) {
  const auto found = launcher_of(environment);
  return found ? found->variable : "";
}

TEST(Launchers, AreKnownByTheirVariables) {
  EXPECT_EQ(variable_in({}), "");
  EXPECT_EQ(variable_in({{"RANK", "3"}}), "") << "anybody may have a variable of this name";
  EXPECT_EQ(variable_in({{"RANK", "3"}, {"WORLD_SIZE", ""}}), "");
  EXPECT_EQ(variable_in({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"SLURM_PROCID", "3"}}), "RANK");
  EXPECT_EQ(variable_in({{"OMPI_COMM_WORLD_RANK", "0"}}), "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(variable_in({{"PMI_RANK", "0"}}), "PMI_RANK");
  EXPECT_EQ(variable_in({{"SLURM_PROCID", "0"}}), "SLURM_PROCID");
  EXPECT_EQ(variable_in({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}}), "") << "an allocation";
  EXPECT_EQ(variable_in({{"SLURM_PROCID", "0"}, {"SLURM_PTY_PORT", "1"}}), "") << "a shell in it";
}

}  // namespace
}  // namespace megatron
