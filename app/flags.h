#pragma once
#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/data_config.h"

// What jobs ask of their own flags.
namespace megatron::app {

/// Throws ConfigError where an option that a job cannot do without is missing. `example`: a value of it, or what to put
/// there in capitals.
inline void need_option(bool given, const char* flag, const char* example = "FILE") {
  if (!given) throw ConfigError(rule_got_fix(concat(flag, " must be given."), "nothing", concat(flag, " ", example)));
}

/// The line of a usage text that shows the command.
inline std::string command_of(const std::string& usage) { return usage.substr(0, usage.find('\n')); }

/// Throws ConfigError where an option was set that is read with another alone.
inline void refuse_without(bool set, const char* flag, const std::string& needs) {
  if (set)
    throw ConfigError(
        rule_got_fix(concat(flag, " has no effect without ", needs, "."), "it is set", concat("leave ", flag, " out")));
}

using config::kTokenizerHelp;
using config::kTokenizerTypeHelp;

/// Throws ConfigError where a job that takes no words got some.
inline void no_words(const std::vector<std::string>& words) {
  if (!words.empty())
    throw ConfigError(rule_got_fix("this job takes options alone.", words[0], concat("leave '", words[0], "' out")));
}

/// Bytes that the option `flag` says: "80GB", "1.5e9", "64GiB". Throws ConfigError.
inline double bytes_of(const std::string& flag, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  double factor = 0;
  for (const auto& [name, bytes] : {std::pair("", 1.0), {"GB", 1e9}, {"GiB", 0x1p30}, {"MB", 1e6}, {"MiB", 0x1p20}})
    if (unit == name) factor = bytes;
  if (error != std::errc() || factor == 0 || !(number > 0) || number * factor > 1e18)
    throw ConfigError(rule_got_fix(flag + " must be bytes, as 80GB or 64GiB.", text, flag + " 80GB"));
  return number * factor;
}

/// Threads that the option `name` asks for; 0: one a core. Throws ConfigError outside 0 … 1024.
inline int threads_of(int flag, const char* name = "--threads") {
  if (flag < 0 || flag > 1024)
    throw ConfigError(rule_got_fix(concat(name, " must be 0 to 1024."), concat(flag), concat(name, " 0, one a core")));
  return flag > 0 ? flag : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace megatron::app
