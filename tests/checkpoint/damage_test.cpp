#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/checkpoint/support.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;

constexpr std::int64_t kRows = 1024, kColumns = 1024;  // of a matrix of 4 MiB: five checksummed blocks

at::Tensor matrix(std::int64_t first) {
  return at::arange(first, first + kRows * kColumns, at::kLong).to(at::kFloat).view({kRows, kColumns});
}

void save_matrix(const fs::path& folder, std::int64_t iteration, int keep_last = 0) {
  save(folder, iteration, {{"w", {kRows, kColumns}, {0, 0}, matrix(iteration)}}, {}, comm::Group(), keep_last);
}

std::string load_error(const fs::path& folder, std::vector<std::int64_t> offset = {0, 0},
                       std::vector<std::int64_t> shape = {kRows, kColumns}) {
  try {
    load(folder, {{"w", {kRows, kColumns}, std::move(offset), at::zeros(shape)}});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

void flip_byte(const fs::path& file, std::uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

class DamagedCheckpoint : public testing::Test {
 protected:
  DamagedCheckpoint() { save_matrix(folder.path(), 1); }
  const TemporaryFolder folder;
  const fs::path iteration = folder.path() / "iter_0000001";
  const fs::path data = iteration / "rank_00000.safetensors";
};

TEST_F(DamagedCheckpoint, AChangedByteIsNamedByItsBlockInEveryLayout) {
  ASSERT_EQ(load_error(folder.path()), "no error");
  flip_byte(data, (2 << 20) + 17);
  const std::string where = data.string() + ": must be what was written.\n  got:  bytes 2097152 to 3145728";
  EXPECT_THAT(load_error(folder.path()), HasSubstr(where));
  EXPECT_THAT(load_error(folder.path(), {0, 512}, {kRows, 512}), HasSubstr(where));
  EXPECT_THAT(load_error(folder.path(), {1000, 0}, {24, kColumns}), "no error") << "rows in later blocks alone";
  EXPECT_THAT(load_error(folder.path(), {600, 0}, {1, kColumns}), HasSubstr(where));
  ASSERT_EQ(verify(folder.path()).size(), 1u);
  EXPECT_THAT(verify(folder.path())[0], HasSubstr(where));
}

TEST_F(DamagedCheckpoint, ATruncatedOrLengthenedFileIsNamedWithItsEnd) {
  const std::uint64_t size = fs::file_size(data);
  fs::resize_file(data, size - 1);
  EXPECT_THAT(load_error(folder.path()),
              HasSubstr(concat(data.string(), ": must be as long as its manifest says, ", size,
                               " bytes.\n  got:  the end of the file at byte ", size - 1)));
  fs::resize_file(data, size + 5);
  EXPECT_THAT(load_error(folder.path()), HasSubstr(concat("more from byte ", size, " on")));
  fs::resize_file(data, 0);
  EXPECT_THAT(load_error(folder.path()), HasSubstr("the end of the file at byte 0"));
}

TEST_F(DamagedCheckpoint, MissingPiecesAreNamed) {
  fs::rename(data, folder.path() / "aside");
  EXPECT_THAT(load_error(folder.path()), HasSubstr(data.string()));
  fs::rename(folder.path() / "aside", data);
  fs::rename(iteration / "manifest.json", iteration / "aside");
  EXPECT_THAT(load_error(folder.path()), HasSubstr("latest: must name a checkpoint in the same folder"));
  EXPECT_TRUE(has_checkpoint(folder.path())) << "a damaged checkpoint is not the same as none";
  fs::rename(iteration / "aside", iteration / "manifest.json");
  write_file(folder.path() / "latest", "../../etc\n");
  EXPECT_THAT(load_error(folder.path()), HasSubstr("\"../../etc\""));
  EXPECT_THAT(load_error(folder.path() / "nowhere"), HasSubstr("nowhere, which does not exist"));
}

TEST_F(DamagedCheckpoint, AnotherShapeDtypeOrNameIsAnErrorThatSaysBoth) {
  const auto error = [&](const ShardedTensor& tensor) -> std::string {
    try {
      load(folder.path(), {tensor});
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error({"w", {4, 4}, {0, 0}, at::zeros({4, 4})}),
              HasSubstr("\"w\" must be F32 [4, 4].\n  got:  F32 [1024, 1024]"));
  EXPECT_THAT(error({"w", {kRows, kColumns}, {0, 0}, at::zeros({kRows, kColumns}, at::kLong)}),
              HasSubstr("\"w\" must be I64"));
  EXPECT_THAT(error({"v", {4}, {0}, at::zeros({4})}), HasSubstr("must hold the tensor \"v\""));
}

TEST_F(DamagedCheckpoint, AHeaderThatContradictsTheManifestIsFoundByVerify) {
  Manifest manifest = read_manifest(iteration);
  manifest.tensors["w"].dtype = "I32";
  write_file(iteration / "manifest.json", manifest_text(manifest));
  const std::vector<std::string> problems = verify(folder.path());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr(data.string() + ": must hold a slice of \"w\" at byte"));
}

TEST_F(DamagedCheckpoint, LatestChangesLast) {
  const fs::path temporary = temporary_folder(folder.path(), "iter_0000002");
  fs::create_directory(temporary);
  write_file(temporary / "manifest.json", "{}");
  EXPECT_THROW(publish(folder.path(), temporary, "missing/iter_0000002"), std::exception);  // it cannot get its name
  EXPECT_EQ(load_error(folder.path()), "no error");
}

TEST_F(DamagedCheckpoint, DeepNestingIsRefusedBeforeItExhaustsTheStack) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  write_file(iteration / "manifest.json",
             R"({"format":"megatron-cpp checkpoint","version":1,"xxh3":"0000000000000000","body":)" + deep + "}");
  EXPECT_THAT(load_error(folder.path()), HasSubstr("manifest.json: must be a whole checkpoint manifest.\n"
                                                   "  got:  values nested deeper than 16 levels"));
  const std::string header = R"({"w":)" + deep + "}";
  const ReadAt read = [&](std::uint64_t offset, std::span<std::byte> into) {
    const std::uint64_t length = header.size();
    const std::string file = std::string(reinterpret_cast<const char*>(&length), 8) + header;
    std::memcpy(into.data(), file.data() + offset, into.size());
  };
  try {
    read_safetensors(read, header.size() + 8, "model.safetensors");
    FAIL() << "read";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("model.safetensors"));
    EXPECT_THAT(e.what(), HasSubstr("nested deeper than 16 levels"));
  }
}

TEST_F(DamagedCheckpoint, SavingRemovesNothingButItsOwnLeftovers) {
  for (const char* name : {".tmp-iter_0000009", ".tmp-mine", ".tmp-iter_0000009x", ".tmp-iter_"})
    fs::create_directories(folder.path() / name / "deep");
  write_file(folder.path() / ".tmp-iter_0000008", "a file");
  save_matrix(folder.path(), 2);
  EXPECT_FALSE(fs::exists(folder.path() / ".tmp-iter_0000009"));
  for (const char* name : {".tmp-mine/deep", ".tmp-iter_0000009x/deep", ".tmp-iter_/deep", ".tmp-iter_0000008"})
    EXPECT_TRUE(fs::exists(folder.path() / name)) << name;
}

TEST_F(DamagedCheckpoint, EveryErrorNamesTheNewestWholeOneBesideIt) {
  for (const std::int64_t other : {2, 3, 4, 5}) save_matrix(folder.path(), other);
  const auto other = [&](int number) { return (folder.path() / iteration_name(number)).string(); };
  const auto file = [&](int number) { return other(number) + "/rank_00000.safetensors"; };
  fs::remove(file(4));
  mark_damaged(other(3), "a byte");
  write_file(fs::path(other(2)) / "manifest.json", "{");
  const std::string named = "fix:  load another checkpoint of the run: " + other(1);
  flip_byte(file(5), (2 << 20) + 17);
  EXPECT_THAT(load_error(other(5)), EndsWith(named)) << "a byte";
  fs::resize_file(file(5), 100);
  EXPECT_THAT(load_error(other(5)), EndsWith(named)) << "a short file";
  fs::remove(file(5));
  EXPECT_THAT(load_error(other(5)), EndsWith(named)) << "no file";
  EXPECT_THAT(load_error(other(2)), EndsWith(named)) << "a manifest that is none";
  fs::remove(fs::path(other(2)) / "manifest.json");
  EXPECT_THAT(load_error(other(2)), EndsWith("load another checkpoint of the run: " + other(1))) << "no manifest";
  fs::remove(data);
  EXPECT_THAT(load_error(iteration), EndsWith("fix:  load another checkpoint of the run")) << "none is whole";
}

TEST_F(DamagedCheckpoint, MissingFilesAreListedWithoutReading) {
  const Manifest manifest = read_manifest(iteration);
  EXPECT_EQ(missing_files(iteration, manifest), std::vector<std::string>{});
  flip_byte(data, (2 << 20) + 17);
  EXPECT_EQ(missing_files(iteration, manifest), std::vector<std::string>{}) << "no data is read";
  fs::resize_file(data, 5000);
  const auto short_one = missing_files(iteration, manifest);
  ASSERT_EQ(short_one.size(), 1u);
  EXPECT_THAT(short_one[0], HasSubstr("the end of the file at byte 5000"));
  fs::remove(data);
  const auto missing = missing_files(iteration, manifest);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_THAT(missing[0], HasSubstr(data.string() + ": must be a file of the checkpoint"));
}

TEST_F(DamagedCheckpoint, AFileInPlaceOfTheFolderIsNoDamage) {
  const std::string error = load_error(iteration / "manifest.json");
  EXPECT_THAT(error, HasSubstr("manifest.json: a folder must be named"));
  EXPECT_THAT(error, EndsWith("got:  a file\n  fix:  " + iteration.string()));
  EXPECT_EQ(verify(iteration / "manifest.json"), std::vector<std::string>{error});
}

TEST_F(DamagedCheckpoint, APipeInPlaceOfAFileIsDamageAtOnce) {
  fs::remove(data);
  ASSERT_EQ(::mkfifo(data.c_str(), 0600), 0);
  EXPECT_THAT(load_error(iteration), HasSubstr("no regular file"));
  EXPECT_THAT(verify(iteration), ElementsAre(HasSubstr("no regular file")));
  EXPECT_THAT(missing_files(iteration, read_manifest(iteration)), ElementsAre(HasSubstr("no regular file")));
  fs::remove(iteration / "manifest.json");
  ASSERT_EQ(::mkfifo((iteration / "manifest.json").c_str(), 0600), 0);
  EXPECT_THAT(load_error(iteration), HasSubstr("no regular file"));
}

/// Saves `first`, first + 1, … until it is killed; each twice, so that the second replaces the first. Writes a byte to
/// `told` after each. The newest `keep` stay.
[[noreturn]] void save_for_ever(const fs::path& folder, std::int64_t first, int told, int keep = 2) {
  for (std::int64_t save = 2 * first;; ++save) {
    save_matrix(folder, save / 2, keep);
    if (::write(told, "s", 1) != 1) ::_exit(1);
  }
}

/// A process saves all the while, of which the newest (the parameter) stay.
class VerifyBesideARun : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    save_matrix(folder(), 1);
    ASSERT_EQ(::pipe(ends_), 0);
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      at::set_num_threads(1);  // a pool of threads does not survive fork()
      save_for_ever(folder(), 2, ends_[1], GetParam());
    }
    ::close(ends_[1]);
  }
  void TearDown() override {
    ::kill(child_, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child_, &status, 0), child_);
    ::close(ends_[0]);
  }
  const fs::path& folder() const { return folder_.path(); }
  void wait_for_save() {
    char told = 0;
    ASSERT_EQ(::read(ends_[0], &told, 1), 1);
  }

 private:
  TemporaryFolder folder_;
  int ends_[2] = {};
  pid_t child_ = 0;
};

TEST_P(VerifyBesideARun, ThatSavesAndPrunesReportsNoDamage) {
  int removed = 0;
  for (int look = 0; look < 40; ++look) {
    ASSERT_NO_FATAL_FAILURE(wait_for_save());
    Verified newest;
    EXPECT_EQ(verify(folder(), &newest), std::vector<std::string>{}) << "the newest stays";
    EXPECT_THAT(newest.folder.string(), EndsWith(std::to_string(newest.manifest.iteration)));
    // The oldest of the two that are kept is the next to go.
    std::vector<fs::path> oldest = candidates(folder());
    try {
      for (const std::string& problem : verify(oldest.back()))
        EXPECT_THAT(problem, HasSubstr("which does not exist")) << "it had gone before it was looked at";
    } catch (const std::runtime_error& e) {
      EXPECT_THAT(e.what(), HasSubstr("removed or replaced meanwhile"));
      ++removed;
    }
  }
  testing::Test::RecordProperty("removed", removed);
}

TEST_P(VerifyBesideARun, ThatSavesAndPrunesReadsTheNewest) {
  for (int look = 0; look < 40; ++look) {
    ASSERT_NO_FATAL_FAILURE(wait_for_save());
    std::string error;
    EXPECT_NO_THROW(read_newest(folder(), [&] {
      error = load_error(folder());
      if (error != "no error") throw std::runtime_error(error);
    }));
    EXPECT_EQ(error, "no error");
  }
}

INSTANTIATE_TEST_SUITE_P(Kept, VerifyBesideARun, testing::Values(1, 2));

TEST(KilledWhileSaving, LatestIsAlwaysAWholeCheckpointOfALaterIteration) {
  const TemporaryFolder folder;
  save_matrix(folder.path(), 1);
  const char* const named = std::getenv("MEGATRON_TEST_SEED");
  const auto seed = named != nullptr ? static_cast<unsigned>(std::stoull(named)) : std::random_device()();
  SCOPED_TRACE(concat("again: MEGATRON_TEST_SEED=", seed));
  std::mt19937 random(seed);
  std::int64_t latest = 1;
  for (int kill_number = 0; kill_number < 10; ++kill_number) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      at::set_num_threads(1);  // a pool of threads does not survive fork()
      save_for_ever(folder.path(), latest + 1, ends[1]);
    }
    ::close(ends[1]);
    char told = 0;
    ASSERT_EQ(::read(ends[0], &told, 1), 1) << "it ended before it had saved anything";
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 100'000));  // the moment does not matter: it is what varies
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ::close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself: " << status;

    const at::Tensor loaded = at::zeros({kRows, kColumns});
    const std::int64_t iteration = load(folder.path(), {{"w", {kRows, kColumns}, {0, 0}, loaded}}).iteration;
    EXPECT_TRUE(at::equal(loaded, matrix(iteration))) << "iteration " << iteration;
    EXPECT_EQ(verify(folder.path()), std::vector<std::string>{});
    EXPECT_GT(iteration, latest);
    latest = iteration;
  }
}

}  // namespace
}  // namespace megatron::checkpoint
