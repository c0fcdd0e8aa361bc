#include "megatron/base/ranks/run_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "megatron/base/error.h"
#include "tests/testing/temporary_folder.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Bytes = RunKey::Bytes;

const Bytes kValue = {1, 0, 2, 255};

TEST(RunKey, OpensWhatItSealedAndNothingElse) {
  const RunKey key("a secret that is long enough"), same("a secret that is long enough"),
      other("another secret, as long");
  const Bytes sealed = key.seal("here/1", kValue);
  EXPECT_EQ(same.open("here/1", sealed), kValue);
  EXPECT_EQ(key.open("empty", key.seal("empty", {})), Bytes{});
  EXPECT_FALSE(other.open("here/1", sealed));
  EXPECT_FALSE(key.open("here/2", sealed)) << "a value belongs to its name";
  EXPECT_FALSE(key.open("here/1", kValue));
  EXPECT_FALSE(key.open("here/1", {}));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    Bytes changed = sealed;
    changed[i] ^= 1;
    EXPECT_FALSE(key.open("here/1", changed)) << "byte " << i;
  }
  Bytes cut = sealed;
  cut.pop_back();
  EXPECT_FALSE(key.open("here/1", cut));
}

// A name and a value that are shifted against each other are not the same content.
TEST(RunKey, TakesNamesAndValuesApart) {
  const RunKey key("a secret that is long enough");
  const Bytes sealed = key.seal("ab", {'c'});
  Bytes moved(sealed.begin(), sealed.end() - 1);
  EXPECT_FALSE(key.open("abc", moved));
}

TEST(RunKey, NamesAreDigitsThatTheSecretDecides) {
  const RunKey key("a secret that is long enough"), other("another secret, as long");
  EXPECT_THAT(key.name("here/1"), testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(key.name("here/1").size(), 32u);
  EXPECT_NE(key.name("here/1"), key.name("here/2"));
  EXPECT_NE(key.name("here/1"), other.name("here/1"));
  EXPECT_NE(random_secret(), random_secret());
  EXPECT_EQ(random_secret().size(), 64u);
}

TEST(RunSecret, ComesFromTheEnvironmentOrAFileOfTheUserAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "secret";
  std::ofstream(path) << "a secret that is long enough\n";
  LaunchedRank place;
  place.secret_file = path;
  for (const mode_t mode : {0644U, 0640U, 0602U}) {
    chmod(path.c_str(), mode);
    EXPECT_THAT([&] { secret_of(place); }, ThrowsMessage<ConfigError>(HasSubstr("others may read")));
  }
  chmod(path.c_str(), 0600);
  EXPECT_EQ(secret_of(place), "a secret that is long enough");
  place.secret = "the one of the environment";
  EXPECT_EQ(secret_of(place), place.secret);
  place.secret = "too short";
  EXPECT_THAT([&] { secret_of(place); }, ThrowsMessage<ConfigError>(HasSubstr("16 characters")));
  place.secret.clear();
  place.secret_file = folder.path();
  EXPECT_THAT([&] { secret_of(place); }, ThrowsMessage<ConfigError>(HasSubstr("no regular file")));
  place.secret_file = folder.path() / "absent";
  EXPECT_THAT([&] { secret_of(place); }, ThrowsMessage<ConfigError>(HasSubstr("No such file")));
}

TEST(RunSecret, IsNeededWhereOtherHostsReachTheStore) {
  LaunchedRank place;
  place.port = 29500;
  for (const char* address : {"127.0.0.1", "localhost", "127.3.2.1", "::1"}) {
    place.address = address;
    EXPECT_EQ(secret_of(place), "") << address;
  }
  for (const char* address : {"10.0.0.1", "0.0.0.0", "no-such-host.invalid"}) {
    place.address = address;
    EXPECT_THAT([&] { secret_of(place); }, ThrowsMessage<ConfigError>(HasSubstr("MEGATRON_RUN_SECRET"))) << address;
  }
}

}  // namespace
}  // namespace megatron
