#include "megatron/train/log/wandb_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "megatron/base/files/file.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

class WandbFileTest : public ::testing::Test {
 protected:
  WandbFileTest() {
    config_.train.out = (temporary_.path() / "run").string();
    config_.log.wandb_project = "project";
  }
  std::vector<fs::path> logs() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(temporary_.path()))
      if (entry.path().extension() == ".wandb") found.push_back(entry.path());
    return found;
  }
  /// Rows of iterations `first` … `last`, each longer than a block has room for records of.
  void write(std::int64_t first, std::int64_t last, const ResumePoint& resume) const {
    WandbFile file(config_, resume);
    for (std::int64_t i = first; i <= last; ++i) {
      file.write({{"lm loss", 1.0 / static_cast<double>(i), i}, {"lm loss vs samples", 1, 2 * i}}, i, 2 * i);
      file.write({{std::string(20'000, 'x'), 1, i}}, i, 2 * i);
    }
  }
  static KeptLog kept(const fs::path& log, std::int64_t iteration) { return kept_log(read_file(log), iteration); }

  const TemporaryFolder temporary_;
  config::RunConfig config_;
};

TEST_F(WandbFileTest, AResumedRunGoesOnInItsFile) {
  write(1, 6, {});
  ASSERT_EQ(logs().size(), 1u);
  const fs::path log = logs()[0];
  EXPECT_EQ(kept(log, 100).records, 2u + 6u) << "the version, the run, a row an iteration";
  EXPECT_LT(kept(log, 100).bytes, fs::file_size(log)) << "that it has ended";
  EXPECT_EQ(kept(log, 4).records, 2u + 4u);
  write(5, 8, {.iteration = 4, .samples = 8, .validated_iteration = 4});
  ASSERT_EQ(logs().size(), 1u);
  EXPECT_EQ(kept(log, 100).records, 2u + 8u);
  EXPECT_EQ(read_file(log).find("vs samples"), std::string::npos);
  write(1, 1, {});  // a run of its own
  EXPECT_EQ(logs().size(), 2u);
}

TEST_F(WandbFileTest, KeepsWholeRecordsOfAFileThatIsDamaged) {
  write(1, 4, {});
  const std::string whole = read_file(logs()[0]);
  std::vector<std::uint64_t> ends;  // by iteration, of what is kept
  for (std::int64_t i = 0; i <= 4; ++i) ends.push_back(kept(logs()[0], i).bytes);
  for (std::size_t size = 0; size < whole.size(); size += 997) {
    const std::uint64_t bytes = kept_log(std::string_view(whole).substr(0, size), 100).bytes;
    EXPECT_LE(bytes, size);
    if (size >= ends[0]) {
      EXPECT_EQ(bytes, *std::prev(std::upper_bound(ends.begin(), ends.end(), size))) << size;
    }
  }
  for (std::size_t at = ends[0]; at < ends[4]; at += 1009) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    // Padding at the end of a block is nobody's.
    EXPECT_LE(kept_log(damaged, 100).bytes, ends[4]);
    EXPECT_GE(kept_log(damaged, 100).bytes, *std::prev(std::upper_bound(ends.begin(), ends.end(), at))) << at;
  }
}

}  // namespace
}  // namespace megatron::train
