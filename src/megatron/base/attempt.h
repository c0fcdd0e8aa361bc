#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include "megatron/base/error.h"

namespace megatron {

/// Runs every step, also those after one that throws ConfigError, and then throws the messages as one ConfigError: the
/// user sees all that is wrong at once.
inline void attempt_all(std::initializer_list<std::function<void()>> steps) {
  std::string errors;
  for (const auto& step : steps) {
    try {
      step();
    } catch (const ConfigError& error) {
      errors += concat(errors.empty() ? "" : "\n", error.what());
    }
  }
  if (!errors.empty()) throw ConfigError(errors);
}

}  // namespace megatron
