#pragma once
#include <functional>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"

// Fixes that were tried before they are shown: each is applied to the configuration that broke the rule, and the rules
// are checked again.
namespace megatron::plan {

/// A broken rule, as a message has it.
struct Violation {
  std::string rule, got, fix;
};

/// The broken rules of a ConfigError's message (base/error.h, rule_got_fix), in its order.
std::vector<Violation> violations_in(const std::string& message);

/// What a fix says to do to a command line.
struct Amendment {
  std::vector<std::string> words;     ///< option words to give, in place of the same options
  std::vector<std::string> left_out;  ///< options to leave out, with their dashes

  bool empty() const { return words.empty() && left_out.empty(); }
};

/// Reads "--tp 2 --pp 1 (the default), or …" and "leave --sft and --fim-data out"; empty for prose.
Amendment amendment_of(const std::string& fix);

/// What is wrong with a configuration, "" where nothing is.
using Check = std::function<std::string(const config::RunConfig&)>;

/// `message`, which `check` has given for `config`, with fixes that work: applied alone, a fix ends its rule's
/// violation and breaks no other rule; applied together, the fixes leave nothing broken. Where the fix that a rule
/// proposes does not, it is replaced by the smallest change to the layout, or to the options that the rule names, that
/// does. Options are written as the job has them, `facts.flags`. A rule for which nothing is found keeps what it
/// proposes.
std::string with_working_fixes(const std::string& message, const config::RunConfig& config, const Facts& facts,
                               const Check& check);

}  // namespace megatron::plan
