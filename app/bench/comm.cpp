#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/bench/bench.h"
#include "app/bench/bench_options.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"

namespace megatron::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Timing {
  double median_us = 0, p90_us = 0;
};

/// Times of rank 0, from a barrier to the end of the all-reduce. Each round writes the tensor first, as a matrix
/// product would.
Timing time_all_reduce(const comm::Group& group, std::int64_t bytes, int repeats) {
  const at::Tensor t = at::ones({bytes / 4});
  std::vector<double> us;
  for (int i = -2; i < repeats; ++i) {  // two to warm up
    t.fill_(1);
    group.barrier();
    const auto start = Clock::now();
    group.all_reduce(t);
    if (i >= 0) us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[us.size() * 9 / 10]};
}

json timings(const BenchCommOptions& options, bool gloo) {
  json rows = json::array();
  const auto body = [&](comm::Group group) {
    for (const std::int64_t bytes : options.sizes) {
      const Timing t = time_all_reduce(group, bytes, options.repeats);
      if (group.rank() == 0)
        rows.push_back({{"transport", gloo ? "gloo" : "local"},
                        {"operation", "all_reduce"},
                        {"ranks", options.ranks},
                        {"bytes", bytes},
                        {"median_us", t.median_us},
                        {"p90_us", t.p90_us}});
    }
  };
  gloo ? comm::run_gloo_ranks(options.ranks, body, {}) : comm::run_ranks(options.ranks, body);
  return rows;
}

}  // namespace

int bench_comm(const Args& args) {
  const BenchCommOptions options = bench_comm_options(args);
  json rows = timings(options, false);
  for (json& row : timings(options, true)) rows.push_back(std::move(row));
  if (options.json) {
    print("{}\n", json{{"benchmark", "comm"}, {"results", rows}}.dump(2));
    return kDone;
  }
  print("{:10} {:>6} {:>12} {:>12} {:>12}\n", "transport", "ranks", "bytes", "median us", "p90 us");
  for (const json& row : rows)
    print("{:10} {:6} {:12} {:12.1f} {:12.1f}\n", row["transport"].get<std::string>(), row["ranks"].get<int>(),
          row["bytes"].get<long>(), row["median_us"].get<double>(), row["p90_us"].get<double>());
  return kDone;
}

}  // namespace megatron::app
