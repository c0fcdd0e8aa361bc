#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace megatron {

/// The user asked for something that cannot be: a wrong option, a damaged input file. The message says the rule,
/// what was got and, where one is known to be valid, the fix. The program exits with 2 and has changed nothing.
struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Joins its arguments as `std::ostream` prints them.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  out << std::boolalpha;
  (out << ... << args);
  return out.str();
}

/// "rule\n  got:  …\n  fix:  …": the one shape of every message to the user. An empty `fix` is left out. Words of `got`
/// with more than 255 bytes are shortened to the first and last 100 of them, with their size between.
std::string rule_got_fix(const std::string& rule, const std::string& got, const std::string& fix = "");

}  // namespace megatron
