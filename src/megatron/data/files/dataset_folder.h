#pragma once
#include <string>
#include <vector>

namespace megatron::data {

/// `inputs`, where a folder that Hugging Face `datasets` has saved (save_to_disk: state.json, data-*.arrow) stands for
/// its files, in the order of its rows. Throws ConfigError for a folder of several splits, which have to be named, for
/// one that is damaged, and for one of reordered rows. Other folders stay, for check_readable() to refuse.
std::vector<std::string> with_dataset_files(const std::vector<std::string>& inputs);

}  // namespace megatron::data
