#include "megatron/schedule/simulate.h"

#include <algorithm>
#include <stdexcept>

#include "megatron/schedule/execute.h"

namespace megatron::schedule {
namespace {

/// What lives on one rank, from slot to slot.
class Memory {
 public:
  Memory(const Costs& costs, bool forward_only) : costs_(costs), forward_only_(forward_only) {}

  void execute(const Slot& slot) {
    const auto stage = static_cast<std::size_t>(slot.op.stage);
    const auto of_op = [&](const std::vector<double>& partial, const std::vector<double>& all, double otherwise) {
      const std::vector<double>& bytes = slot.op.partial && !partial.empty() ? partial : all;
      return bytes.empty() ? otherwise : bytes[stage];
    };
    const double whole = of_op(costs_.partial_activation_bytes, costs_.activation_bytes, 1);
    const double late = of_op(costs_.partial_weight_bytes, costs_.weight_bytes, 0);
    switch (slot.op.kind) {
      case Kind::Forward:
        add(slot.start, 1, whole);
        if (forward_only_) add(slot.end, -1, -whole);
        return;
      case Kind::Backward:
        return add(slot.end, -1, -whole);
      case Kind::BackwardInput:
        return add(slot.end, 0, late - whole);
      case Kind::BackwardWeight:
        return add(slot.end, -1, -late);
      default:
        return;
    }
  }

  int peak_live = 0;
  double peak_bytes = 0;
  std::vector<MemoryPoint> points;

 private:
  void add(double time, int live, double bytes) {
    live_ += live;
    bytes_ += bytes;
    if (live_ == 0) bytes_ = 0;  // no rounding is left behind
    peak_live = std::max(peak_live, live_);
    peak_bytes = std::max(peak_bytes, bytes_);
    if (points.empty() || points.back().time < time) points.push_back({time, bytes_});
    points.back().bytes = bytes_;
  }

  const Costs& costs_;
  bool forward_only_;
  int live_ = 0;
  double bytes_ = 0;
};

bool has_backward(const Timeline& timeline) {
  return std::any_of(timeline.ranks.begin(), timeline.ranks.end(), [](const std::vector<Slot>& slots) {
    return std::any_of(slots.begin(), slots.end(),
                       [](const Slot& slot) { return is_computation(slot.op.kind) && slot.op.kind != Kind::Forward; });
  });
}

}  // namespace

Costs measured_costs(const Timeline& measured, Costs costs) {
  struct Mean {
    double sum = 0, count = 0;
    void add(double time) {
      sum += time;
      count += 1;
    }
    double value() const { return count > 0 ? sum / count : 0; }
  };
  const auto stages = static_cast<std::size_t>(measured.placement.num_stages());
  std::vector<Mean> forward(stages), input(stages), partial_input(stages), weight(stages);
  for (const std::vector<Slot>& slots : measured.ranks)
    for (const Slot& slot : slots) {
      const auto stage = static_cast<std::size_t>(slot.op.stage);
      const double time = slot.end - slot.start;
      if (slot.op.kind == Kind::Forward) forward[stage].add(time);
      Mean& own_input = (slot.op.partial ? partial_input : input)[stage];
      if (slot.op.kind == Kind::BackwardInput) own_input.add(time);
      if (slot.op.kind == Kind::BackwardWeight) weight[stage].add(time);
      if (slot.op.kind != Kind::Backward) continue;
      own_input.add(time / 2);
      weight[stage].add(time / 2);
    }
  const auto values = [](const std::vector<Mean>& means) {
    std::vector<double> result;
    for (const Mean& mean : means) result.push_back(mean.value());
    return result;
  };
  costs.forward = values(forward);
  costs.backward_input = values(input);
  costs.partial_backward_input = values(partial_input);
  for (std::size_t s = 0; s < stages; ++s)
    if (partial_input[s].count == 0) costs.partial_backward_input[s] = costs.backward_input[s];
  costs.backward_weight = values(weight);
  costs.latency = costs.message_bytes = costs.bandwidth = 0;
  return costs;
}

std::set<int> partial_stages(const Timeline& timeline, int rank) {
  std::set<int> stages;
  for (const int stage : timeline.placement.stages_of(rank)) stages.insert(stage);
  for (const Slot& slot : timeline.ranks[static_cast<std::size_t>(rank)])
    if (slot.op.kind == Kind::Forward && !slot.op.partial) stages.erase(slot.op.stage);
  return stages;
}

void summarize(Timeline& timeline, const Costs& costs) {
  const bool forward_only = !has_backward(timeline);
  timeline.makespan = 0;
  timeline.idle.clear();
  timeline.peak_live.clear();
  timeline.peak_bytes.clear();
  timeline.memory.clear();
  double busy_of_all = 0;
  for (const std::vector<Slot>& slots : timeline.ranks) {
    Memory memory(costs, forward_only);
    double busy = 0;
    for (const Slot& slot : slots) {
      timeline.makespan = std::max(timeline.makespan, slot.end);
      if (!is_computation(slot.op.kind)) continue;
      busy += slot.end - slot.start;
      memory.execute(slot);
    }
    busy_of_all += busy;
    timeline.idle.push_back(-busy);
    timeline.peak_live.push_back(memory.peak_live);
    timeline.peak_bytes.push_back(memory.peak_bytes);
    timeline.memory.push_back(std::move(memory.points));
  }
  for (double& idle : timeline.idle) idle += timeline.makespan;
  const double time_of_all = timeline.makespan * static_cast<double>(timeline.ranks.size());
  timeline.bubble = time_of_all > 0 ? 1 - busy_of_all / time_of_all : 0;
}

Timeline simulate(const Program& program, const Costs& costs) {
  Timeline timeline;
  timeline.placement = program.placement;
  timeline.num_microbatches = program.num_microbatches;
  timeline.ranks.resize(program.ranks.size());
  Execution execution(program, costs);
  const bool complete = execution.run([&](int rank, const Op& op, double start, double end) {
    if (is_computation(op.kind) || end > start)
      timeline.ranks[static_cast<std::size_t>(rank)].push_back({op, start, end});
  });
  if (!complete) throw std::logic_error("simulate: the program is not valid");
  summarize(timeline, costs);
  return timeline;
}

}  // namespace megatron::schedule
