#pragma once
#include <string>

#include "megatron/base/error.h"
#include "megatron/data/part_dataset.h"

namespace megatron::data {

/// What check_part() throws of a part, or else says.
inline std::string verdict_of(const PartSpec& spec) {
  std::string said;
  try {
    check_part(
        spec, [](const auto&) {}, [&](const std::string& text) { said += text; });
  } catch (const ConfigError& error) {
    return error.what();
  }
  return said;
}

}  // namespace megatron::data
