#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megatron/base/text/code_points.h"

namespace megatron::serve {

/// A regular expression as a machine without memory: states, and steps between them that read a character of a set or
/// none.
struct CharacterMachine {
  enum class Free : std::uint8_t { Always, AtStart, AtEnd };  ///< when a step that reads nothing may be taken
  struct FreeStep {
    std::size_t to = 0;
    Free when = Free::Always;
  };
  struct ReadingStep {
    std::size_t to = 0;
    std::size_t set = 0;  ///< of `sets`
  };
  struct State {
    std::vector<FreeStep> free;
    std::vector<ReadingStep> reading;
  };
  std::vector<State> states;
  std::vector<CodePoints> sets;
  std::size_t start = 0, end = 0;  ///< end: where the expression has been found
};

/// Throws ApiError 400 for an expression that is none, is too large or has what no such machine knows.
CharacterMachine machine_of(std::string_view pattern);

}  // namespace megatron::serve
