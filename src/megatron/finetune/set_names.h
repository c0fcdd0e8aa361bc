#pragma once
#include <string>
#include <vector>

namespace megatron::finetune {

/// What the sets in these files or folders are called in tables and as folders of their predictions: the name of each
/// without its ending, of equal ones with that of the folder in front, and with a number where that is equal too.
/// Letters of ASCII, digits, '-', '_' and '.' alone, no '.' in front.
std::vector<std::string> set_names(const std::vector<std::string>& paths);

}  // namespace megatron::finetune
