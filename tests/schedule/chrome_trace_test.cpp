#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/base/error.h"
#include "megatron/schedule/pictures/draw.h"
#include "tests/schedule/pictures.h"

namespace megatron::schedule {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// 1F1B in milliseconds with a wait, and bytes.
Timeline measured() {
  Timeline t = stretched(textbook_1f1b(), 1.234567e-3);
  t.ranks[1].insert(t.ranks[1].begin(), {{Kind::WaitRecvActivation, 1, 0}, 0, 1.2e-3});
  for (std::size_t rank = 0; rank < t.memory.size(); ++rank) {
    for (MemoryPoint& point : t.memory[rank]) point.bytes *= 1000;
    t.peak_bytes[rank] *= 1000;
  }
  std::ranges::find_if(t.ranks[0], [](const Slot& slot) { return slot.op.kind == Kind::Backward; })->op.partial = true;
  return t;
}

TEST(ChromeTrace, FollowsTheFormat) {
  const json trace = json::parse(chrome_trace(measured()));
  std::map<int, std::string> threads;
  std::set<std::string> counters;
  int slots = 0;
  for (const json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["name"].is_string() && event["ph"].is_string() && event["pid"].is_number_integer()) << event;
    const std::string phase = event["ph"];
    if (phase == "M") {
      if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
      continue;
    }
    EXPECT_GE(event["ts"].get<double>(), 0) << event;
    if (phase == "X") {
      ++slots;
      EXPECT_TRUE(event["cat"].is_string()) << event;
      EXPECT_TRUE(event["tid"].is_number_integer()) << event;
      EXPECT_GE(event["dur"].get<double>(), 0) << event;
      EXPECT_TRUE(event["args"]["stage"].is_number_integer() && event["args"]["microbatch"].is_number_integer());
    } else {
      ASSERT_EQ(phase, "C") << event;
      counters.insert(event["name"]);
      for (const json& series : event["args"]) EXPECT_TRUE(series.is_number()) << event;
    }
  }
  EXPECT_EQ(threads, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}, {2, "rank 2"}}));
  EXPECT_EQ(counters.size(), 3u);  // a counter belongs to its process and name: ranks must not share one
  EXPECT_EQ(slots, 25);
}

TEST(ChromeTrace, HasTimesInMicroseconds) {
  const json trace = json::parse(chrome_trace(measured()));
  for (const json& event : trace["traceEvents"])
    if (event["name"] == "B2.1") {
      EXPECT_EQ(event["ts"], 7407.402);  // 6 units of 1.234567 ms
      EXPECT_EQ(event["dur"], 2469.134);
      return;
    }
  FAIL() << "no B2.1";
}

TEST(ChromeTrace, IsReadBackAsItWasWritten) {
  const Timeline wrote = measured(), read = parse_chrome_trace(chrome_trace(wrote), "trace.json");
  EXPECT_EQ(read.placement, wrote.placement);
  EXPECT_EQ(read.num_microbatches, wrote.num_microbatches);
  ASSERT_EQ(read.ranks.size(), wrote.ranks.size());
  constexpr double kHalfNanosecond = 0.51e-9;
  for (std::size_t rank = 0; rank < read.ranks.size(); ++rank) {
    ASSERT_EQ(read.ranks[rank].size(), wrote.ranks[rank].size());
    for (std::size_t i = 0; i < read.ranks[rank].size(); ++i) {
      EXPECT_EQ(read.ranks[rank][i].op, wrote.ranks[rank][i].op);
      EXPECT_NEAR(read.ranks[rank][i].start, wrote.ranks[rank][i].start, kHalfNanosecond);
      EXPECT_NEAR(read.ranks[rank][i].end, wrote.ranks[rank][i].end, kHalfNanosecond);
    }
    ASSERT_EQ(read.memory[rank].size(), wrote.memory[rank].size());
    for (std::size_t i = 0; i < read.memory[rank].size(); ++i) {
      EXPECT_NEAR(read.memory[rank][i].time, wrote.memory[rank][i].time, kHalfNanosecond);
      EXPECT_EQ(read.memory[rank][i].bytes, wrote.memory[rank][i].bytes);
    }
    EXPECT_NEAR(read.idle[rank], wrote.idle[rank], 1e-7);
  }
  EXPECT_NEAR(read.makespan, wrote.makespan, 1e-8);
  EXPECT_NEAR(read.bubble, wrote.bubble, 1e-6);
  EXPECT_EQ(read.peak_live, wrote.peak_live);
  EXPECT_EQ(read.peak_bytes, wrote.peak_bytes);
}

TEST(ChromeTrace, KeepsSeveralStagesARank) {
  const Timeline wrote = long_timeline(3, 4, 5), read = parse_chrome_trace(chrome_trace(wrote), "trace.json");
  EXPECT_EQ(read.placement, wrote.placement);
  EXPECT_EQ(read.ranks[2].back().op, wrote.ranks[2].back().op);
}

TEST(ChromeTrace, RefusesWhatNoPipelineWrote) {
  using Change = std::function<void(json&)>;
  const auto slot = [](json& trace, const std::string& name) -> json& {
    for (json& event : trace["traceEvents"])
      if (event["name"] == name) return event;
    throw std::logic_error(name);
  };
  const std::vector<std::pair<std::string, Change>> changes = {
      {"traceEvents", [](json& t) { t = json::array(); }},
      {"traceEvents", [](json& t) { t.erase("traceEvents"); }},
      {"traceEvents", [](json& t) { t["traceEvents"] = 1; }},
      {"pipeline", [](json& t) { t.erase("pipeline"); }},
      {"pipeline", [](json& t) { t["pipeline"] = {1}; }},
      {"stages", [](json& t) { t["pipeline"]["rank_of_stage"] = json::array(); }},
      {"rank",
       [](json& t) {
         t["pipeline"]["rank_of_stage"] = {0, 1, -1};
       }},
      {"rank",
       [](json& t) {
         t["pipeline"]["rank_of_stage"] = {0, 1, 4'000'000'000u};
       }},
      {"rank",
       [](json& t) {
         t["pipeline"]["rank_of_stage"] = {0, 2, 2};
       }},
      {"rank",
       [](json& t) {
         t["pipeline"]["rank_of_stage"] = {0, "1", 2};
       }},
      {"num_microbatches", [](json& t) { t["pipeline"]["num_microbatches"] = 2'000'000'000; }},
      {"num_microbatches", [](json& t) { t["pipeline"]["num_microbatches"] = -1; }},
      {"microbatch", [](json& t) { t["pipeline"]["num_microbatches"] = 0; }},
      {"microbatch", [](json& t) { t["pipeline"]["num_microbatches"] = 3; }},
      {"without a forward", [](json& t) { t["pipeline"]["num_microbatches"] = 5; }},
      {"phase", [](json& t) { t["traceEvents"].push_back(7); }},
      {"phase",
       [](json& t) {
         t["traceEvents"].push_back({{"ph", "B"}});
       }},
      {"tid", [&](json& t) { slot(t, "F0.1").erase("tid"); }},
      {"tid", [&](json& t) { slot(t, "F0.1")["tid"] = 3; }},
      {"does not hold", [&](json& t) { slot(t, "F0.1")["tid"] = 1; }},
      {"stage", [&](json& t) { slot(t, "F0.1")["args"]["stage"] = 3; }},
      {"stage", [&](json& t) { slot(t, "F0.1").erase("args"); }},
      {"microbatch", [&](json& t) { slot(t, "F0.1")["args"]["microbatch"] = 1.5; }},
      {"kind", [&](json& t) { slot(t, "F0.1")["args"]["kind"] = "Q"; }},
      {"kind", [&](json& t) { slot(t, "F0.1")["args"]["kind"] = 0; }},
      {"ts", [&](json& t) { slot(t, "F0.1")["ts"] = -1; }},
      {"ts", [&](json& t) { slot(t, "F0.1")["ts"] = 1e300; }},
      {"ts", [&](json& t) { slot(t, "F0.1")["ts"] = "0"; }},
      {"dur", [&](json& t) { slot(t, "F0.1").erase("dur"); }},
      {"at once", [&](json& t) { slot(t, "F0.1")["dur"] = 3000; }},
      {"twice", [&](json& t) { slot(t, "F0.1")["args"]["microbatch"] = 0; }},
      {"before what it needs", [&](json& t) { slot(t, "B0.1")["args"]["kind"] = "W"; }},
      {"bytes",
       [&](json& t) {
         slot(t, "activations of rank 0")["args"] = {{"bytes", -1}};
       }},
      {"tid", [&](json& t) { slot(t, "activations of rank 0")["tid"] = 9; }},
  };
  const json good = json::parse(chrome_trace(measured()));
  for (const auto& [word, change] : changes) {
    json trace = good;
    change(trace);
    try {
      parse_chrome_trace(trace.dump(), "trace.json");
      ADD_FAILURE() << "accepted: " << trace.dump().substr(0, 200) << " (" << word << ")";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("trace.json"));
      EXPECT_THAT(error.what(), HasSubstr(word));
    }
  }
}

TEST(ChromeTrace, RefusesEveryTruncation) {
  const std::string whole = chrome_trace(textbook_1f1b());
  for (std::size_t size = 0; size < whole.size(); size += 7)
    EXPECT_THROW(parse_chrome_trace(whole.substr(0, size), "trace.json"), ConfigError) << size;
}

TEST(ChromeTrace, RefusesDeepNesting) {
  const std::string deep = "{\"traceEvents\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THROW(parse_chrome_trace(deep, "trace.json"), ConfigError);
}

}  // namespace
}  // namespace megatron::schedule
