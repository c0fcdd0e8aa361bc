#include "megatron/supervise/ranks/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"

namespace megatron::supervise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;

constexpr const char* kSecret = "a secret that is long enough";

RendezvousAddress place_of(int rank, int size, const std::string& secret = kSecret, int port = 0) {
  LaunchedRank launched;
  launched.rank = rank;
  launched.world_size = size;
  launched.port = port != 0 ? port : 20000 + getpid() % 10000;
  launched.secret = secret;
  return rendezvous_address(launched);
}

std::unique_ptr<Wire> come(const RendezvousAddress& place, double timeout_s = 60) {
  return come_to(place, timeout_s, [](double) {
    std::this_thread::yield();
    return false;
  });
}

/// What `guest` returns or throws, while the meeting is kept.
template <class Guest>
auto while_kept(Meeting& meeting, Guest guest) {
  auto result = std::async(std::launch::async, guest);
  while (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) meeting.listen(5);
  return result.get();
}

std::string next(Wire& wire) {
  while (wire.is_open())
    if (auto message = wire.take()) return *message;
  return "closed";
}

TEST(Meeting, AllComeAreToldAndHeard) {
  Meeting meeting(place_of(0, 3));
  EXPECT_THAT(meeting.absent(), ElementsAre(1, 2));
  const auto second = while_kept(meeting, [] { return come(place_of(2, 3)); });
  EXPECT_THAT(meeting.absent(), ElementsAre(1));
  auto first = while_kept(meeting, [] { return come(place_of(1, 3)); });
  EXPECT_THAT(meeting.absent(), IsEmpty());
  meeting.tell("start 0");
  meeting.tell("stop 0");
  for (Wire* wire : {first.get(), second.get()}) {
    EXPECT_EQ(next(*wire), "start 0");
    EXPECT_EQ(next(*wire), "stop 0");
  }
  second->send("one");
  second->send("two");
  std::vector<std::pair<int, std::string>> heard;
  while (heard.size() < 2)
    for (const auto& said : meeting.listen(1000)) heard.push_back(said);
  EXPECT_THAT(heard, ElementsAre(Pair(2, "one"), Pair(2, "two")));
  EXPECT_THAT(meeting.gone(), IsEmpty());
  first->send("last");
  first.reset();
  heard.clear();
  while (meeting.gone().empty())
    for (const auto& said : meeting.listen(1000)) heard.push_back(said);
  EXPECT_THAT(heard, ElementsAre(Pair(1, "last"))) << "what was said before the end counts";
  EXPECT_THAT(meeting.gone(), ElementsAre(Pair(1, true))) << "its end was said, so it is no silence";
  EXPECT_THAT(meeting.present(), ElementsAre(0, 2));
  EXPECT_THAT(meeting.absent(), IsEmpty()) << "it has come";
  EXPECT_EQ(meeting.address_of(2), "127.0.0.1");
  first = while_kept(meeting, [] { return come(place_of(1, 3)); });
  EXPECT_THAT(meeting.gone(), IsEmpty());
  meeting.tell(1, "start 1");
  EXPECT_EQ(next(*first), "start 1");
  meeting.leave(1);
  EXPECT_THAT(meeting.gone(), ElementsAre(Pair(1, false)));
  EXPECT_EQ(next(*first), "closed");
}

TEST(Meeting, AnyRankMayKeepItForThoseThatAreLeft) {
  RendezvousAddress place = place_of(2, 4);
  Meeting meeting(place, std::set<int>{1, 2, 3});
  EXPECT_THAT(meeting.absent(), ElementsAre(1, 3));
  const auto first = while_kept(meeting, [] { return come(place_of(1, 4)); });
  EXPECT_THAT(meeting.absent(), ElementsAre(3));
  EXPECT_THAT(meeting.present(), ElementsAre(1, 2));
}

TEST(Meeting, OfAnotherRunAtTheSamePortsIsAnother) {
  const int port = 20000 + getpid() % 10000;
  Meeting one(place_of(0, 2, kSecret, port)), other(place_of(0, 2, kSecret, port + 10000));
  EXPECT_EQ(one.place().ports, other.place().ports);
  auto both = std::async(std::launch::async, [&] {
    return while_kept(other, [&] { return come(place_of(1, 2, kSecret, port + 10000)); });
  });
  while (both.wait_for(std::chrono::seconds(0)) != std::future_status::ready) one.listen(5);
  both.get();
  EXPECT_THAT(one.absent(), ElementsAre(1));
  EXPECT_THAT(other.absent(), IsEmpty());
}

TEST(Meeting, WhoDoesNotKnowTheSecretIsNoRank) {
  Meeting meeting(place_of(0, 2));
  const auto stranger = [] { return come(place_of(1, 2, "another secret, as long"), 0); };
  EXPECT_THAT([&] { while_kept(meeting, stranger); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("none of this run at 127.0.0.1, ports "), HasSubstr("MASTER_PORT"))));
  EXPECT_THAT(meeting.absent(), ElementsAre(1));
  for (const int rank : {-1, 0, 2, 7})  // whoever these are
    EXPECT_THROW(while_kept(meeting,
                            [&] {
                              RendezvousAddress place = place_of(1, 2);
                              place.rank = rank;
                              return come(place, 0);
                            }),
                 std::runtime_error)
        << rank;
  EXPECT_THAT(meeting.absent(), ElementsAre(1));
}

TEST(Meeting, IsWhereRankZerosHostIs) {
  RendezvousAddress elsewhere = place_of(0, 2);
  elsewhere.address = "192.0.2.1";  // of no host
  EXPECT_THAT([&] { const Meeting meeting(elsewhere); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("cannot listen on 192.0.2.1"), HasSubstr("fix:"))));
}

TEST(Meeting, HasRoomForMoreRanksThanFilesAreAllowedAtFirst) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const Meeting meeting(place_of(0, 1000));
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_GE(after.rlim_cur, std::min<rlim_t>(2000, before.rlim_max));
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(Meeting, PortsAreNeverThoseOfTheRanks) {
  for (int port = 1; port < 65536; port += 7) {
    const RendezvousAddress place = place_of(0, 2, kSecret, port);
    ASSERT_EQ(place.ports.size(), 16u);
    for (const int other : place.ports) {
      ASSERT_NE(other, port);
      ASSERT_TRUE(other > 10000 && other < 20016) << other;
    }
  }
}

/// A wire of rank 0, and the socket at its other end, from which `frames` come.
struct Raw {
  explicit Raw(const std::vector<std::string>& frames) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("no sockets");
    wire = std::make_unique<Wire>(ends[0], place_of(0, 2), true);
    for (const std::string& frame : frames) {
      const std::uint32_t size = htonl(static_cast<std::uint32_t>(frame.size()));
      write(&size, sizeof size);
      write(frame.data(), frame.size());
    }
  }
  ~Raw() { close_other(); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  void close_other() {
    if (ends[1] >= 0) close(std::exchange(ends[1], -1));
  }
  void write(const void* data, std::size_t size) {
    EXPECT_EQ(::send(ends[1], data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }

  int ends[2] = {-1, -1};
  std::unique_ptr<Wire> wire;
};

TEST(Wire, EndsAtWhatNoRankHasWritten) {
  const std::string fresh(64, 'a');
  Raw waits({fresh});
  EXPECT_FALSE(waits.wire->take());
  EXPECT_TRUE(waits.wire->is_open()) << "nothing wrong has come yet";
  for (const auto& frames : std::vector<std::vector<std::string>>{{"too short"},
                                                                  {""},
                                                                  {std::string(65, 'a')},
                                                                  {fresh, "rank 1"},
                                                                  {fresh, std::string(40, 'x')},
                                                                  {fresh, ""}}) {
    Raw raw(frames);
    EXPECT_FALSE(raw.wire->take());
    EXPECT_FALSE(raw.wire->is_open()) << frames.back();
  }
  Raw huge({fresh});
  const std::uint32_t size = htonl(1u << 30);
  huge.write(&size, sizeof size);
  EXPECT_FALSE(huge.wire->take());
  EXPECT_FALSE(huge.wire->is_open());
}

// A host that lives resets a connection too, where it has given the other end up.
TEST(Wire, TellsAnEndInOrderFromAReset) {
  std::string fresh(68, '\0');
  Raw ended({});
  ASSERT_EQ(recv(ended.ends[1], fresh.data(), fresh.size(), MSG_WAITALL), 68);
  ended.close_other();
  EXPECT_EQ(next(*ended.wire), "closed");
  EXPECT_TRUE(ended.wire->has_died());
  Raw reset({});  // what has not been read makes it one
  reset.close_other();
  EXPECT_EQ(next(*reset.wire), "closed");
  EXPECT_FALSE(reset.wire->has_died());
  Raw written({});
  written.close_other();
  written.wire->send("more");
  EXPECT_EQ(next(*written.wire), "closed");
  EXPECT_FALSE(written.wire->has_died());
}

TEST(Wire, TakesNoMessageThatTheOtherWouldRefuse) {
  Raw raw({});
  EXPECT_NO_THROW(raw.wire->send(std::string(63 << 10, 'x')));
  EXPECT_THAT([&] { raw.wire->send(std::string(1 << 16, 'x')); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("got:  65536"), HasSubstr("fewer hosts"))));
}

// What was recorded of one connection is not believed on another.
TEST(Wire, DoesNotBelieveWhatWasSaidElsewhere) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Raw keeper({});
  std::string from_keeper(68, '\0');
  ASSERT_EQ(recv(keeper.ends[1], from_keeper.data(), from_keeper.size(), MSG_WAITALL), 68);
  Wire guest(ends[0], place_of(1, 2), false);
  guest.send("rank 1");
  ASSERT_EQ(::send(ends[1], from_keeper.data(), from_keeper.size(), 0), 68);
  EXPECT_FALSE(guest.take());
  std::string recorded(1000, '\0');
  std::size_t got = 0;
  while (got < 68 + 4 + 32 + 6) {
    const ssize_t more = recv(ends[1], recorded.data() + got, recorded.size() - got, 0);
    ASSERT_GT(more, 0);
    got += static_cast<std::size_t>(more);
  }
  keeper.write(recorded.data(), got);
  EXPECT_EQ(next(*keeper.wire), "rank 1") << "to whom it was said";
  Raw another({});
  another.write(recorded.data(), got);
  EXPECT_FALSE(another.wire->take());
  EXPECT_FALSE(another.wire->is_open());
  keeper.write(recorded.data() + 68, got - 68);
  EXPECT_FALSE(keeper.wire->take()) << "nor twice";
  EXPECT_FALSE(keeper.wire->is_open());
  close(ends[1]);
}

}  // namespace
}  // namespace megatron::supervise
