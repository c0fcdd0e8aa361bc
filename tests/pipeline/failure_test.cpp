#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>

#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/pipeline/toy.h"

namespace megatron::pipeline {
namespace {

using namespace std::chrono_literals;
using schedule::Kind;

using RunRanks = void (*)(int, const std::function<void(comm::Group)>&, const comm::LocalOptions&);

class Failure : public ::testing::TestWithParam<RunRanks> {
 protected:
  // What each rank of `program` throws, where rank `broken` does `instead` of it.
  std::vector<std::string> errors(const schedule::Program& program, int broken,
                                  const std::function<void(Link&)>& instead, std::chrono::milliseconds timeout) {
    std::vector<std::string> messages(program.ranks.size());
    try {
      GetParam()(program.placement.num_ranks(),
                 [&](const comm::Group& pp) {
                   const auto shape = testing::fixed_shape();
                   testing::ToyRank mine(program.placement, pp.rank(), shape);
                   Link link(program.placement, pp, {},
                             {.shape = shape(0), .tensor = at::TensorOptions().dtype(at::kDouble)});
                   try {
                     if (pp.rank() == broken)
                       instead(link);
                     else
                       run(program, pp.rank(), mine.pointers, link, {.weight_gradients = mine.queue.get()});
                   } catch (const std::exception& e) {
                     messages[static_cast<std::size_t>(pp.rank())] = e.what();
                     if (pp.rank() == 1) patience_over_.set_value();
                     throw;
                   }
                 },
                 {.timeout = timeout});
      ADD_FAILURE() << "no rank failed";
    } catch (const std::exception&) {  // the first one's, which `messages` has too
    }
    return messages;
  }

  std::promise<void> patience_over_;  // of rank 1
};

schedule::Program lowered(const char* name, int ranks, int microbatches, schedule::Communication how) {
  return schedule::insert_communication(
      schedule::generate(name, {.num_ranks = ranks, .num_chunks = 1, .num_microbatches = microbatches}), how);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_P(Failure, AStalledNeighbourEndsInATimeoutThatNamesOperationStageAndMicrobatch) {
  for (const auto how : {schedule::Communication::Unbatched, schedule::Communication::Overlapped}) {
    const auto program = lowered("gpipe", 2, 4, how);
    // Rank 0 stops half way, before it sends the third activation.
    patience_over_ = {};
    auto cut = program;
    int sent = 0;
    auto& ops = cut.ranks[0];
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (ops[i].kind == Kind::SendActivation && ++sent == 3) ops.resize(i);
    const auto shape = testing::fixed_shape();
    const auto messages = errors(
        program, 0,
        [&](Link& link) {
          testing::ToyRank mine(cut.placement, 0, shape);
          run(cut, 0, mine.pointers, link, {.weight_gradients = mine.queue.get()});
          // Alive and silent.
          EXPECT_EQ(patience_over_.get_future().wait_for(60s), std::future_status::ready);
        },
        1s);
    EXPECT_TRUE(contains(messages[1], "(stage 1, microbatch 2, with pipeline rank 0)")) << messages[1];
    EXPECT_TRUE(contains(messages[1], "pipeline operation wRA1.2")) << messages[1];
    EXPECT_TRUE(contains(messages[1], "rank 0")) << messages[1];
  }
}

TEST_P(Failure, AnExceptionInOneStageEndsAllRanksAtOnce) {
  for (const auto how :
       {schedule::Communication::Unbatched, schedule::Communication::Batched, schedule::Communication::Overlapped}) {
    const auto program = lowered("1f1b", 4, 6, how);
    const auto shape = testing::fixed_shape();
    struct Breaks final : Stage {
      Output forward(int microbatch, at::Tensor x, bool /*partial*/) override {
        if (microbatch == 3) throw std::runtime_error("no memory left");
        return {parallel::with_backward({x}, x * 2,
                                        [](const std::vector<at::Tensor>& g) { return std::vector<at::Tensor>{g[0]}; }),
                0};
      }
      std::vector<std::int64_t> boundary_shape(int) const override { return {}; }
    };
    const auto messages = errors(
        program, 2,
        [&](Link& link) {
          Breaks stage;
          run(program, 2, {&stage}, link, {});
        },
        60s);
    EXPECT_EQ(messages[2], "no memory left");
    for (const int rank : {0, 1, 3}) {
      const std::string& message = messages[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(contains(message, "pipeline operation")) << "rank " << rank << ": " << message;
      EXPECT_FALSE(contains(message, "within 60")) << "waited until its patience was at its end: " << message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Failure,
                         ::testing::Values(static_cast<RunRanks>(comm::run_ranks), &comm::run_gloo_ranks),
                         [](const auto& test) { return test.index == 0 ? "local" : "gloo"; });

}  // namespace
}  // namespace megatron::pipeline
