#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/backward.h"
#include "megatron/pipeline/run.h"
#include "megatron/schedule/generate.h"
#include "megatron/schedule/passes.h"

// What the runtime itself takes: programs of stages that compute nothing. The goal is 20 us an operation, 50,000 a
// second; with two ranks each message is waited for.
namespace megatron::pipeline {
namespace {

class EmptyStage final : public Stage {
 public:
  Output forward(int, at::Tensor x, bool) override {
    if (!x.defined()) x = parameter_;
    return {parallel::with_backward({x}, x.detach(), [](const std::vector<at::Tensor>& grads) { return grads; }), 1};
  }
  std::vector<std::int64_t> boundary_shape(int) const override { return {1}; }

 private:
  at::Tensor parameter_ = at::zeros({1}).requires_grad_(true);
};

void BM_EmptyStages(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const auto program = schedule::insert_communication(
      ranks == 1 ? schedule::accumulate({.num_microbatches = 512})
                 : schedule::generate("1f1b", {.num_ranks = ranks, .num_chunks = 1, .num_microbatches = 512}),
      schedule::Communication::Overlapped);
  const auto ops = static_cast<double>(program.ranks[0].size());
  for (auto _ : state) {
    comm::run_ranks(ranks, [&](const comm::Group& pp) {
      EmptyStage stage;
      Link link = ranks == 1 ? Link() : Link(program.placement, pp, {}, {.shape = {1}, .tensor = at::kFloat});
      std::vector<Stage*> stages{&stage};
      run(program, pp.rank(), stages, link);
    });
  }
  state.counters["ops_per_s"] = benchmark::Counter(ops, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_EmptyStages)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace megatron::pipeline

BENCHMARK_MAIN();
