#include "megatron/base/ranks/launched_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "megatron/base/error.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(LaunchedRank, NoLauncherMeansNoPlace) {
  EXPECT_FALSE(place_from({}));
  EXPECT_FALSE(place_from({{"RANK", "3"}, {"HOME", "/root"}})) << "WORLD_SIZE belongs to it";
  EXPECT_FALSE(place_from({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}})) << "an allocation, not a task";
}

TEST(LaunchedRank, RefusesHalfOfTorchrunsVariables) {
  const auto refuses = [](const Environment& environment, const std::string& got) {
    EXPECT_THAT([&] { place_from(environment); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("must be set"), HasSubstr("got:  " + got + "\n"))));
  };
  refuses({{"RANK", "1"}, {"MASTER_ADDR", "node0"}}, "RANK 1, no WORLD_SIZE");
  refuses({{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", ""}}, "RANK 0, no WORLD_SIZE");
  refuses({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1234"}}, "WORLD_SIZE 2, no RANK");
  refuses({{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, "WORLD_SIZE 2, no RANK");
}

TEST(LaunchedRank, LeavesVariablesAloneThatAUserMayHaveForOtherPrograms) {
  EXPECT_FALSE(place_from({{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1234"}}));
  EXPECT_FALSE(place_from({{"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node0"}})) << "a world of one";
  EXPECT_FALSE(place_from({{"WORLD_SIZE", "8"}})) << "nothing says that ranks are to meet";
  EXPECT_FALSE(place_from({{"LOCAL_RANK", "0"}}));
  EXPECT_EQ(place_from({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}})->launcher,
            "PMI")
      << "another launcher, whose job exports some";
}

TEST(LaunchedRank, ReadsTorchrun) {
  const LaunchedRank p = *place_from({{"RANK", "5"},
                                      {"WORLD_SIZE", "8"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "4"},
                                      {"MASTER_ADDR", "node7"},
                                      {"MASTER_PORT", "1234"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                      {"GLOO_SOCKET_IFNAME", "eth1"}});
  EXPECT_EQ(p.rank, 5);
  EXPECT_EQ(p.world_size, 8);
  EXPECT_EQ(p.local_rank, 1);
  EXPECT_EQ(p.local_size, 4);
  EXPECT_EQ(p.address, "node7");
  EXPECT_EQ(p.port, 1234);
  EXPECT_TRUE(p.store_is_kept);
  EXPECT_EQ(p.store_prefix, "megatron");
  EXPECT_EQ(p.interface, "eth1");
  EXPECT_EQ(p.launcher, "torchrun");
}

TEST(LaunchedRank, RefusesALocalRankBeyondThoseOfTheHost) {
  Environment variables = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "9"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(place_from(variables)->local_rank, 9) << "how many are here is not said";
  variables["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_THROW(place_from(variables), ConfigError);
}

// Counts of torchrun's do not tell attempts apart: each agent has its own.
TEST(LaunchedRank, OfEachAttemptHasKeysOfItsOwn) {
  const auto prefix = [](const Environment& more) {
    Environment all{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}};
    all.insert(more.begin(), more.end());
    return place_from(all)->store_prefix;
  };
  const std::set<std::string> prefixes = {prefix({}), prefix({{kAttemptVariable, "0"}}),
                                          prefix({{kAttemptVariable, "1"}})};
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(prefix({{"TORCHELASTIC_RESTART_COUNT", "1"}}), prefix({}));
}

TEST(LaunchedRank, ReadsOpenMpiAndPicksAPortByJob) {
  const Environment job{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_MCA_ess_base_jobid", "1234567"}};
  const LaunchedRank p = *place_from(job);
  EXPECT_EQ(p.rank, 1);
  EXPECT_EQ(p.address, "127.0.0.1");
  EXPECT_EQ(p.port, 20000 + 1234567 % 20000);
  EXPECT_FALSE(p.store_is_kept);
  Environment two_hosts = job;
  two_hosts["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  two_hosts["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_THAT([&] { place_from(two_hosts); }, ThrowsMessage<ConfigError>(HasSubstr("MASTER_ADDR")));
  two_hosts["MASTER_ADDR"] = "a";
  EXPECT_EQ(place_from(two_hosts)->address, "a");
}

TEST(LaunchedRank, RanksOfOneHostMeetOnItsLoopbackInterface) {
  Environment job{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"LOCAL_WORLD_SIZE", "2"}};
  EXPECT_EQ(place_from(job)->address, "127.0.0.1");
  job["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(place_from(job)->address, "a") << "there is the store";
  job["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  job["GLOO_SOCKET_IFNAME"] = "eth1";
  EXPECT_EQ(place_from(job)->address, "a") << "the user has said which way";
  job.erase("GLOO_SOCKET_IFNAME");
  job.erase("LOCAL_WORLD_SIZE");
  EXPECT_EQ(place_from(job)->address, "a") << "nobody has said how many ranks are here";
  const Environment pmi{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(place_from(pmi)->address, "a");
}

TEST(LaunchedRank, ReadsTheSecretOrItsFileUnderEveryLauncher) {
  for (Environment job :
       {Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}},
        Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
        Environment{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, Environment{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}}) {
    job["MEGATRON_RUN_SECRET"] = "open sesame";
    job["MEGATRON_RUN_SECRET_FILE"] = "/a/file";
    const LaunchedRank place = *place_from(job);
    EXPECT_EQ(place.secret, "open sesame");
    EXPECT_EQ(place.secret_file, "/a/file");
    EXPECT_EQ(environment_of(place).at("MEGATRON_RUN_SECRET"), "open sesame");
  }
}

TEST(LaunchedRank, ReadsPmi) {
  const LaunchedRank p =
      *place_from({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}, {"MPI_LOCALRANKID", "2"}});
  EXPECT_EQ(p.rank, 2);
  EXPECT_EQ(p.world_size, 4);
  EXPECT_EQ(p.local_rank, 2);
  EXPECT_EQ(p.port, 29500);
}

TEST(LaunchedRank, ReadsSlurmAndMeetsOnItsFirstHost) {
  const LaunchedRank p = *place_from({{"SLURM_PROCID", "5"},
                                      {"SLURM_NTASKS", "7"},
                                      {"SLURM_LOCALID", "1"},
                                      {"SLURM_NODEID", "1"},
                                      {"SLURM_JOB_ID", "40123"},
                                      {"SLURM_JOB_NODELIST", "gpu[07-08],big1"},
                                      {"SLURM_TASKS_PER_NODE", "3(x2),1"}});
  EXPECT_EQ(p.rank, 5);
  EXPECT_EQ(p.world_size, 7);
  EXPECT_EQ(p.local_size, 3);
  EXPECT_EQ(p.address, "gpu07");
  EXPECT_EQ(p.port, 20123);
}

TEST(LaunchedRank, StepsOfOneSlurmJobMeetAtPortsOfTheirOwn) {
  Environment step{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "a"}};
  std::set<int> ports;
  for (int i = 0; i < 200; ++i) {
    step["SLURM_STEP_ID"] = std::to_string(i);
    ports.insert(place_from(step)->port);
  }
  EXPECT_EQ(ports.size(), 200u);
  EXPECT_GE(*ports.begin(), 20000);
  EXPECT_LT(*ports.rbegin(), 40000);
}

TEST(LaunchedRank, GivesItsOwnRanksWhatItReads) {
  LaunchedRank place;
  place.rank = 3;
  place.world_size = place.local_size = 4;
  place.local_rank = 3;
  place.port = 555;
  place.store_is_kept = place.rank_0_speaks = true;
  const LaunchedRank read = *place_from(environment_of(place));
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.local_size, 4);
  EXPECT_EQ(read.port, 555);
  EXPECT_TRUE(read.store_is_kept);
  EXPECT_TRUE(read.rank_0_speaks);
}

TEST(LaunchedRank, RefusesWhatIsMissingMalformedOrOutOfRange) {
  const Environment good{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_TRUE(place_from(good));
  for (const auto& [name, value, words] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"RANK", "2", "RANK"},
           {"RANK", "-1", "RANK"},
           {"RANK", "1x", "1x"},
           {"WORLD_SIZE", "0", "WORLD_SIZE"},
           {"WORLD_SIZE", "99999999999999999999", "WORLD_SIZE"},
           {"MASTER_PORT", "70000", "MASTER_PORT"},
           {"MASTER_ADDR", "", "MASTER_ADDR"},
           {"LOCAL_WORLD_SIZE", "3", "LOCAL_WORLD_SIZE"}}) {
    Environment bad = good;
    bad[name] = value;
    EXPECT_THAT([&] { place_from(bad); }, ThrowsMessage<ConfigError>(HasSubstr(words))) << name << "=" << value;
  }
}

TEST(LaunchedRank, ExpandsHostLists) {
  EXPECT_THAT(expand_host_list("a"), ElementsAre("a"));
  EXPECT_THAT(expand_host_list("node[001-003,007],gpu,x[9-10]"),
              ElementsAre("node001", "node002", "node003", "node007", "gpu", "x9", "x10"));
  for (const char* bad : {"", ",", "a,", "a[", "a[1", "a[]", "a[3-1]", "a[x]", "a[1-99999999]", "a[1]b", "a[1-]"})
    EXPECT_THROW(expand_host_list(bad), ConfigError) << bad;
}

}  // namespace
}  // namespace megatron
