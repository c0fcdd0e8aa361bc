#include "megatron/comm/processes/run_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include <sys/socket.h>

#include "megatron/base/error.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/gloo_address.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::comm {
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

/// What Gloo writes of a rank.
Bytes gloo_address(std::uint64_t name_size, std::uint64_t address_size, int family, std::size_t numbers) {
  Bytes bytes;
  const auto add = [&](std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<std::uint8_t>(number >> shift));
  };
  add(name_size);
  bytes.resize(bytes.size() + std::min<std::uint64_t>(name_size, 300), 'h');
  add(address_size);
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  const auto* raw = reinterpret_cast<const std::uint8_t*>(&address);
  bytes.insert(bytes.end(), raw, raw + sizeof address);
  add(0);
  for (std::size_t i = 0; i < numbers; ++i) add(i);
  return bytes;
}

TEST(GlooAddress, SizesThatDoNotFitAreRefused) {
  constexpr std::uint64_t kSize = sizeof(sockaddr_storage) + 8;
  EXPECT_NO_THROW(require_gloo_address(gloo_address(5, kSize, AF_INET, 2), 2));
  EXPECT_NO_THROW(require_gloo_address(gloo_address(0, kSize, AF_INET6, 3), 3));
  for (const Bytes& bad :
       {Bytes{}, Bytes{1, 2, 3}, Bytes(8, 0xff), gloo_address(~0ULL, kSize, AF_INET, 2),
        gloo_address(299, kSize, AF_INET, 2), gloo_address(5, ~0ULL, AF_INET, 2), gloo_address(5, 16, AF_INET, 2),
        gloo_address(5, kSize, AF_UNIX, 2), gloo_address(5, kSize, 0, 2), gloo_address(5, kSize, AF_INET, 1),
        gloo_address(5, kSize, AF_INET, 3)})
    EXPECT_THROW(require_gloo_address(bad, 2), PeerError) << bad.size() << " bytes";
  const Bytes whole = gloo_address(5, kSize, AF_INET, 2);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(require_gloo_address(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)), 2),
                 PeerError);
}

}  // namespace
}  // namespace megatron::comm
