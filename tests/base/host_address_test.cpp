#include "megatron/base/ranks/host_address.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>

#include <future>

namespace megatron {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(HostAddress, OfNumbersIsThatAddressWithThePort) {
  const auto found = addresses_of("127.0.0.7", 2950);
  ASSERT_FALSE(found.empty());
  const auto* address = reinterpret_cast<const sockaddr_in*>(found[0].get());
  EXPECT_EQ(address->sin_family, AF_INET);
  EXPECT_EQ(address->sin_addr.s_addr, inet_addr("127.0.0.7"));
  EXPECT_EQ(ntohs(address->sin_port), 2950);
  EXPECT_EQ(found[0].size, sizeof(sockaddr_in));
  const auto v6 = addresses_of("::1", 7);
  ASSERT_FALSE(v6.empty());
  EXPECT_EQ(v6[0].family(), AF_INET6);
  EXPECT_EQ(ntohs(reinterpret_cast<const sockaddr_in6*>(v6[0].get())->sin6_port), 7);
}

TEST(HostAddress, ANameThatNobodyAnswersForIsAnErrorWithinTheLimit) {
  std::promise<void> answer;  // given after the limit: the look-up is left alone until then
  const auto silent = [answered = answer.get_future().share()] {
    answered.wait();
    return std::vector<HostAddress>();
  };
  EXPECT_THAT([&] { addresses_by(silent, "node1.example.org", milliseconds(10)); },
              ThrowsMessage<HostError>(testing::AllOf(HasSubstr("node1.example.org: no name server has answered"),
                                                      HasSubstr("fix:  check MASTER_ADDR"))));
  answer.set_value();
}

TEST(HostAddress, ANameWithoutAnAddressIsAnErrorEachTime) {
  for (int time = 0; time < 2; ++time)
    EXPECT_THAT([] { addresses_of("999.999.1.1.", 1); }, ThrowsMessage<HostError>(HasSubstr("must have an address")));
}

}  // namespace
}  // namespace megatron
