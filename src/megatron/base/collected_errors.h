#pragma once
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <typeinfo>

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

/// Returns what `work` returns; a ConfigError of it that has no fix gets `fix`. Readers of files, which have one fix
/// for all that can be wrong with them. Errors of derived kinds stay what they are.
template <class Work>
auto with_fix(const std::string& fix, const Work& work) {
  try {
    return work();
  } catch (const ConfigError& error) {
    const std::string_view text = error.what();
    if (typeid(error) != typeid(ConfigError) || text.find("\n  fix:") != std::string_view::npos) throw;
    throw ConfigError(concat(text, "\n  fix:  ", fix));
  }
}

}  // namespace megatron
