#include "megatron/pipeline/marks.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "megatron/pipeline/run.h"
#include "tests/pipeline/toy.h"

namespace megatron::pipeline {
namespace {

// A device whose stream needs a second for everything: an event recorded as the n-th comes to pass n seconds later.
struct Seconds final : c10::impl::DeviceGuardImplInterface {
  static int& recorded() {
    static int count = 0;
    return count;
  }
  static std::vector<std::string>& calls() {
    static std::vector<std::string> all;
    return all;
  }

  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {type(), 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }  // autograd begins no thread for it

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    EXPECT_EQ(flag, c10::EventFlag::BACKEND_DEFAULT) << "others have no times";
    *event = new double(++recorded());
    calls().emplace_back("record");
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { calls().emplace_back("synchronize"); }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return 1e3 * (*static_cast<double*>(to) - *static_cast<double*>(from));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Seconds)

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

TEST(Marks, OfADeviceAreTimesOfItsEventsAndWaitOnce) {
  Seconds::recorded() = 0;
  Seconds::calls().clear();
  Marks marks(at::Device(c10::DeviceType::PrivateUse1, 0));
  for (int i = 0; i < 5; ++i) marks.add();
  const auto times = marks.take();
  ASSERT_EQ(times.size(), 5U);
  for (std::size_t i = 1; i < times.size(); ++i) EXPECT_NEAR(seconds(times[i] - times[i - 1]), 1, 1e-6);
  EXPECT_LE(times.back(), Clock::now());
  EXPECT_EQ(std::ranges::count(Seconds::calls(), "synchronize"), 1);
  EXPECT_TRUE(marks.take().empty());
}

TEST(Marks, OfACpuAreTheHostsAndInOrder) {
  Marks marks(at::kCPU);
  const auto before = Clock::now();
  marks.add();
  marks.add();
  const auto times = marks.take();
  ASSERT_EQ(times.size(), 2U);
  EXPECT_LE(before, times[0]);
  EXPECT_LE(times[0], times[1]);
  EXPECT_TRUE(marks.take().empty());
}

// Each operation is between two events: it takes the device a second, whatever the host needed to order it.
TEST(Run, OnADeviceItsTimesAreTheDevicesAndTheHostWaitsOnceAndOnlyForThem) {
  const auto cases = testing::cases();
  const auto one_rank = std::ranges::find_if(cases, [](const auto& c) { return c.program.placement.num_ranks() == 1; });
  if (one_rank == cases.end()) FAIL() << "no program of one rank";
  const schedule::Program& program = one_rank->program;
  const auto shape = testing::fixed_shape();
  testing::ToyRank mine(program.placement, 0, shape);
  Link link(program.placement, {}, {}, {.shape = shape(0), .tensor = at::TensorOptions().dtype(at::kDouble)});
  Seconds::calls().clear();
  std::size_t told = 0;
  Hooks hooks{.weight_gradients = mine.queue.get(),
              .reduce_gradients = [](int) {},
              .device = at::Device(c10::DeviceType::PrivateUse1, 0),
              .observe =
                  [&](const schedule::Op&, Clock::time_point start, Clock::time_point end) {
                    EXPECT_NEAR(seconds(end - start), 1, 1e-6);
                    ++told;
                  }};
  const Result observed = run(program, 0, mine.pointers, link, hooks);
  EXPECT_EQ(told, program.ranks[0].size());
  const auto forwards = std::ranges::count_if(
      program.ranks[0], [](const schedule::Op& op) { return op.kind == schedule::Kind::Forward; });
  EXPECT_NEAR(observed.forward_s, static_cast<double>(forwards), 1e-4);
  EXPECT_FALSE(observed.measure);
  EXPECT_EQ(std::ranges::count(Seconds::calls(), "synchronize"), 1);

  hooks.observe = {};
  testing::ToyRank again(program.placement, 0, shape);
  hooks.weight_gradients = again.queue.get();
  Result result = run(program, 0, again.pointers, link, hooks);
  EXPECT_EQ(std::ranges::count(Seconds::calls(), "synchronize"), 1) << "nobody has asked for times";
  result.measure(result);
  EXPECT_NEAR(result.forward_s, static_cast<double>(forwards), 1e-4);
  EXPECT_GT(result.backward_s, 0);
  EXPECT_EQ(std::ranges::count(Seconds::calls(), "synchronize"), 2);
}

}  // namespace
}  // namespace megatron::pipeline
