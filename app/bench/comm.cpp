#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/bench/bench.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"

namespace megatron::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Options {
  int ranks = 2;
  std::vector<std::int64_t> sizes = {64 << 10, 3 << 20, 64 << 20};
  int repeats = 21;
  bool json = false;

  void visit(auto& v) {
    v("ranks", ranks, "Ranks, each a thread of this process.");
    v("sizes", sizes, "Bytes of the all-reduced float tensor.");
    v("repeats", repeats, "Timed rounds; the median counts.");
    v("json", json, "Print one JSON object on stdout.");
  }
};

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

json timings(const Options& options, bool gloo) {
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
  Options options;
  const auto rest = config::parse_command_line(options, args, "megatron bench comm [OPTION]…");
  if (!rest.empty())
    throw ConfigError(rule_got_fix("bench comm takes options alone.", rest[0], concat("leave '", rest[0], "' out")));
  const bool sizes_fit = std::all_of(options.sizes.begin(), options.sizes.end(), [](std::int64_t bytes) {
    return bytes >= 4 && bytes % 4 == 0 && bytes <= (std::int64_t{1} << 32);
  });
  if (!sizes_fit) {
    std::string sizes;
    for (const std::int64_t bytes : options.sizes) sizes += concat(sizes.empty() ? "" : ",", bytes);
    throw ConfigError(
        rule_got_fix("--sizes must be multiples of 4 bytes, from 4 bytes to 4 GiB.", sizes, "--sizes 4096,1048576"));
  }
  if (options.ranks < 2 || options.ranks > 64 || options.repeats < 1)
    throw ConfigError(rule_got_fix("bench comm needs 2 to 64 ranks and a repeat.",
                                   concat(options.ranks, " ranks, ", options.repeats, " repeats"),
                                   "--ranks 2 --repeats 1"));
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
