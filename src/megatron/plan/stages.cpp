#include "megatron/plan/stages.h"

namespace megatron::plan {

std::vector<StagePart> parts_of_rank(const std::vector<StagePart>& parts, const schedule::Placement& placement,
                                     int pp_rank) {
  std::vector<StagePart> held;
  for (const int stage : placement.stages_of(pp_rank)) held.push_back(parts[static_cast<std::size_t>(stage)]);
  return held;
}

}  // namespace megatron::plan
