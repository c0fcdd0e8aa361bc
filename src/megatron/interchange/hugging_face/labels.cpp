#include "megatron/interchange/hugging_face/labels.h"

#include <nlohmann/json.hpp>

#include "megatron/interchange/formats.h"

namespace megatron::interchange {

std::string labels_text(const std::vector<std::string>& labels) { return nlohmann::json(labels).dump(); }

std::vector<std::string> labels_of(const std::filesystem::path& folder) {
  const auto& labels = format_of(folder).labels;
  return labels == nullptr ? std::vector<std::string>() : labels(folder);
}

}  // namespace megatron::interchange
