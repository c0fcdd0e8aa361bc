// Planning of a pipeline of 64 ranks, 4 stages each, 512 microbatches: a forward and a backward of each are 262,144
// computations, with communication 1.3 million operations. The argument is the way of communication (0 unbatched,
// 1 batched, 2 overlapped); BM_Plan does all that a run needs, and the goal is half a second.
#include <benchmark/benchmark.h>

#include "megatron/schedule/generate.h"
#include "megatron/schedule/passes.h"
#include "megatron/schedule/simulate.h"
#include "megatron/schedule/text.h"
#include "megatron/schedule/validate.h"

namespace megatron::schedule {
namespace {

constexpr Shape kShape{.num_ranks = 64, .num_chunks = 4, .num_microbatches = 512};

Communication way(const benchmark::State& state) { return static_cast<Communication>(state.range(0)); }

void BM_Plan(benchmark::State& state) {
  std::size_t ops = 0;
  double bubble = 0;
  for (auto _ : state) {
    const Program program =
        insert_gradient_reduction(insert_communication(generate("interleaved", kShape), way(state)));
    validate(program);
    bubble = simulate(program).bubble;
    ops = 0;
    for (const std::vector<Op>& rank : program.ranks) ops += rank.size();
  }
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["bubble_pct"] = 100 * bubble;
}
BENCHMARK(BM_Plan)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

void BM_Generate(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(generate("interleaved", kShape));
}
BENCHMARK(BM_Generate)->Unit(benchmark::kMillisecond);

void BM_InsertCommunication(benchmark::State& state) {
  const Program computation = generate("interleaved", kShape);
  for (auto _ : state) benchmark::DoNotOptimize(insert_communication(computation, way(state)));
}
BENCHMARK(BM_InsertCommunication)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

void BM_Validate(benchmark::State& state) {
  const Program program = insert_communication(generate("interleaved", kShape), way(state));
  for (auto _ : state) validate(program);
}
BENCHMARK(BM_Validate)->Arg(0)->Arg(2)->Unit(benchmark::kMillisecond);

void BM_Simulate(benchmark::State& state) {
  const Program program = insert_communication(generate("interleaved", kShape), way(state));
  for (auto _ : state) benchmark::DoNotOptimize(simulate(program));
}
BENCHMARK(BM_Simulate)->Arg(0)->Arg(2)->Unit(benchmark::kMillisecond);

void BM_ParseText(benchmark::State& state) {
  const std::string text = to_text(insert_communication(generate("interleaved", kShape), Communication::Overlapped));
  for (auto _ : state) benchmark::DoNotOptimize(parse_program(text, "bench"));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(BM_ParseText)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron::schedule

BENCHMARK_MAIN();
