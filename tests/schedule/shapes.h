#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "megatron/schedule/generate.h"
#include "megatron/schedule/passes.h"
#include "megatron/schedule/simulate.h"
#include "megatron/schedule/text.h"

namespace megatron::schedule {

struct Named {
  std::string name;
  Program program;
};

/// Every schedule of the table that the shape suits, accumulation, and what evaluation runs.
inline std::vector<Named> all_programs(const Shape& shape) {
  std::vector<Named> all;
  if (shape.num_ranks == 1) all.push_back({"accumulate", accumulate(shape)});
  for (const ScheduleInfo& info : schedules())
    if (info.takes(shape.num_chunks) && info.min_microbatches(shape.num_ranks) <= shape.num_microbatches)
      all.push_back({info.name, generate(info, shape)});
  if (shape.num_chunks == 2)
    all.push_back({"forward-only v", forward_only(Placement::v_shaped(shape.num_ranks), shape.num_microbatches)});
  all.push_back({"forward-only", forward_only(shape)});
  return all;
}

inline Program lower(const Program& computation, Communication how) {
  Program program = insert_communication(computation, how);
  if (!program.forward_only) program = insert_gradient_reduction(std::move(program));
  return program;
}

inline constexpr Communication kCommunications[] = {Communication::Unbatched, Communication::Batched,
                                                    Communication::Overlapped};

/// One line a rank, one column a unit: forward 0 1 2 …, backward a b c …, gradient of weights w.
inline std::string picture(const Timeline& timeline) {
  std::string text;
  for (const std::vector<Slot>& slots : timeline.ranks) {
    std::string line(static_cast<std::size_t>(std::lround(timeline.makespan)), '.');
    for (const Slot& slot : slots) {
      if (!is_computation(slot.op.kind)) continue;
      const char first = slot.op.kind == Kind::Forward ? '0' : 'a';
      for (auto t = std::lround(slot.start); t < std::lround(slot.end); ++t)
        line[static_cast<std::size_t>(t)] =
            slot.op.kind == Kind::BackwardWeight ? 'w' : static_cast<char>(first + slot.op.microbatch);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace megatron::schedule
