#include "megatron/comm/processes/gloo_address.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;

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
