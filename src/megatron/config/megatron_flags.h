#pragma once
#include <string>

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

}  // namespace megatron::config
