#pragma once
#include <string>

namespace megatron::data {

/// Throws ConfigError where the disk that `file` will lie on has less room than the index takes. `samples`: how many it
/// is for, as the message says it.
void check_room(const std::string& file, const std::string& samples, double bytes);

}  // namespace megatron::data
