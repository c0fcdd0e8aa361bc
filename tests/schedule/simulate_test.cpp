#include "megatron/schedule/simulate.h"

#include <gtest/gtest.h>

#include "tests/schedule/shapes.h"

namespace megatron::schedule {
namespace {

Program program_of(const std::string& text) { return parse_program(text, "test"); }

const Slot* find(const Timeline& timeline, int rank, const Op& op) {
  for (const Slot& slot : timeline.ranks[static_cast<std::size_t>(rank)])
    if (slot.op == op) return &slot;
  return nullptr;
}

TEST(Simulate, AMessageTakesLatencyAndBytesOverBandwidth) {
  const Timeline timeline = simulate(forward_only({.num_ranks = 2, .num_microbatches = 1}),
                                     {.forward = {1, 2}, .latency = 0.5, .message_bytes = 4, .bandwidth = 2});
  EXPECT_DOUBLE_EQ(timeline.ranks[1][0].start, 3.5);
  EXPECT_DOUBLE_EQ(timeline.makespan, 5.5);
  EXPECT_DOUBLE_EQ(timeline.idle[0], 4.5);
  EXPECT_DOUBLE_EQ(timeline.bubble, 1 - 3 / 11.0);
}

TEST(Simulate, ALinkCarriesOneMessageAtATime) {
  for (const bool with_communication : {false, true}) {
    Program program = forward_only({.num_ranks = 2, .num_microbatches = 3});
    if (with_communication) program = insert_communication(program, Communication::Overlapped);
    const Timeline timeline = simulate(program, {.latency = 3});
    EXPECT_DOUBLE_EQ(find(timeline, 1, {Kind::Forward, 1, 0})->start, 4);
    EXPECT_DOUBLE_EQ(find(timeline, 1, {Kind::Forward, 1, 1})->start, 7);
    EXPECT_DOUBLE_EQ(find(timeline, 1, {Kind::Forward, 1, 2})->start, 10);
  }
}

TEST(Simulate, AWaitTakesASlotWhileTheRankWaits) {
  const Program program =
      insert_communication(forward_only({.num_ranks = 2, .num_microbatches = 2}), Communication::Unbatched);
  const Timeline timeline = simulate(program, {.forward = {1, 5}});
  const Slot* receive = find(timeline, 1, {Kind::WaitRecvActivation, 1, 0});
  ASSERT_NE(receive, nullptr);
  EXPECT_DOUBLE_EQ(receive->start, 0);
  EXPECT_DOUBLE_EQ(receive->end, 1);
  EXPECT_EQ(find(timeline, 1, {Kind::WaitRecvActivation, 1, 1}), nullptr);  // was there when the rank came to it
  const Slot* send = find(timeline, 0, {Kind::WaitSendActivation, 0, 1});   // until the receive is posted
  ASSERT_NE(send, nullptr);
  EXPECT_DOUBLE_EQ(send->start, 2);
  EXPECT_DOUBLE_EQ(send->end, 6);
}

TEST(Simulate, ActivationsLiveFromForwardToTheLastThatNeedsThem) {
  const Program program = program_of("stages 0\nmicrobatches 2\nrank 0: F0.0 I0.0 F0.1 W0.0 I0.1 W0.1\n");
  const Timeline timeline = simulate(program, {.activation_bytes = {10}, .weight_bytes = {4}});
  std::vector<std::pair<double, double>> curve;
  for (const MemoryPoint& point : timeline.memory[0]) curve.emplace_back(point.time, point.bytes);
  // The second forward begins as the first backward of input ends, at 2.
  EXPECT_EQ(curve, (std::vector<std::pair<double, double>>{{0, 10}, {2, 14}, {4, 10}, {5, 4}, {6, 0}}));
  EXPECT_DOUBLE_EQ(timeline.peak_bytes[0], 14);
  EXPECT_EQ(timeline.peak_live[0], 2);
}

TEST(Simulate, AForwardOnlyProgramKeepsNothing) {
  const Timeline timeline = simulate(forward_only({.num_ranks = 2, .num_microbatches = 4}));
  EXPECT_EQ(timeline.peak_live, (std::vector<int>{1, 1}));
  EXPECT_DOUBLE_EQ(timeline.memory[1].back().bytes, 0);
}

TEST(Simulate, OverlappedCommunicationCostsNothingWhereMessagesTakeNoTime) {
  for (int p = 1; p <= 6; ++p)
    for (int v = 1; v <= 3; ++v)
      for (const int m : {1, 3, 8})
        for (const Named& named : all_programs({.num_ranks = p, .num_chunks = v, .num_microbatches = m})) {
          const Timeline direct = simulate(named.program);
          const Timeline lowered = simulate(lower(named.program, Communication::Overlapped));
          EXPECT_DOUBLE_EQ(lowered.makespan, direct.makespan) << named.name << " " << p << " " << v << " " << m;
          EXPECT_EQ(lowered.peak_live, direct.peak_live);
        }
}

TEST(Simulate, ASlowLinkHurtsOverlappedCommunicationLeast) {
  for (const Named& named : all_programs({.num_ranks = 4, .num_chunks = 1, .num_microbatches = 16})) {
    const auto makespan = [&](Communication how) {
      return simulate(insert_communication(named.program, how), {.latency = 0.25}).makespan;
    };
    EXPECT_LE(makespan(Communication::Overlapped), makespan(Communication::Batched)) << named.name;
    EXPECT_LE(makespan(Communication::Batched), makespan(Communication::Unbatched)) << named.name;
  }
}

TEST(Simulate, SaysThatAProgramCannotGoOn) {
  const Program ring = program_of("stages 0 1\nmicrobatches 1\nrank 0: B0.0 F0.0\nrank 1: F1.0 B1.0\n");
  EXPECT_THROW(simulate(ring), std::logic_error);
  EXPECT_THROW(simulate(accumulate({.num_microbatches = 1}), {.forward = {1, 2}}), std::logic_error);
}

TEST(Summarize, FindsInMeasuredSlotsWhatTheSimulationFound) {
  const Costs costs{.activation_bytes = {2, 3, 4, 5}};
  const Timeline simulated = simulate(generate("1f1b", {.num_ranks = 4, .num_microbatches = 6}), costs);
  Timeline measured;
  measured.placement = simulated.placement;
  measured.num_microbatches = 6;
  measured.ranks = simulated.ranks;
  summarize(measured, costs);
  EXPECT_DOUBLE_EQ(measured.bubble, 1 - 6.0 * 3 / (6 * 3 + 9));
  EXPECT_EQ(measured.peak_live, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(measured.peak_bytes, (std::vector<double>{8, 9, 8, 5}));
}

TEST(Simulate, PartialMicrobatchesKeepMoreAndTakeLess) {
  const Program program = program_of("stages 0\nmicrobatches 2\nrank 0: F0.0p F0.1 B0.0p B0.1\n");
  const Costs costs{.backward_input = {3},
                    .partial_backward_input = {2},
                    .activation_bytes = {10},
                    .partial_activation_bytes = {100}};
  const Timeline timeline = simulate(program, costs);
  std::vector<std::pair<double, double>> curve;
  for (const MemoryPoint& point : timeline.memory[0]) curve.emplace_back(point.time, point.bytes);
  EXPECT_EQ(curve, (std::vector<std::pair<double, double>>{{0, 100}, {1, 110}, {5, 10}, {9, 0}}));
  EXPECT_EQ(partial_stages(timeline, 0), std::set<int>{});
  const Costs again = measured_costs(timeline, costs);
  EXPECT_DOUBLE_EQ(again.backward_input[0], 2) << "half of 4";
  EXPECT_DOUBLE_EQ(again.partial_backward_input[0], 1.5) << "half of 3";
  const Program all = mark_partial(generate("1f1b", {.num_ranks = 2, .num_microbatches = 3}), 1);
  EXPECT_EQ(partial_stages(simulate(all), 0), std::set<int>{});
  EXPECT_EQ(partial_stages(simulate(all), 1), std::set<int>{1});
}

}  // namespace
}  // namespace megatron::schedule
