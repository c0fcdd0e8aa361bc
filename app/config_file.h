#pragma once
#include <string>

namespace megatron::app {

/// The TOML file that a flag names: a path, or FOLDER/NAME.toml of the working folder, of the source tree that the
/// program was built in (build/megatron), or of share/megatron where it is installed. Throws ConfigError where there is
/// none. `folder`: "configs".
std::string config_file(const std::string& name, const std::string& folder, const std::string& flag);

}  // namespace megatron::app
