#pragma once
#include <map>
#include <string>

namespace megatron {

/// Variables by name.
using Environment = std::map<std::string, std::string>;

/// This process's environment, as data.
Environment process_environment();

}  // namespace megatron
