#include "megatron/base/files/path_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "tests/testing/temporary_folder.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// What std::filesystem throws of `work`.
fs::filesystem_error thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const fs::filesystem_error& error) {
    return error;
  }
  throw std::logic_error("nothing was thrown");
}

TEST(PathError, ALinkThatLeadsBackToItselfIsAWrongPath) {
  const TemporaryFolder folder;
  const fs::path loop = folder.path() / "loop";
  fs::create_symlink(loop, loop);
  const auto error = thrown_by([&] { std::ignore = fs::exists(loop / "model"); });
  EXPECT_TRUE(is_wrong_path(error));
  EXPECT_THAT(path_error(error), AllOf(HasSubstr("got:  " + (loop / "model").string()), HasSubstr("fix:  remove")));
  EXPECT_EQ(message_of(error), path_error(error));
}

TEST(PathError, ANameThatIsTooLongIsShownByItsEnds) {
  const fs::path path = fs::path("/tmp") / std::string(1000, 'x');
  const auto error = thrown_by([&] { std::ignore = fs::is_directory(path); });
  EXPECT_TRUE(is_wrong_path(error));
  EXPECT_THAT(path_error(error),
              AllOf(HasSubstr("255 bytes"), HasSubstr("xxx…(1005 bytes)…xxx"), HasSubstr("shorter")));
  EXPECT_LT(path_error(error).size(), 600u);
}

TEST(PathError, PermissionThatIsDeniedIsAWrongPathWhereItWasLookedAtAlone) {
  const std::error_code denied = std::make_error_code(std::errc::permission_denied);
  const fs::filesystem_error looked("status", "/priv/model", denied);
  EXPECT_TRUE(is_wrong_path(looked));
  EXPECT_THAT(path_error(looked), AllOf(HasSubstr("got:  /priv/model: Permission denied"), HasSubstr("fix:  let")));
  for (const char* action : {"cannot rename", "cannot remove", "cannot remove all", "cannot create directories",
                             "cannot copy file", "cannot resize file", "cannot create hard link"}) {
    const fs::filesystem_error changed(action, "/priv/model", denied);
    EXPECT_FALSE(is_wrong_path(changed)) << action;
    EXPECT_THAT(path_error(changed), HasSubstr(concat("got:  ", action, " /priv/model: Permission denied")));
  }
}

TEST(PathError, AFullDiskIsNoWrongPath) {
  const fs::filesystem_error error("cannot create directory", "/data/run",
                                   std::make_error_code(std::errc::no_space_on_device));
  EXPECT_FALSE(is_wrong_path(error));
  EXPECT_THAT(path_error(error), AllOf(HasSubstr("got:  No space left on device"), HasSubstr("fix:  free space")));
}

TEST(PathError, OtherReasonsAreSaidWithTheirPath) {
  const TemporaryFolder folder;
  const auto gone = thrown_by([&] { const fs::directory_iterator entries(folder.path() / "none"); });
  EXPECT_FALSE(is_wrong_path(gone)) << "jobs look whether it is there: somebody has removed it since";
  EXPECT_THAT(path_error(gone), AllOf(HasSubstr((folder.path() / "none").string()), HasSubstr("fix:  ")));
}

}  // namespace
}  // namespace megatron
