#pragma once
#include <string>
#include <vector>

#include "app/jobs.h"
#include "megatron/base/error.h"

// The jobs of `megatron data`: app/data.cpp lists them, one row each.
namespace megatron::app {

// data_preprocess.cpp
int data_preprocess(const Args& args);
// data_inspect.cpp
int data_info(const Args& args);
// data_index.cpp
int data_index(const Args& args);

/// Throws ConfigError where an option that a job cannot do without is missing.
inline void need_option(bool given, const char* flag) {
  if (!given) throw ConfigError(rule_got_fix(concat(flag, " must be given."), "nothing"));
}

/// Throws ConfigError where a job that takes no words got some.
inline void no_words(const std::vector<std::string>& words) {
  if (!words.empty()) throw ConfigError(rule_got_fix("this job takes options alone.", words[0]));
}

}  // namespace megatron::app
