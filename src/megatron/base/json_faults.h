#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

/// What a JSON text from outside may have that its parser would take without a word.
struct JsonFaults {
  std::optional<std::string> key_twice;  ///< the first key that an object has again: its second value hides the first
  bool too_deep = false;                 ///< what follows parsing may use the stack for each level
};

/// Goes over `text` before it is parsed, in time linear in it, and builds nothing; up to where it is nested deeper than
/// `max_depth` objects and arrays, or is not JSON, which parsing then says.
///
/// Not as the parser's callback: with one, nlohmann::json searches each object that ends among all that its parent has
/// so far, so that 100,000 objects in an array take minutes.
JsonFaults json_faults(std::string_view text, std::size_t max_depth);

}  // namespace megatron
