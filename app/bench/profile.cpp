#include "app/bench/profile.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string_view>

#include "app/bench/timed_steps.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/timer.h"
#include "megatron/charts/flame_chart.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"

namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRest = "outside of operators";

/// The pass that an operator belongs to, judged by its name; what is computed again counts as forward.
const char* pass_of(std::string_view name) {
  for (const char* word : {"adam_", "sgd_", "lion_", "round_", "sum_of_squares", "max_abs"})
    if (name.starts_with(word)) return "optimizer";
  return name.find("backward") != name.npos || name.find("gradient") != name.npos ? "backward" : "forward";
}

}  // namespace

Json profile_rows(const StepProfile& profile, const MachinePeaks& peaks) {
  const auto steps = static_cast<double>(profile.steps);
  Json rows = Json::array();
  double in_operators = 0;
  const auto add = [&](const std::string& name, const char* pass, const kernels::OperatorUse& use) {
    const double bound_s = std::max(use.flops / (1e9 * peaks.gflops), use.bytes / (1e9 * peaks.copied_gb_s));
    rows.push_back({{"operator", name},
                    {"pass", pass},
                    {"calls", static_cast<double>(use.calls) / steps},
                    {"ms", 1e3 * use.seconds / steps},
                    {"share", use.seconds / profile.step_s},
                    {"gflop", 1e-9 * use.flops / steps},
                    {"gb", 1e-9 * use.bytes / steps},
                    {"bound_ms", 1e3 * bound_s / steps},
                    {"bound_fraction", use.seconds > 0 ? bound_s / use.seconds : 0.0}});
    in_operators += use.seconds;
  };
  for (const auto& [name, use] : profile.uses) add(name, pass_of(name), use);
  std::stable_sort(rows.begin(), rows.end(), [](const Json& a, const Json& b) { return a["ms"] > b["ms"]; });
  add(kRest, "", {0, std::max(0.0, profile.step_s - in_operators), 0, 0});
  return rows;
}

std::string profile_table(const Json& rows, const std::string& whole) {
  std::string text = formatted("{:<40} {:>7} {:>9} {:>6} {:>9} {:>8} {:>9} {:>8}\n", "operator", "calls", "ms", "share",
                               "GFLOP", "GB", "bound ms", "of bound");
  double ms = 0, bound_ms = 0, gflop = 0, gb = 0;
  for (const Json& row : rows) {
    text += formatted("{:<40} {:>7.0f} {:>9.2f} {:>5.1f}% {:>9.2f} {:>8.3f} {:>9.2f} {:>7.0f}%\n",
                      row["operator"].get<std::string>(), row["calls"].get<double>(), row["ms"].get<double>(),
                      100 * row["share"].get<double>(), row["gflop"].get<double>(), row["gb"].get<double>(),
                      row["bound_ms"].get<double>(), 100 * row["bound_fraction"].get<double>());
    ms += row["ms"].get<double>();
    bound_ms += row["bound_ms"].get<double>();
    gflop += row["gflop"].get<double>();
    gb += row["gb"].get<double>();
  }
  return text + formatted("{:<40} {:>7} {:>9.2f} {:>5.1f}% {:>9.2f} {:>8.3f} {:>9.2f} {:>7.0f}%\n", whole, "", ms,
                          100.0, gflop, gb, bound_ms, ms > 0 ? 100 * bound_ms / ms : 0.0);
}

std::string profile_flame(const std::string& title, const Json& rows) {
  charts::FlameBox step{"step", 0, "", {}};
  const auto said = [](double ms) { return formatted("{:.1f} ms", ms); };
  for (const char* pass : {"forward", "backward", "optimizer", ""}) {
    charts::FlameBox box{pass, 0, "", {}};
    for (const Json& row : rows) {
      if (row["pass"] != pass) continue;
      const double ms = row["ms"];
      box.parts.push_back(
          {row["operator"],
           ms,
           concat(said(ms), ", ", formatted("{:.0f}", 100 * row["bound_fraction"].get<double>()), " % of the bound"),
           {}});
      box.value += ms;
    }
    step.value += box.value;
    if (*pass == '\0') {
      for (charts::FlameBox& part : box.parts) step.parts.push_back({part.label, part.value, said(part.value), {}});
    } else {
      box.text = said(box.value);
      step.parts.push_back(std::move(box));
    }
  }
  step.text = said(step.value);
  return charts::draw_flame(title, step);
}

double matmul_peak_gflops(at::ScalarType dtype, at::Device device, int threads) {
  kernels::configure_thread(threads);
  // A GPU ends a small product before the host has seen it begin, and draws less power for equal numbers.
  const bool gpu = !device.is_cpu();
  const std::int64_t size = gpu ? 8192 : 2048;
  const int at_once = gpu ? 16 : 1, runs = gpu ? 6 : 24;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const auto numbers = [&] {
    return gpu ? at::rand({size, size}, options).sub_(0.5) : at::ones({size, size}, options);
  };
  const auto a = numbers(), b = numbers();
  auto c = at::empty({size, size}, options);
  finish(c);
  kernels::PackedWeight packed;
  double best_s = 1e9;
  for (int run = 0; run < runs; ++run) {
    const Stopwatch watch;
    for (int i = 0; i < at_once; ++i) {
      if (run % 2 == 0)
        at::mm_out(c, a, b);
      else
        c = kernels::linear(a, b, &packed);
    }
    finish(c);
    best_s = std::min(best_s, watch.seconds() / at_once);
  }
  const auto n = static_cast<double>(size);
  return 2e-9 * n * n * n / best_s;
}

double measure_copied_gb_s(int threads) {
  constexpr std::int64_t kFloats = 1 << 26;
  kernels::configure_thread(threads);
  const auto from = at::ones({kFloats}), to = at::zeros({kFloats});
  double best_s = 1e9;
  for (int i = 0; i < 7; ++i) {
    const Stopwatch watch;
    to.copy_(from);
    best_s = std::min(best_s, watch.seconds());
  }
  return 1e-9 * 2 * 4 * kFloats / best_s;
}

}  // namespace megatron::app
