#pragma once
#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "megatron/schedule/simulate.h"

namespace megatron::schedule {

/// The timeline that a textbook picture shows, one string a rank and one character a unit of time: a digit is a
/// forward, a letter a backward, w the gradients of weights of the rank's next microbatch, whose backward is then one
/// of the input alone. All that follows is counted here once more, not by what is tested. One stage a rank.
inline Timeline timeline_of(const std::vector<std::string>& picture) {
  Timeline t;
  t.placement = Placement::looped(static_cast<int>(picture.size()), 1);
  t.makespan = static_cast<double>(picture.front().size());
  double idle_of_all = 0;
  for (std::size_t rank = 0; rank < picture.size(); ++rank) {
    const std::string& row = picture[rank];
    const bool split = row.find('w') != std::string::npos;
    std::vector<Slot> slots;
    std::vector<MemoryPoint> memory{{0, 0}};
    int live = 0, peak = 0, next_weight = 0, idle = 0;
    for (std::size_t x = 0; x < row.size(); ++x) {
      const auto start = static_cast<double>(x);
      Op op{Kind::Forward, static_cast<int>(rank), row[x] - '0'};
      if (row[x] == '.') {
        ++idle;
        continue;
      }
      if (row[x] == 'w')
        op = {Kind::BackwardWeight, op.stage, next_weight++};
      else if (std::isalpha(row[x]))
        op = {split ? Kind::BackwardInput : Kind::Backward, op.stage, row[x] - 'a'};
      const double length = op.kind == Kind::Backward ? 2 : 1;
      slots.push_back({op, start, start + length});
      x += static_cast<std::size_t>(length) - 1;
      t.num_microbatches = std::max(t.num_microbatches, op.microbatch + 1);
      if (op.kind == Kind::BackwardInput) continue;
      live += op.kind == Kind::Forward ? 1 : -1;
      peak = std::max(peak, live);
      memory.push_back({op.kind == Kind::Forward ? start : start + length, static_cast<double>(live)});
    }
    t.ranks.push_back(slots);
    t.memory.push_back(memory);
    t.peak_live.push_back(peak);
    t.peak_bytes.push_back(peak);
    t.idle.push_back(idle);
    idle_of_all += idle;
  }
  t.bubble = idle_of_all / (t.makespan * static_cast<double>(picture.size()));
  return t;
}

inline Timeline textbook_1f1b() {
  return timeline_of({"012....aa3bb.cc.dd",  //
                      ".01..aa2bb3cc.dd..",  //
                      "..0aa1bb2cc3dd...."});
}

/// Qi et al. 2023, ZB-H1.
inline Timeline textbook_zb_h1() {
  return timeline_of({"0123...aw4bw5cw6dw7ewfwgwhw",  //
                      ".012..a3bw4cw5dw6ew7fwgwhww",  //
                      "..01.a2b3cw4dw5ew6fw7gwhwww",  //
                      "...0a1b2c3dw4ew5fw6gw7hwwww"});
}

/// Rank after rank starts a unit later; each does forward, backward of every microbatch on each of its stages.
inline Timeline long_timeline(int num_ranks, int num_chunks, int num_microbatches) {
  Timeline t;
  t.placement = Placement::looped(num_ranks, num_chunks);
  t.num_microbatches = num_microbatches;
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<Slot> slots;
    std::vector<MemoryPoint> memory{{0, 0}};
    double now = rank;
    for (int microbatch = 0; microbatch < num_microbatches; ++microbatch)
      for (const int stage : t.placement.stages_of(rank)) {
        slots.push_back({{Kind::Forward, stage, microbatch}, now, now + 1});
        slots.push_back({{Kind::Backward, stage, microbatch}, now + 1, now + 3});
        memory.push_back({now, 1});
        memory.push_back({now + 3, 0});
        now += 3;
      }
    t.makespan = now;
    t.ranks.push_back(slots);
    t.memory.push_back(memory);
  }
  t.idle.assign(t.ranks.size(), num_ranks - 1);
  t.bubble = (num_ranks - 1) / t.makespan;
  t.peak_live.assign(t.ranks.size(), 1);
  t.peak_bytes.assign(t.ranks.size(), 1);
  return t;
}

/// The same operations at `factor` times their times.
inline Timeline stretched(Timeline t, double factor) {
  for (std::vector<Slot>& slots : t.ranks)
    for (Slot& slot : slots) {
      slot.start *= factor;
      slot.end *= factor;
    }
  for (std::vector<MemoryPoint>& points : t.memory)
    for (MemoryPoint& point : points) point.time *= factor;
  for (double& idle : t.idle) idle *= factor;
  t.makespan *= factor;
  return t;
}

}  // namespace megatron::schedule
