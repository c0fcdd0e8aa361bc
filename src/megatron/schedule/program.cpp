#include "megatron/schedule/program.h"

#include <algorithm>
#include <array>

namespace megatron::schedule {

std::string_view to_string(Kind kind) {
  static constexpr std::array<std::string_view, kNumKinds> kNames = {"F",  "B",   "I",   "W",   "SA",  "RA", "SG",
                                                                     "RG", "wSA", "wRA", "wSG", "wRG", "R"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_string(const Op& op) {
  return std::string(to_string(op.kind)) + std::to_string(op.stage) + "." + std::to_string(op.microbatch);
}

bool has_communication(const Program& program) {
  return std::any_of(program.ranks.begin(), program.ranks.end(), [](const std::vector<Op>& ops) {
    return std::any_of(ops.begin(), ops.end(), [](const Op& op) { return is_communication(op.kind); });
  });
}

}  // namespace megatron::schedule
