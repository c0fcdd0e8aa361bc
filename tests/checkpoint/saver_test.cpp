#include "megatron/checkpoint/save/saver.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/save/coordinator.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/checkpoint/support.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::int64_t kSize = std::int64_t{3} << 20;  // elements: 12 MiB, more than a writer's buffers

/// Rank `rank`'s half of a vector of 2 x kSize numbers.
ShardedTensor half(int rank, const at::Tensor& data) { return {"w", {2 * kSize}, {rank * kSize}, data}; }

at::Tensor loaded(const fs::path& folder) {
  const at::Tensor whole = at::zeros({2 * kSize});
  load(folder, {{"w", {2 * kSize}, {0}, whole}});
  return whole;
}

TEST(SaveMessage, SaysThatMemoryRanOut) {
  EXPECT_THAT(attempt([]() -> std::string { throw std::bad_alloc(); }), HasSubstr("Memory must hold"));
}

TEST(Saver, WritesNothingInAFolderThatIsNoLongerTheRuns) {
  const TemporaryFolder folder;
  for (const int asked : {0, 1, 2}) {  // before a save, before it is published, before an older one is removed
    fs::remove_all(folder.path());
    fs::create_directories(folder.path());
    comm::run_ranks(2, [&](const comm::Group& world) {
      const at::Tensor data = at::zeros({kSize});
      int left = 2 + asked;
      Saver saver(folder.path(), world, {.keep = {.last = 1}, .require_folder = [&] {
                                           if (left-- == 0) throw std::runtime_error("it is another's now");
                                         }});
      saver.begin(1, {half(world.rank(), data)}, {});
      const auto second = [&] { saver.begin(2, {half(world.rank(), data)}, {}); };
      if (asked == 2) return second();  // the new one stands: a warning
      std::string said;
      try {
        second();
      } catch (const SaveError& error) {
        said = error.what();
      }
      EXPECT_THAT(said, HasSubstr("checkpoint not saved: ")) << asked;
      EXPECT_THAT(said, HasSubstr("it is another's now")) << asked;
    });
    EXPECT_TRUE(fs::exists(folder.path() / "iter_0000001")) << asked;
    EXPECT_EQ(fs::exists(folder.path() / "iter_0000002"), asked == 2);
    EXPECT_TRUE(asked == 1 || !fs::exists(folder.path() / ".tmp-iter_0000002")) << asked;
  }
}

TEST(Saver, StoresWhatWasThereWhenTheSaveBeganWhateverHappensMeanwhile) {
  const TemporaryFolder folder;
  for (const bool asynchronous : {false, true}) {
    comm::run_ranks(2, [&](const comm::Group& world) {
      Saver saver(folder.path(), world, {.asynchronous = asynchronous});
      const at::Tensor data = at::zeros({kSize});
      for (int iteration = 1; iteration <= 4; ++iteration) {
        data.fill_(10 * iteration + world.rank());
        saver.begin(iteration, {half(world.rank(), data)}, {{"at", std::to_string(iteration)}});
        saver.before_change();
        data.fill_(-1);
        saver.poll();
        EXPECT_TRUE(asynchronous || !saver.under_way());
      }
      saver.finish();
      EXPECT_FALSE(saver.under_way());
    });
    for (int iteration = 1; iteration <= 4; ++iteration) {
      const fs::path of = folder.path() / iteration_name(iteration);
      EXPECT_EQ(verify(of), std::vector<std::string>{});
      EXPECT_TRUE(at::equal(loaded(of).narrow(0, 0, kSize), at::full({kSize}, 10.0 * iteration)));
      EXPECT_TRUE(at::equal(loaded(of).narrow(0, kSize, kSize), at::full({kSize}, 10.0 * iteration + 1)));
      EXPECT_EQ(read_manifest(of).metadata.at("at"), std::to_string(iteration));
    }
    EXPECT_EQ(read_file(folder.path() / "latest"), "iter_0000004\n");
  }
}

TEST(Saver, CopiesSlicesThatAreNotContiguousAtOnce) {
  const TemporaryFolder folder;
  const at::Tensor matrix = at::arange(12, at::kFloat).view({3, 4});
  Saver saver(folder.path(), {}, {.asynchronous = true});
  saver.begin(1, {{"columns", {3, 2}, {0, 0}, matrix.narrow(1, 1, 2)}}, {});
  matrix.fill_(0);  // without before_change(): these were copied
  saver.finish();
  const at::Tensor got = at::zeros({3, 2});
  load(folder.path(), {{"columns", {3, 2}, {0, 0}, got}});
  EXPECT_TRUE(at::equal(got, at::arange(12, at::kFloat).view({3, 4}).narrow(1, 1, 2)));
}

TEST(Saver, LeavesCopiesToTheirOwnersAndFollowsWhatRanksHold) {
  const TemporaryFolder folder;
  comm::run_ranks(2, [&](const comm::Group& world) {
    Saver saver(folder.path(), world, {});
    const at::Tensor data = at::full({8}, 1.0 + world.rank());
    // Rank 1's copy overlaps what rank 0 has, cut in another place.
    const auto tensor = [&](std::int64_t begin, std::int64_t end, bool is_copy) {
      return ShardedTensor{"v", {8}, {begin}, data.narrow(0, begin, end - begin), is_copy};
    };
    saver.begin(1, world.rank() == 0 ? std::vector{tensor(0, 8, false)} : std::vector{tensor(2, 5, true)}, {});
    saver.begin(2, world.rank() == 0 ? std::vector{tensor(0, 3, false)} : std::vector{tensor(3, 8, false)}, {});
  });
  const at::Tensor first = at::zeros({8}), second = at::zeros({8});
  load(folder.path() / "iter_0000001", {{"v", {8}, {0}, first}});
  load(folder.path() / "iter_0000002", {{"v", {8}, {0}, second}});
  EXPECT_TRUE(at::equal(first, at::full({8}, 1.0)));
  EXPECT_TRUE(at::equal(second.narrow(0, 3, 5), at::full({5}, 2.0)));
}

TEST(Saver, AnErrorOfOneRankIsThrownOnEveryRankAndTheNextSaveWorks) {
  const TemporaryFolder folder;
  for (const int failing : {0, 1, 2}) {
    std::vector<std::string> errors(3);
    comm::run_ranks(3, [&](const comm::Group& world) {
      Saver saver(folder.path(), world, {.asynchronous = true});
      const at::Tensor data = at::full({1000}, 1.0);
      const ShardedTensor tensor{"w", {3000}, {1000 * world.rank()}, data};
      saver.begin(1, {tensor}, {});
      saver.finish();
      // A folder where one rank's file belongs.
      const fs::path taken = temporary_folder(folder.path(), "iter_0000002") / data_file_name(failing);
      if (world.rank() == 0) fs::create_directories(taken);
      world.barrier();
      try {
        saver.begin(2, {tensor}, {});
        saver.before_change();
        while (saver.under_way()) saver.poll();
      } catch (const std::runtime_error& e) {
        errors[static_cast<std::size_t>(world.rank())] = e.what();
      }
      EXPECT_FALSE(saver.under_way());
      EXPECT_FALSE(fs::exists(folder.path() / "iter_0000002"));
      world.barrier();
      saver.begin(3, {tensor}, {});
      saver.finish();
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error, HasSubstr(concat("checkpoint not saved: rank ", failing, ": "))) << failing;
    EXPECT_EQ(read_file(folder.path() / "latest"), "iter_0000003\n");
    EXPECT_EQ(verify(folder.path() / "iter_0000001"), std::vector<std::string>{});
    EXPECT_EQ(verify(folder.path() / "iter_0000003"), std::vector<std::string>{});
  }
}

TEST(Saver, KeepsTheNewestAndEveryNth) {
  const TemporaryFolder folder;
  Saver saver(folder.path(), {}, {.keep = {.last = 2, .every = 4}});
  const at::Tensor data = at::full({4}, 1.0);
  for (int iteration = 1; iteration <= 11; ++iteration) saver.begin(iteration, {{"w", {4}, {0}, data}}, {});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("iter_0000004", "iter_0000008", "iter_0000010", "iter_0000011", "latest"));
}

TEST(Saver, GivesUpASaveThatIsNotFinishedAndLeavesNothingThatLooksWhole) {
  const TemporaryFolder folder;
  const at::Tensor data = at::full({kSize}, 1.0);
  {
    Saver saver(folder.path(), {}, {.asynchronous = true});
    saver.begin(1, {{"w", {kSize}, {0}, data}}, {});
    saver.before_change();
  }
  EXPECT_FALSE(fs::exists(folder.path() / "iter_0000001"));
  EXPECT_FALSE(has_checkpoint(folder.path()));
}

/// In a child whose files may have at most `limit` bytes: saves iteration 2; what came of it.
std::string save_with_little_space(const fs::path& folder, rlim_t limit, bool asynchronous) {
  const fs::path said = folder / "said";
  const pid_t child = ::fork();
  if (child == 0) {
    at::set_num_threads(1);  // a pool of threads does not survive fork()
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limits{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &limits);
    std::string error = "no error";
    try {
      Saver saver(folder, {}, {.asynchronous = asynchronous});
      saver.begin(2, {{"w", {kSize}, {0}, at::full({kSize}, 2.0)}}, {});
      saver.before_change();
      saver.finish();
    } catch (const std::runtime_error& e) {
      error = e.what();
    }
    write_file(said, error);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? read_file(said) : concat("the child ended with ", status);
}

TEST(Saver, AFullDiskIsAClearErrorAndTheCheckpointBeforeStays) {
  const TemporaryFolder folder;
  save(folder.path(), 1, {{"w", {kSize}, {0}, at::full({kSize}, 1.0)}}, {}, {});
  for (const bool asynchronous : {false, true}) {
    EXPECT_THAT(save_with_little_space(folder.path(), rlim_t{5} << 20, asynchronous),
                HasSubstr("rank_00000.safetensors: cannot be written.\n  got:  File too large"));
    EXPECT_FALSE(fs::exists(folder.path() / "iter_0000002"));
    EXPECT_FALSE(fs::exists(folder.path() / ".tmp-iter_0000002"));
    EXPECT_EQ(verify(folder.path()), std::vector<std::string>{});
    EXPECT_EQ(read_file(folder.path() / "latest"), "iter_0000001\n");
  }
}

}  // namespace
}  // namespace megatron::checkpoint
