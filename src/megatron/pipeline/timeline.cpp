#include "megatron/pipeline/timeline.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace megatron::pipeline {
namespace {

using schedule::Kind;
using schedule::Slot;

constexpr std::int64_t kFields = 6;  // kind, stage, microbatch, partial, start, end

bool takes_time(Kind kind) {
  switch (kind) {
    case Kind::Forward:
    case Kind::Backward:
    case Kind::BackwardInput:
    case Kind::BackwardWeight:
    case Kind::WaitSendActivation:
    case Kind::WaitRecvActivation:
    case Kind::WaitSendGradient:
    case Kind::WaitRecvGradient:
      return true;
    case Kind::SendActivation:
    case Kind::RecvActivation:
    case Kind::SendGradient:
    case Kind::RecvGradient:
    case Kind::ReduceGradients:
      return false;
  }
  return false;
}

at::Tensor packed(const std::vector<Slot>& slots, std::int64_t rows) {
  const auto table = at::zeros({rows, kFields}, at::kDouble);
  double* out = table.mutable_data_ptr<double>();
  for (const Slot& slot : slots) {
    for (const double value :
         {static_cast<double>(slot.op.kind), static_cast<double>(slot.op.stage),
          static_cast<double>(slot.op.microbatch), slot.op.partial ? 1.0 : 0.0, slot.start, slot.end})
      *out++ = value;
  }
  return table;
}

}  // namespace

void Recorder::begin(const comm::Group& pp) {
  slots_.clear();
  pp.barrier();
  const auto now = Clock::now();
  const auto since_boot = [](Clock::time_point t) { return std::chrono::duration<double>(t.time_since_epoch()); };
  std::vector<double> readings(static_cast<std::size_t>(pp.size()), 0);
  readings[static_cast<std::size_t>(pp.rank())] = since_boot(now).count();
  readings = pp.all_reduce_scalars(readings);
  // Ranks leave a barrier at different times, by as much as their machine is busy; but on one host they read one clock,
  // and hosts were hardly started in the same second.
  const double from_first = readings[0] - since_boot(now).count();
  const bool one_clock = std::abs(from_first) < 1;
  zero_ =
      one_clock ? now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(from_first)) : now;
}

void Recorder::operator()(const schedule::Op& op, Clock::time_point start, Clock::time_point end) {
  const auto seconds = [&](Clock::time_point t) { return std::chrono::duration<double>(t - zero_).count(); };
  if (takes_time(op.kind)) slots_.push_back({op, seconds(start), seconds(end)});
}

schedule::Timeline Recorder::gather(const schedule::Program& program, const schedule::Costs& costs,
                                    const comm::Group& pp) const {
  std::vector<double> counts(static_cast<std::size_t>(pp.size()), 0);
  counts[static_cast<std::size_t>(pp.rank())] = static_cast<double>(slots_.size());
  counts = pp.all_reduce_scalars(counts);
  double most = 1;
  for (const double count : counts) most = std::max(most, count);
  const at::Device device = pp.backend() ? pp.backend()->device() : at::Device(at::kCPU);
  const auto rows = static_cast<std::int64_t>(most);
  const auto all = pp.all_gather(packed(slots_, rows).to(device)).cpu();
  schedule::Timeline timeline;
  timeline.placement = program.placement;
  timeline.num_microbatches = program.num_microbatches;
  for (int rank = 0; rank < pp.size(); ++rank) {
    const double* field = all.const_data_ptr<double>() + rank * rows * kFields;
    auto& slots = timeline.ranks.emplace_back();
    for (double i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i, field += kFields)
      slots.push_back(
          {{static_cast<Kind>(field[0]), static_cast<int>(field[1]), static_cast<int>(field[2]), field[3] != 0},
           field[4],
           field[5]});
  }
  schedule::summarize(timeline, costs);
  return timeline;
}

}  // namespace megatron::pipeline
