#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace megatron::interchange {

/// In the metadata of a checkpoint: the names of the classes that its head tells apart, as labels_text().
constexpr const char* kLabels = "labels";
std::string labels_text(const std::vector<std::string>& labels);

/// The names of the classes that the model in `folder`, of any kind, tells apart; empty where it names none.
std::vector<std::string> labels_of(const std::filesystem::path& folder);

}  // namespace megatron::interchange
