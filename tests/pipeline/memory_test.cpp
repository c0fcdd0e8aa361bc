#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/schedule/simulate.h"
#include "tests/pipeline/live_bytes.h"
#include "tests/pipeline/toy.h"

namespace megatron::pipeline {
namespace {

// A toy stage keeps its input and, between the halves of a split backward, its input and the gradient of its product.
TEST(Run, HoldsThroughoutExactlyTheBytesThatTheSimulatorCounts) {
  const auto shape = testing::fixed_shape();
  const double message = 3 * 2 * testing::kHidden * 8;
  for (const auto& [name, program] : testing::cases()) {
    SCOPED_TRACE(name);
    const auto stages = static_cast<std::size_t>(program.placement.num_stages());
    schedule::Costs costs;
    costs.activation_bytes.assign(stages, message);
    costs.weight_bytes.assign(stages, 2 * message);
    const auto timeline = schedule::simulate(program, costs);
    comm::run_ranks(program.placement.num_ranks(), [&, &p = program](const comm::Group& pp) {
      testing::ToyRank mine(p.placement, pp.rank(), shape);
      Link link(p.placement, pp, {}, {.shape = shape(0), .tensor = at::TensorOptions().dtype(at::kDouble)});
      testing::LiveBytes live(p, pp.rank(), costs, message);
      const testing::CountAllocations counting(live.counter());
      run(p, pp.rank(), mine.pointers, link,
          {.weight_gradients = mine.queue.get(),
           .observe = [&](const schedule::Op& op, Clock::time_point, Clock::time_point) { live.after(op); }});
      EXPECT_EQ(live.peak(), timeline.peak_bytes[static_cast<std::size_t>(pp.rank())]) << "rank " << pp.rank();
    });
  }
}

}  // namespace
}  // namespace megatron::pipeline
