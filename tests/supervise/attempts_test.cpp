#include "megatron/supervise/ranks/attempts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::supervise {
namespace {

ChildEnd with_code(int code) { return {.code = code, .last_errors = ""}; }

ChildEnd killed(int signal, bool hung = false) {
  return {.code = 128 + signal, .signal = signal, .hung = hung, .last_errors = ""};
}

TEST(Attempts, EndWellWhereAllRanksDo) {
  EXPECT_EQ(end_of({{0, with_code(0)}, {1, with_code(0)}}, {}).code, 0);
  const ChildEnd saved = end_of({{0, with_code(3)}, {1, with_code(0)}, {2, with_code(3)}}, {});
  EXPECT_EQ(saved.code, 3);
  EXPECT_EQ(saved.rank, -1);
  EXPECT_FALSE(saved.stopped);
}

TEST(Attempts, AreToldOfByTheRankThatFailed) {
  const ChildEnd one = end_of({{0, with_code(1)}, {1, killed(SIGKILL)}, {2, with_code(1)}, {3, with_code(0)}}, {});
  EXPECT_EQ(one.rank, 1);
  EXPECT_EQ(one.signal, SIGKILL);
  EXPECT_EQ(one.code, 137);
  EXPECT_EQ(end_of({{0, with_code(1)}, {1, with_code(2)}}, {}).code, 2) << "what is wrong is said by one rank";
  EXPECT_EQ(end_of({{0, with_code(17)}, {1, with_code(1)}}, {}).code, 17);
  EXPECT_EQ(end_of({{0, with_code(1)}, {1, with_code(1)}}, {}).rank, 0);
}

// A rank that was ended because it did not end by itself does not tell why.
TEST(Attempts, AreToldOfByALateRankWhereThereIsNoOther) {
  const ChildEnd first = end_of({{0, killed(SIGKILL, true)}, {1, with_code(1)}, {2, killed(SIGKILL, true)}}, {0, 2});
  EXPECT_EQ(first.rank, 1);
  EXPECT_EQ(first.code, 1);
  EXPECT_FALSE(first.hung);
  const ChildEnd late = end_of({{0, with_code(0)}, {1, killed(SIGKILL, true)}}, {1});
  EXPECT_EQ(late.rank, 1);
  EXPECT_TRUE(late.hung);
  const ChildEnd hung = end_of({{0, killed(SIGKILL, true)}, {1, with_code(1)}, {2, killed(SIGKILL, true)}}, {2});
  EXPECT_EQ(hung.rank, 0) << "its heartbeat has told";
  EXPECT_TRUE(hung.hung);
}

TEST(Attempts, AreToldOfALostRankBeforeAllThatMissedIt) {
  ChildEnd lost = with_code(1);
  lost.lost = true;
  const ChildEnd end = end_of({{0, with_code(1)}, {2, killed(SIGABRT)}, {5, lost}}, {});
  EXPECT_EQ(end.rank, 5);
  EXPECT_TRUE(end.lost);
}

TEST(Attempts, AreStoppedWhereOneRankIs) {
  ChildEnd asked = with_code(3);
  asked.stopped = true;
  EXPECT_TRUE(end_of({{0, with_code(3)}, {1, asked}}, {}).stopped);
  EXPECT_TRUE(end_of({{0, asked}, {1, killed(SIGKILL)}}, {}).stopped);
}

TEST(Attempts, EndsTravelAsMessages) {
  ChildEnd end = killed(SIGTERM, true);
  end.last_errors = "first\nlast \x01\n";
  const auto back = end_in(end_message(7, end));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->first, 7);
  EXPECT_EQ(back->second.code, end.code);
  EXPECT_EQ(back->second.signal, SIGTERM);
  EXPECT_TRUE(back->second.hung);
  EXPECT_FALSE(back->second.stopped);
  EXPECT_EQ(back->second.last_errors, end.last_errors);
  end.last_errors = std::string(1 << 20, 'x') + "last";
  const std::string large = end_message(7, end);
  EXPECT_LT(large.size(), std::size_t{1} << 15);
  EXPECT_TRUE(end_in(large)->second.last_errors.ends_with("xlast"));
  for (const char* other : {"", "ended", "ended 1 2 3 4", "ended 1 2 3 4 5", "ended a 2 3 4 5\n", "start 1 2 3 4 5\n"})
    EXPECT_FALSE(end_in(other)) << other;
}

/// Supervisors of two ranks in one process: one in this thread, the other played by another.
class TwoRanks : public ::testing::Test {
 protected:
  static LaunchedRank place(int rank, int size = 2) {
    LaunchedRank launched;
    launched.rank = rank;
    launched.world_size = size;
    launched.port = 30000 + getpid() % 10000;
    launched.secret = "a secret that is long enough";
    return launched;
  }
  static RendezvousAddress meeting(int rank, int size = 2) { return rendezvous_address(place(rank, size)); }

  /// A rank that ends with this code once let_end() has been called, and takes a SIGTERM as an order to save.
  ProgramStart rank(int code) const {
    const std::string script = concat("trap '' TERM; : >", begun_.string(), "; until [ -e ", file_.string(),
                                      " ]; do sleep 0.01; done; echo $MEGATRON_ATTEMPT >&2; exit ", code);
    return {.path = "/bin/sh", .words = {"sh", "-c", script}};
  }
  void let_end() const { std::ofstream{file_}; }

  /// What rank 0's supervisor says next.
  static std::string next(Wire& wire) {
    while (wire.is_open()) {
      if (auto message = wire.take()) return said(*message);
      std::this_thread::yield();
    }
    return "gone";
  }
  /// An order in short.
  static std::string said(const std::string& message) {
    const auto order = order_in(message);
    return order ? concat("start ", order->attempt) : message;
  }
  static std::string start(int attempt) {
    return order_message({.attempt = attempt, .roster = {{"127.0.0.1", {0, 1}}}});
  }
  static std::unique_ptr<Wire> come(int rank = 1, int size = 2) {
    return come_to(meeting(rank, size), 60, [](double) {
      std::this_thread::yield();
      return false;
    });
  }
  /// The same from another address of this host's, which makes it another host.
  static std::unique_ptr<Wire> come_from(const std::string& address, int rank, int size) {
    while (true)
      for (const int port : meeting(rank, size).ports) {
        const int fd = bound_socket(address, 0);
        const HostAddress peer = addresses_of("127.0.0.1", port).front();
        if (connect(fd, peer.get(), peer.size) != 0) {
          close(fd);
          continue;
        }
        auto wire = std::make_unique<Wire>(fd, meeting(rank, size), false);
        wire->send(concat("rank ", rank));
        if (next(*wire) == "welcome") return wire;
      }
  }
  /// Until the other has come.
  static void gather(Meeting& kept) {
    while (!kept.absent().empty()) kept.listen(1000);
  }
  /// What the other says next; "gone": it has left without a word.
  static std::string heard(Meeting& kept) {
    while (kept.present().contains(1)) {
      const auto said = kept.listen(1000);
      if (!said.empty()) return said.front().second;
    }
    return "gone";
  }

  const RankLimits limits_{.join_s = 60, .hang_s = 60, .dump_s = 0};
  const HeldSignals signals_;
  const TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "end", begun_ = folder_.path() / "begun";
};

/// An attempt of as many ranks as there are.
ChildEnd run(Attempts& attempts, const ProgramStart& program, int attempt) {
  EXPECT_FALSE(attempts.gather());
  return attempts.run(program, {.attempt = attempt}, attempts.available(), [] { return false; });
}

TEST_F(TwoRanks, AttemptsAreTheSameForBoth) {
  Attempts attempts(place(0), signals_, limits_);
  auto other = std::async(std::launch::async, [&] {
    const auto wire = come();
    std::vector<std::string> said = {next(*wire)};
    wire->send(end_message(0, killed(SIGKILL)));
    said.push_back(next(*wire));
    let_end();
    said.push_back(next(*wire));
    wire->send(end_message(0, with_code(7)));  // of an attempt that is over
    wire->send(end_message(1, with_code(0)));
    said.push_back(next(*wire));
    return said;
  });
  const ChildEnd first = run(attempts, rank(1), 0);
  EXPECT_EQ(first.rank, 1);
  EXPECT_EQ(first.signal, SIGKILL);
  EXPECT_FALSE(first.hung);
  const ChildEnd second = run(attempts, rank(0), 1);
  EXPECT_EQ(second.code, 0);
  EXPECT_EQ(second.rank, -1);
  attempts.finish(0);
  EXPECT_THAT(other.get(), ::testing::ElementsAre("start 0", "stop 0", "start 1", "finish 0"));
}

// A rank that has ended, and its supervisor is asked to end, leaves the others the time that they need to save.
TEST_F(TwoRanks, ASignalAfterTheFirstHasEndedStopsNobody) {
  Attempts attempts(place(0), signals_, limits_);
  let_end();
  auto other = std::async(std::launch::async, [&] {
    const auto wire = come();
    EXPECT_EQ(next(*wire), "start 0");
    while (!std::filesystem::exists(begun_)) std::this_thread::yield();
    kill(getpid(), SIGTERM);
    wire->send(end_message(0, with_code(3)));
    EXPECT_EQ(next(*wire), "finish 3");
  });
  const ChildEnd end = run(attempts, rank(0), 0);
  EXPECT_TRUE(end.stopped);
  EXPECT_EQ(end.code, 3);
  attempts.finish(end.code);
  other.get();
}

TEST_F(TwoRanks, ASignalAfterTheOtherHasEndedIsTold) {
  auto first = std::async(std::launch::async, [&] {
    Meeting kept(meeting(0));
    gather(kept);
    kept.tell(start(0));
    let_end();
    std::vector<std::string> said = {heard(kept)};
    kill(getpid(), SIGTERM);
    said.push_back(heard(kept));
    kept.tell("finish 3");
    return said;
  });
  EXPECT_EQ(std::get<int>(follow(place(1), rank(0), signals_, limits_)), 3);
  EXPECT_THAT(first.get(), ::testing::ElementsAre("ended 0 0 0 0 0\n0\n", "ended 0 0 0 1 0\n0\n"));
}

// A program that says its place and its words to `file_`, an attempt after the other.
TEST_F(TwoRanks, TheFirstGoesOnAloneWhereTheOtherIsGone) {
  Attempts attempts(place(0), signals_, limits_);
  auto other = std::async(std::launch::async, [&] { EXPECT_EQ(next(*come()), "start 0"); });
  EXPECT_FALSE(attempts.gather());
  EXPECT_EQ(attempts.available(), 2);
  const std::string script = concat("echo $RANK/$WORLD_SIZE $* >>", file_.string(), "; [ \"$WORLD_SIZE\" = 1 ]");
  const ProgramStart program{.path = "/bin/sh", .words = {"sh", "-c", script, "sh"}};
  const ChildEnd end = attempts.run(program, {.attempt = 0}, 2, [] { return false; });
  other.get();
  EXPECT_EQ(end.rank, 1);
  EXPECT_TRUE(end.lost);
  EXPECT_FALSE(attempts.gather());
  EXPECT_EQ(attempts.available(), 1);
  EXPECT_EQ(attempts.run(program, {.attempt = 1, .words = {"--tp", "1"}}, 1, [] { return false; }).code, 0);
  std::ifstream file(file_);
  std::string whole, alone;
  std::getline(file, whole);
  std::getline(file, alone);
  EXPECT_EQ(whole, "/") << "as the launcher has it";
  EXPECT_EQ(alone, "0/1 --tp 1");
}

// Its layout has no use for rank 2, whose supervisor nobody waits for.
TEST_F(TwoRanks, OneThatWaitsForAPlaceLeavesAtOnceWhenItIsAskedTo) {
  auto first = std::async(std::launch::async, [&] {
    Meeting kept(meeting(0));
    gather(kept);
    kept.tell(order_message({.attempt = 0, .roster = {{"127.0.0.1", {0, 1}}}, .is_spare = true}));
    kill(getpid(), SIGTERM);
    std::string said = heard(kept);
    while (!kept.present().empty() && kept.present().contains(1)) kept.listen(1000);
    return said;
  });
  EXPECT_EQ(std::get<int>(follow(place(1), rank(0), signals_, limits_)), 0);
  EXPECT_EQ(first.get(), "leaves");
  EXPECT_FALSE(std::filesystem::exists(begun_)) << "it had no rank";
}

// That is no loss of its host, whose other ranks may be asked to end as before; and it ends nobody else.
TEST_F(TwoRanks, OneThatHasLeftEndsNobodyAndIsNoLossOfItsHost) {
  Attempts attempts(place(0, 3), signals_, limits_);
  auto others = std::async(std::launch::async, [&] {
    auto seated = come_from("127.0.0.2", 1, 3), spare = come_from("127.0.0.2", 2, 3);
    EXPECT_EQ(next(*seated), "start 0");
    EXPECT_EQ(next(*spare), "start 0");
    spare->send("leaves");
    spare.reset();
    while (!std::filesystem::exists(begun_)) std::this_thread::yield();
    ChildEnd end = with_code(3);
    end.stopped = true;
    seated->send(end_message(0, end));
    let_end();
    EXPECT_EQ(next(*seated), "finish 3");
  });
  EXPECT_FALSE(attempts.gather());
  const ChildEnd end = attempts.run(rank(3), {.attempt = 0}, 2, [] { return false; });
  EXPECT_TRUE(end.stopped) << "by rank 1, which counts";
  EXPECT_EQ(end.code, 3);
  attempts.finish(end.code);
  others.get();
}

/// The supervisors of a host that has lost one are asked to end by who has started them, as torchrun's agent does.
class TornHost : public TwoRanks {
 protected:
  /// Rank 1 is killed, and rank 2, of the same host, is asked to end: while its rank runs, or once it has ended.
  void lose_one_of_a_host(bool is_late) {
    std::filesystem::remove(file_);
    Attempts attempts(place(0, 3), signals_, limits_);
    std::promise<void> has_run;
    auto others = std::async(std::launch::async, [&, run = has_run.get_future()] {
      auto killed = come_from("127.0.0.2", 1, 3), left = come_from("127.0.0.2", 2, 3);
      EXPECT_EQ(next(*killed), "start 0");
      EXPECT_EQ(next(*left), "start 0");
      killed.reset();
      EXPECT_EQ(next(*left), "stop 0");
      ChildEnd end = with_code(1);
      end.stopped = !is_late;
      left->send(end_message(0, end));
      let_end();
      if (is_late) {
        run.wait();
        end.stopped = true;
        left->send(end_message(0, end));
      }
      EXPECT_EQ(next(*left), "finish 1");
      EXPECT_EQ(next(*left), "gone");
    });
    const ChildEnd end = run(attempts, rank(1), 0);
    EXPECT_EQ(end.rank, 1);
    EXPECT_TRUE(end.lost);
    EXPECT_FALSE(end.stopped);
    has_run.set_value();
    while (attempts.available() > 1) {
      EXPECT_FALSE(attempts.gather());
      EXPECT_FALSE(attempts.is_asked_to_end());
    }
    others.get();
    EXPECT_EQ(run(attempts, rank(0), 1).code, 0);
  }
};

TEST_F(TornHost, IsLeftAndEndsNobodyElse) { lose_one_of_a_host(false); }

TEST_F(TornHost, IsLeftWhereItIsAskedWhileARestartIsWaitedFor) { lose_one_of_a_host(true); }

TEST_F(TwoRanks, AStopWhileARestartIsWaitedForEndsAll) {
  Attempts attempts(place(0), signals_, limits_);
  let_end();
  std::promise<void> has_run;
  auto other = std::async(std::launch::async, [&, run = has_run.get_future()] {
    const auto wire = come();
    EXPECT_EQ(next(*wire), "start 0");
    ChildEnd end = with_code(0);
    wire->send(end_message(0, end));
    run.wait();
    end.stopped = true;
    wire->send(end_message(0, end));
    std::string last = next(*wire);
    return last == "stop 0" ? next(*wire) : last;
  });
  EXPECT_FALSE(run(attempts, rank(1), 0).stopped);
  has_run.set_value();
  while (!attempts.is_asked_to_end()) attempts.listen(1000);
  const auto end = attempts.gather();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 128 + SIGTERM);
  EXPECT_TRUE(end->stopped);
  attempts.finish(end->code);
  EXPECT_EQ(other.get(), "finish 143");
}

TEST_F(TwoRanks, TheStartWaitsForOneThatIsGoneAgain) {
  Attempts attempts(place(0, 3), signals_, {.join_s = 0});
  const auto come_and_hear = [&](int rank) {
    auto coming = std::async(std::launch::async, [rank] { return come(rank, 3); });
    while (coming.wait_for(std::chrono::seconds(0)) != std::future_status::ready) attempts.listen(5);
    return coming.get();
  };
  auto gone = come_and_hear(1);
  const auto there = come_and_hear(2);
  EXPECT_EQ(attempts.available(), 3);
  gone.reset();
  while (attempts.available() > 2) attempts.listen(1000);
  EXPECT_THAT([&] { attempts.gather(); },
              ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("got:  rank 1 not there")));
  gone = come_and_hear(1);
  EXPECT_FALSE(attempts.gather());
}

TEST_F(TwoRanks, WhoComesAgainTakesPartAgain) {
  Attempts attempts(place(0), signals_, limits_);
  let_end();
  auto other = std::async(std::launch::async, [&] { EXPECT_EQ(next(*come()), "start 0"); });
  EXPECT_TRUE(run(attempts, rank(1), 0).lost);
  other.get();
  auto again = std::async(std::launch::async, [&] {
    const auto wire = come();
    EXPECT_EQ(next(*wire), "start 1");
    wire->send(end_message(1, with_code(0)));
    EXPECT_EQ(next(*wire), "finish 0");
  });
  while (attempts.available() < 2) attempts.listen(1000);
  EXPECT_EQ(run(attempts, rank(0), 1).code, 0);
  attempts.finish(0);
  again.get();
}

TEST_F(TwoRanks, TheOtherTakesTheFirstsPlace) {
  let_end();
  auto first = std::async(std::launch::async, [&] {
    Meeting kept(meeting(0));
    gather(kept);
    kept.tell(start(4));
    heard(kept);
  });
  const auto end = follow(place(1), rank(0), signals_, limits_);
  first.get();
  const auto* heir = std::get_if<Inheritance>(&end);
  ASSERT_TRUE(heir);
  EXPECT_EQ(heir->from, 0);
  EXPECT_EQ(heir->last.attempt, 4);
  EXPECT_TRUE(heir->is_dead);
  Attempts attempts(place(1), signals_, limits_, *heir);
  EXPECT_EQ(run(attempts, rank(0), 5).code, 0);
}

// The order has come, with who follows and its number, but the one that gave it is gone: nobody else carries it out.
TEST_F(TwoRanks, AnOrderOfOneThatIsGoneIsNotCarriedOut) {
  auto first = std::async(std::launch::async, [&] {
    {
      Meeting kept(meeting(0));
      gather(kept);
      kept.tell(start(3));
      while (!std::filesystem::exists(begun_)) std::this_thread::yield();
      kept.tell(start(4));
    }
    let_end();
  });
  const std::string script =
      concat("echo $MEGATRON_ATTEMPT >>", begun_.string(), "; until [ -e ", file_.string(), " ]; do sleep 0.01; done");
  const auto end = follow(place(1), {.path = "/bin/sh", .words = {"sh", "-c", script}}, signals_, limits_);
  first.get();
  const auto* heir = std::get_if<Inheritance>(&end);
  ASSERT_TRUE(heir);
  EXPECT_EQ(heir->last.attempt, 4);
  std::ifstream begun(begun_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(begun), {}), "3\n");
}

TEST_F(TwoRanks, TheOtherDoesWhatTheFirstSays) {
  auto first = std::async(std::launch::async, [&] {
    Meeting kept(meeting(0));
    gather(kept);
    kept.tell(start(0));
    let_end();
    std::vector<std::string> said = {heard(kept)};
    kept.tell(start(1));
    said.push_back(heard(kept));
    kept.tell("finish 3");
    return said;
  });
  EXPECT_EQ(std::get<int>(follow(place(1), rank(7), signals_, limits_)), 3);
  EXPECT_THAT(first.get(), ::testing::ElementsAre("ended 0 7 0 0 0\n0\n", "ended 1 7 0 0 0\n1\n"));
}

TEST_F(TwoRanks, TheOtherMissesTheFirstWhereNothingHasBegun) {
  auto first = std::async(std::launch::async, [&] {
    Meeting kept(meeting(0));
    gather(kept);
  });
  EXPECT_THAT([&] { follow(place(1), rank(0), signals_, limits_); },
              ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("the supervisor of rank 0 is gone")));
  first.get();
}

}  // namespace
}  // namespace megatron::supervise
