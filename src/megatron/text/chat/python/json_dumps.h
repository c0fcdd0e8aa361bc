#pragma once
#include <string>

#include "megatron/text/chat/python/value.h"

namespace megatron::text {

/// json.dumps() with these arguments.
struct JsonDumps {
  bool ascii = false, sorted = false;
  std::string indent;  ///< of a level; with `lines`
  bool lines = false;
  std::string between = ", ", colon = ": ";
  std::string of(const JinjaValue& value, JinjaBudget& budget) const;
};

}  // namespace megatron::text
