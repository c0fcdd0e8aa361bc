#include "megatron/checkpoint/files/folder.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/checkpoint/support.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Error = ConfigError>
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() {
    for (const int iteration : {1, 2, 3}) save_one(iteration);
  }
  void save_one(int iteration, int keep_last = 0) {
    save(folder(), iteration, {{"v", {4}, {0}, at::full({4}, double(iteration))}}, {}, {}, keep_last);
  }
  const fs::path& folder() const { return temporary_.path(); }
  fs::path iteration(int number) const { return folder() / iteration_name(number); }
  fs::path data(int number) const { return iteration(number) / "rank_00000.safetensors"; }
  /// The iterations that are there.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder()))
      if (entry.is_directory()) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
    std::vector<std::string> names;
    for (const fs::path& path : paths) names.push_back(path.filename());
    return names;
  }

 private:
  const TemporaryFolder temporary_;
};

TEST_F(CheckpointFolder, ALatestThatSaysNothingOrNamesAMissingOneHidesNoWholeOne) {
  write_file(folder() / "latest", "iter_99999999999999999999\n");
  EXPECT_THAT(names_of(candidates(folder())), ElementsAre("iter_0000003", "iter_0000002", "iter_0000001"));
  write_file(folder() / "latest", "iter_0000000\n");
  EXPECT_THAT(names_of(candidates(folder())),
              ElementsAre("iter_0000000", "iter_0000003", "iter_0000002", "iter_0000001"));
  write_file(folder() / "latest", "iter_0000002\n");
  EXPECT_THAT(names_of(candidates(folder())), ElementsAre("iter_0000002", "iter_0000001"));
}

TEST_F(CheckpointFolder, ErrorsNameTheWholeOnesAndWhatAManifestIs) {
  fs::remove(iteration(3) / "manifest.json");
  fs::remove(data(2));
  const std::string whole = "name one that is whole: " + iteration(1).string();
  EXPECT_THAT(error_of<Damage>([&] { find_checkpoint(folder()); }),
              AllOf(HasSubstr("iter_0000003, which is not there or has no manifest.json"), HasSubstr(whole)));
  write_file(folder() / "latest", "nonsense\n");
  EXPECT_THAT(error_of<Damage>([&] { find_checkpoint(folder()); }), AllOf(HasSubstr("nonsense"), HasSubstr(whole)));
  fs::remove(folder() / "latest");
  EXPECT_THAT(error_of<Damage>([&] { find_checkpoint(folder()); }), HasSubstr(whole));
  for (const fs::path& named : {iteration(3), iteration(3) / ""})
    EXPECT_THAT(error_of<Damage>([&] { find_checkpoint(named); }),
                AllOf(HasSubstr("iter_0000003/manifest.json: a checkpoint must have its manifest"), HasSubstr("fix:")));
}

TEST_F(CheckpointFolder, ASlashAtTheEndChangesNothing) {
  EXPECT_EQ(find_checkpoint(iteration(1) / ""), iteration(1));
  EXPECT_THAT(candidates(iteration(1) / ""), ElementsAre(iteration(1)));
  for (const fs::path& named : {iteration(1), iteration(1) / "", fs::path("iter_0000001")})
    EXPECT_THAT(error_of([&] { checkpoints_folder(named); }), HasSubstr("must be named"));
  EXPECT_EQ(checkpoints_folder(folder()), folder());
}

TEST_F(CheckpointFolder, DamagedOnesCountForNothingAndTheLastWholeOneStays) {
  for (const int number : {2, 3}) fs::remove(data(number));
  EXPECT_THAT(superfluous(folder(), {.last = 1}), ElementsAre());
  save_one(4);
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 2})), ElementsAre()) << "4 and 1 are whole";
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 1})),
              ElementsAre("iter_0000001", "iter_0000002", "iter_0000003"));
}

TEST_F(CheckpointFolder, OnesThatARunHasPassedOverGoBeforeOlderOnes) {
  mark_damaged(iteration(3), "a byte");
  mark_damaged(iteration(2), "a byte");
  write_file(folder() / "latest", "iter_0000001\n");
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 2})), ElementsAre("iter_0000002", "iter_0000003"));
  fs::remove(data(1));
  EXPECT_THAT(superfluous(folder(), {.last = 1}), ElementsAre()) << "latest itself is damaged";
  save_one(4, 2);
  save_one(5, 2);
  EXPECT_THAT(names(), ElementsAre("iter_0000004", "iter_0000005"));
}

TEST_F(CheckpointFolder, WholeOnesAfterALatestThatWasSetBackStay) {
  write_file(folder() / "latest", "iter_0000002\n");
  mark_damaged(iteration(3), "a byte");
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 1})), ElementsAre("iter_0000001", "iter_0000003"));
  remove_mark(iteration(3));
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 1})), ElementsAre("iter_0000001"));
}

TEST_F(CheckpointFolder, OnesThatAreMarkedDamagedCountForNothing) {
  mark_damaged(iteration(2), "a byte");
  EXPECT_THAT(superfluous(folder(), {.last = 2}), ElementsAre()) << "3 and 1 are whole";
}

TEST_F(CheckpointFolder, AMarkGoesWhenTheCheckpointIsWrittenAnew) {
  mark_damaged(iteration(3), "a byte");
  save_one(3);
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 1})), ElementsAre("iter_0000001", "iter_0000002"));
}

// Their weights may be of no use: none that was good goes for them.
TEST_F(CheckpointFolder, OnesAfterStepsThatWereNotFiniteDoNotCountAndGoOnceAnotherFollows) {
  const auto save_nonfinite = [&](int iteration, int keep_last = 2) {
    save(folder(), iteration, {{"v", {4}, {0}, at::full({4}, double(iteration))}}, {{kNonfiniteSteps, "2"}}, {},
         keep_last);
  };
  save_nonfinite(4);
  EXPECT_THAT(names(), ElementsAre("iter_0000002", "iter_0000003", "iter_0000004"));
  save_nonfinite(5);
  EXPECT_THAT(names(), ElementsAre("iter_0000002", "iter_0000003", "iter_0000005"));
  EXPECT_THAT(superfluous(folder(), {.last = 2, .every = 5}), ElementsAre());
  save_nonfinite(5, 9);
  EXPECT_THAT(superfluous(folder(), {.last = 9}), ElementsAre());
  save_one(6, 2);
  EXPECT_THAT(names(), ElementsAre("iter_0000003", "iter_0000006"));
  for (const int number : {3, 6}) {
    fs::remove_all(iteration(number));
    save_nonfinite(number, 0);
  }
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 1})), ElementsAre("iter_0000003"));
  EXPECT_THAT(superfluous(folder(), {.last = 2}), ElementsAre());
  for (const int number : {7, 8}) save_nonfinite(number, 0);
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 3})), ElementsAre("iter_0000003")) << "no more than too many";
  for (const int number : {7, 8}) fs::remove_all(iteration(number));
  write_file(folder() / "latest", "iter_0000006\n");
  write_file(iteration(6) / "manifest.json", "{}");
  EXPECT_THAT(superfluous(folder(), {.last = 1}), ElementsAre()) << "nothing else is whole";
}

TEST_F(CheckpointFolder, OnesOfANewerVersionAreNeitherReplacedNorRemoved) {
  const std::string newer = R"({"format":"megatron-cpp checkpoint","version":2})";
  for (const int number : {1, 3}) write_file(iteration(number) / "manifest.json", newer);
  EXPECT_THAT(newer_iterations(folder()), ElementsAre(1, 3));
  EXPECT_THROW(check_structure(iteration(3)), NewerVersion);
  write_file(folder() / "latest", "iter_0000002\n");
  EXPECT_THAT(superfluous(folder(), {.last = 1}), ElementsAre()) << "3, which was skipped, and 1 stay";
  EXPECT_THAT(error_of<std::runtime_error>([&] { save_one(3); }),
              AllOf(HasSubstr("A checkpoint of a newer version is not replaced"), HasSubstr(iteration(3).string()),
                    HasSubstr("--train.out")));
  EXPECT_EQ(read_file(iteration(3) / "manifest.json"), newer);
  EXPECT_EQ(read_file(folder() / "latest"), "iter_0000002\n");
  save_one(4, 1);
  EXPECT_THAT(names(), ElementsAre("iter_0000001", "iter_0000003", "iter_0000004"));
}

TEST_F(CheckpointFolder, AMarkCanBeTakenAway) {
  mark_damaged(iteration(2), "a byte");
  EXPECT_TRUE(is_marked_damaged(iteration(2)));
  remove_mark(iteration(2));
  EXPECT_FALSE(is_marked_damaged(iteration(2)));
  EXPECT_THAT(names_of(superfluous(folder(), {.last = 2})), ElementsAre("iter_0000001")) << "2 counts again";
}

TEST_F(CheckpointFolder, WhatWasReplacedAndCannotBeRemovedIsNoFailureOfTheSave) {
  const fs::path temporary = temporary_folder(folder(), "iter_0000003");
  fs::copy(iteration(2), temporary);
  fs::permissions(folder(), fs::perms::all);
  fs::permissions(iteration(3), static_cast<fs::perms>(0555));  // cannot be emptied
  testing::internal::CaptureStderr();
  const int self = ::setfsuid(65534);  // where the superuser runs this, whom permissions do not stop
  EXPECT_NO_THROW(publish(folder(), temporary, "iter_0000003"));
  ::setfsuid(static_cast<uid_t>(self));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: " + temporary.string()), HasSubstr("is not removed")));
  EXPECT_EQ(read_manifest(iteration(3)).iteration, 2);
  EXPECT_EQ(read_file(folder() / "latest"), "iter_0000003\n");
  fs::permissions(temporary, fs::perms::all);
}

TEST_F(CheckpointFolder, ASaveThatLatestCannotNameSaysThatItIsThere) {
  fs::remove(folder() / "latest");
  fs::create_directories(folder() / "latest/not a file");
  EXPECT_THAT(error_of<std::runtime_error>([&] { save_one(4); }),
              AllOf(HasSubstr(iteration(4).string() + " is whole, but"), HasSubstr("latest")));
  EXPECT_NO_THROW(check_structure(iteration(4)));
  EXPECT_FALSE(fs::exists(temporary_folder(folder(), "iter_0000004")));
}

TEST_F(CheckpointFolder, ReplacingByRenamingLosesNothingWhereverItStops) {
  const fs::path temporary = temporary_folder(folder(), "iter_0000003");
  fs::copy(iteration(2), temporary);
  replace_by_renaming(temporary, iteration(3));
  EXPECT_EQ(read_manifest(iteration(3)).iteration, 2);
  EXPECT_THAT(names(), ElementsAre("iter_0000001", "iter_0000002", "iter_0000003"));

  fs::rename(iteration(3), folder() / ".old-iter_0000003");  // killed between the renames
  const auto found = candidates(folder());
  EXPECT_THAT(names_of(found), ElementsAre("iter_0000003", ".old-iter_0000003", "iter_0000002", "iter_0000001"));
  EXPECT_EQ(read_manifest(found[1]).iteration, 2);
  prepare_folder(folder());
  EXPECT_TRUE(fs::exists(folder() / ".old-iter_0000003")) << "there is no other yet";
  save_one(3);
  prepare_folder(folder());
  EXPECT_FALSE(fs::exists(folder() / ".old-iter_0000003"));
}

TEST_F(CheckpointFolder, ReshardingReplacesNoOtherCheckpointAndDisturbsNoRun) {
  const TemporaryFolder other;
  save(other.path() / "run/checkpoints", 3, {{"v", {4}, {0}, at::full({4}, 7.0)}}, {}, {});
  for (const char* to : {"run/checkpoints", "run"})
    EXPECT_THAT(error_of([&] { reshard(folder(), other.path() / to, {}); }), HasSubstr("must not hold checkpoints"));
  fs::create_directories(other.path() / "live/.tmp-iter_0000009");
  std::optional<FolderLock> run(std::in_place, other.path() / "live", "");
  EXPECT_THAT(error_of([&] { reshard(folder(), other.path() / "live", {}); }), HasSubstr("another run holds"));
  EXPECT_TRUE(fs::exists(other.path() / "live/.tmp-iter_0000009"));
  run.reset();
  EXPECT_EQ(error_of([&] { reshard(folder(), other.path() / "live", {}); }), "no error");
}

TEST_F(CheckpointFolder, ALockKnowsWhetherItsNameStillMeansWhatItHolds) {
  const TemporaryFolder place;
  const fs::path run = place.path() / "run", moved = place.path() / "moved";
  fs::create_directories(run);
  FolderLock lock(run, "another");
  const auto lost = [&] {
    try {
      lock.require_held();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(lost(), "");
  fs::remove(run / ".lock");
  EXPECT_TRUE(lock.is_held()) << "the file alone is made again";
  EXPECT_THAT(error_of([&] { FolderLock(run, "another"); }), HasSubstr("another run holds")) << "and held";
  fs::rename(run, moved);
  EXPECT_FALSE(lock.is_held());
  EXPECT_THAT(lost(), HasSubstr("was removed or renamed"));
  fs::create_directories(run);
  EXPECT_FALSE(lock.is_held()) << "another folder of that name";
  EXPECT_FALSE(fs::exists(run / ".lock"));
  FolderLock other(run, "another");
  EXPECT_TRUE(other.is_held());
  EXPECT_THAT(lost(), HasSubstr("is another folder now"));
  fs::remove(run / ".lock");
  FolderLock third(run, "another");
  EXPECT_FALSE(other.is_held()) << "the third has it";
  EXPECT_TRUE(third.is_held());
}

TEST(FolderLock, SaysWhoHasStartedTheJob) {
  const TemporaryFolder place;
  const fs::path file = place.path() / ".lock";
  setenv(kSupervisorVariable, "one of them", 1);
  { const FolderLock lock(place.path(), "another"); }
  EXPECT_EQ(read_file(file), "one of them");
  unsetenv(kSupervisorVariable);
  { const FolderLock lock(place.path(), "another"); }
  EXPECT_EQ(read_file(file), "");
}

TEST(FolderLock, SaysThatTheProcessMayOpenNoMoreFiles) {
  const TemporaryFolder place;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string error = error_of([&] { FolderLock(place.path(), "another"); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(error, HasSubstr("ulimit -n"));
}

TEST_F(CheckpointFolder, ReshardingWritesIntoNoCheckpoint) {
  const TemporaryFolder other;
  save(other.path(), 3, {{"v", {4}, {0}, at::full({4}, 7.0)}}, {}, {});
  const fs::path checkpoint = other.path() / iteration_name(3);
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(other.path())) found.push_back(entry.path().string());
    std::sort(found.begin(), found.end());
    return found;
  };
  const auto before = names();
  const TemporaryFolder aside;
  fs::create_symlink(checkpoint, aside.path() / "link");
  for (const fs::path& to : {checkpoint, checkpoint / "", checkpoint / "new", checkpoint / "new/deeper",
                             other.path() / "x/.." / iteration_name(3), aside.path() / "link/new"})
    EXPECT_THAT(error_of([&] { reshard(folder(), to, {}); }), HasSubstr("must not hold checkpoints, nor lie in one"))
        << to;
  EXPECT_THAT(error_of([&] { reshard(other.path(), checkpoint / "own", {}); }), HasSubstr("nor lie in one"));
  EXPECT_EQ(names(), before);
  fs::remove(checkpoint / "manifest.json");
  EXPECT_THAT(error_of([&] { reshard(folder(), checkpoint / "new", {}); }), HasSubstr("nor lie in one"));
}

TEST_F(CheckpointFolder, AManifestThatIsNotOfItsFolderIsDamage) {
  ASSERT_EQ(verify(iteration(3)), std::vector<std::string>{});
  Manifest manifest = read_manifest(iteration(3));
  manifest.iteration = 2;
  write_file(iteration(3) / "manifest.json", manifest_text(manifest));
  EXPECT_THAT(error_of([&] { check_structure(iteration(3)); }), HasSubstr("the iteration that its folder's name says"));
  EXPECT_THAT(verify(iteration(3)), ElementsAre(HasSubstr("got:  iteration 2")));
  manifest.iteration = 3;
  manifest.tensors.clear();
  write_file(iteration(3) / "manifest.json", manifest_text(manifest));
  EXPECT_THAT(error_of([&] { check_structure(iteration(3)); }), HasSubstr("must hold tensors"));
  EXPECT_THAT(verify(iteration(3)), ElementsAre(HasSubstr("must hold tensors")));
}

/// `more` files can be opened, at most.
class FewFiles {
 public:
  explicit FewFiles(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = ::open("/dev/null", O_RDONLY);
    ::close(lowest_free);
    const rlimit now{static_cast<rlim_t>(lowest_free + more), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(CheckpointFolder, WhatTheSystemCannotDoIsNoDamage) {
  const FewFiles none(0);
  for (const auto& work : {std::function<void()>([&] { check_structure(iteration(3)); }),
                           std::function<void()>([&] { fingerprint(iteration(3)); }),
                           std::function<void()>([&] { candidates(folder()); })}) {
    try {
      work();
      ADD_FAILURE() << "opened";
    } catch (const ConfigError& e) {
      ADD_FAILURE() << e.what();
    } catch (const std::runtime_error& e) {
      EXPECT_THAT(e.what(), HasSubstr("Too many open files"));
    }
  }
}

TEST_F(CheckpointFolder, ManyFilesNeedFewDescriptors) {
  const TemporaryFolder many;
  const at::Tensor data = at::arange(1000, at::kFloat);
  save(many.path() / "a", 1, {{"v", {1000}, {0}, data}}, {}, {});
  reshard(many.path() / "a", many.path() / "b", {.files = 250});
  const FewFiles some(120);
  const at::Tensor got = at::zeros({1000});
  load(many.path() / "b", {{"v", {1000}, {0}, got}});
  EXPECT_TRUE(at::equal(got, data));
}

TEST_F(CheckpointFolder, ARankThatWritesElsewhereHasSavedNothing) {
  const TemporaryFolder elsewhere;
  fs::create_directory(elsewhere.path() / "saved");
  fs::create_directory(folder() / "saved");
  std::vector<std::string> errors(2);
  comm::run_ranks(2, [&](const comm::Group& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    // A thread's own working folder: the two ranks' "saved" are two folders.
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir((rank == 0 ? folder() : elsewhere.path()).c_str()), 0);
    errors[rank] = error_of<std::runtime_error>([&] {
      save("saved", 1, {{"v", {8}, {4 * world.rank()}, at::full({4}, 1.0)}}, {}, world, 0);
    });
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("checkpoint not saved"), HasSubstr("rank_00001.safetensors"),
                             HasSubstr("all ranks must see one file system")));
  EXPECT_FALSE(fs::exists(folder() / "saved/iter_0000001"));
  EXPECT_FALSE(fs::exists(folder() / "saved/latest"));
}

}  // namespace
}  // namespace megatron::checkpoint
