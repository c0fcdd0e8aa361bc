#include "megatron/train/log/timers.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "megatron/base/text/format.h"

namespace megatron::train {
namespace {

struct TimerInfo {
  const char* name;
  std::int64_t level;
};

// In the order of TimerId.
constexpr std::array<TimerInfo, kNumTimers> kTimers = {{
    {"forward-backward", 1},
    {"all-grads-sync", 1},
    {"layernorm-grads-all-reduce", 1},
    {"embedding-grads-all-reduce", 1},
    {"params-all-gather", 1},
    {"optimizer-clip-main-grad", 1},
    {"optimizer-count-zeros", 1},
    {"optimizer-inner-step", 1},
    {"optimizer", 1},
    {"batch-generator", 2},
    {"forward-compute", 2},
    {"backward-compute", 2},
    {"forward-recv", 2},
    {"forward-send", 2},
    {"backward-recv", 2},
    {"backward-send", 2},
    {"model-and-optimizer-setup", 1},
    {"train/valid/test-data-iterators-setup", 1},
    {"evaluate", 1},
    {"save-checkpoint", 1},
}};

const TimerInfo& info(TimerId id) { return kTimers[static_cast<std::size_t>(id)]; }

std::string dotted(TimerId id) { return fmt::format("\n    {:.<48}", std::string(timer_name(id)) + " "); }

}  // namespace

const char* timer_name(TimerId id) { return info(id).name; }

std::optional<TimesOverRanks::MinMax> TimesOverRanks::of(std::size_t timer) const {
  std::optional<MinMax> both;
  for (const double s : seconds[timer]) {
    if (s <= 0) continue;
    if (!both) both = {s, s};
    both->min = std::min(both->min, s);
    both->max = std::max(both->max, s);
  }
  return both;
}

std::string timer_text(const TimesOverRanks& times, const std::string& option, double steps) {
  const double to_ms = 1e3 / steps;
  std::string lines;
  for (std::size_t i = 0; i < times.timers.size(); ++i) {
    const auto both = times.of(i);
    if (!both) continue;
    if (option == "max") {
      lines += dotted(times.timers[i]) + fmt::format(": {:.2f}", both->max * to_ms);
    } else if (option == "minmax") {
      lines += dotted(times.timers[i]) + fmt::format(": ({:.2f}, {:.2f})", both->min * to_ms, both->max * to_ms);
    } else {
      lines += fmt::format("\n  {}:", timer_name(times.timers[i]));
      for (std::size_t rank = 0; rank < times.seconds[i].size(); ++rank)
        if (times.seconds[i][rank] > 0)
          lines += fmt::format("\n     rank {:2}: {:.2f}", rank, times.seconds[i][rank] * to_ms);
    }
  }
  if (lines.empty()) return "";
  const char* const head = option == "max"      ? "max time across ranks (ms):"
                           : option == "minmax" ? "(min, max) time across ranks (ms):"
                                                : "times across ranks (ms):";
  return head + lines;
}

Timers::Timers(std::int64_t level, bool barrier, bool straggler, comm::Group world)
    : level_(level), barrier_(barrier), straggler_(straggler), world_(std::move(world)) {}

bool Timers::measures(TimerId id) const {
  return info(id).level <= level_ || (straggler_ && (id == TimerId::ForwardCompute || id == TimerId::BackwardCompute));
}

Timers::Scope Timers::time(TimerId id) {
  if (!measures(id)) return Scope(nullptr);
  if (barrier_ && info(id).level == 1) world_.barrier();
  return Scope(&seconds_[static_cast<std::size_t>(id)]);
}

void Timers::add(TimerId id, double seconds) {
  if (measures(id)) seconds_[static_cast<std::size_t>(id)] += seconds;
}

TimesOverRanks Timers::take_step(const comm::Group& world) {
  std::vector<TimerId> timers;
  for (std::size_t i = 0; i < kNumStepTimers; ++i)
    if (measures(static_cast<TimerId>(i))) timers.push_back(static_cast<TimerId>(i));
  return take(world, timers);
}

TimesOverRanks Timers::take(const comm::Group& world, const std::vector<TimerId>& timers) {
  std::vector<double> own;
  for (const TimerId id : timers) own.push_back(std::exchange(seconds_[static_cast<std::size_t>(id)], 0));
  const auto by_rank = gathered(world, own);
  TimesOverRanks times{.timers = timers, .seconds = {}};
  for (std::size_t i = 0; i < timers.size(); ++i) {
    times.seconds.emplace_back();
    for (const auto& of_rank : by_rank) times.seconds.back().push_back(of_rank[i]);
  }
  return times;
}

std::vector<std::vector<double>> gathered(const comm::Group& world, const std::vector<double>& values) {
  if (values.empty()) return std::vector<std::vector<double>>(static_cast<std::size_t>(world.size()));
  const at::Device device = world.backend() ? world.backend()->device() : at::Device(at::kCPU);
  const auto all = world.all_gather(at::tensor(values, at::kDouble).to(device)).cpu();
  const double* next = all.const_data_ptr<double>();
  std::vector<std::vector<double>> by_rank;
  for (int rank = 0; rank < world.size(); ++rank, next += values.size())
    by_rank.emplace_back(next, next + values.size());
  return by_rank;
}

}  // namespace megatron::train
