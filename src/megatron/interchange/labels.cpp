#include "megatron/interchange/labels.h"

#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/interchange/hugging_face.h"
#include "megatron/interchange/weights.h"

namespace megatron::interchange {

using nlohmann::json;

std::string labels_text(const std::vector<std::string>& labels) { return json(labels).dump(); }

std::vector<std::string> labels_of(const std::filesystem::path& folder) {
  const FolderKind kind = kind_of(folder);
  if (kind == FolderKind::HuggingFace) return read_config(folder).labels;
  if (kind == FolderKind::MegatronTorch) return {};
  const auto metadata = checkpoint::read_manifest(checkpoint::find_checkpoint(folder)).metadata;
  const auto found = metadata.find(kLabels);
  if (found == metadata.end()) return {};
  const json names = json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> labels;
  for (const json& name : names.is_array() ? names : json::array({json()})) {
    if (!name.is_string())
      throw ConfigError(rule_got_fix(concat(folder.string(), ": ", kLabels, " must be a list of names."), "others"));
    labels.push_back(name.get<std::string>());
  }
  return labels;
}

}  // namespace megatron::interchange
