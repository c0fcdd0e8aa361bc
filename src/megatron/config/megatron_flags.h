#pragma once
#include <span>
#include <string>
#include <vector>

namespace megatron::config {

/// A flag of Megatron-LM's training that no option here has as its name.
struct MegatronFlag {
  const char* name;
  bool takes_value;
  const char* fix;  ///< what to write instead
};

/// The entry for a normalized name without dashes, or null. A name that is merely near one of our options would
/// otherwise be answered with that option, which means something else.
const MegatronFlag* megatron_flag(const std::string& name);

/// A flag of Megatron-LM without a value that stands for values of options here, e.g. --bf16.
struct MegatronSwitch {
  struct Setting {
    const char *option, *value;
  };
  const char* name;
  std::vector<Setting> settings;
  const char* excludes = nullptr;  ///< another switch
};

/// All of them, in the order of docs/from_megatron_lm.md.
std::span<const MegatronFlag> megatron_flags();
const std::vector<MegatronSwitch>& megatron_switches();

/// The entry for a normalized name without dashes, or null.
const MegatronSwitch* megatron_switch(const std::string& name);

}  // namespace megatron::config
