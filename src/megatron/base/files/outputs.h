#pragma once
#include <string>
#include <vector>

namespace megatron {

/// Throws ConfigError where an output of a job is one of its inputs or another of its outputs, also by another name
/// (links, "./"): one would replace the other; or is a folder; or is "-", for what is written must be there whole or
/// not at all. Called before work. Empty names, and "-" among the inputs, stand for no file.
void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

/// Throws ConfigError where `part`, which `whose` gives, cannot be part of a file's name: 1 to 128 bytes of visible
/// UTF-8 without '/'.
void check_file_name_part(const std::string& whose, const std::string& part, const std::string& fix);

}  // namespace megatron
