#include "megatron/families/folder.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "megatron/base/collected_errors.h"
#include "megatron/base/files/file.h"

namespace megatron::families {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

/// Whether an entry of a folder belongs to a format that is looked for before Hugging Face's: to checkpoints of ours
/// or Megatron-LM's, or to adapters.
bool tells_of_another(const std::string& name) {
  constexpr std::string_view kNames[] = {
      "manifest.json", "latest",    "checkpoints",        "latest_checkpointed_iteration.txt",
      ".metadata",     "common.pt", "adapter_config.json"};
  return std::ranges::find(kNames, name) != std::end(kNames) || name.starts_with("mp_rank_") ||
         name.starts_with("iter_");
}

/// Whether `folder` is Hugging Face's and of no other format.
bool is_hugging_face_alone(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder / "config.json", error)) return false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (tells_of_another(entry->path().filename().string())) return false;
  return !error;
}

}  // namespace

FolderConfig read_config_json(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  return parse_config(read_file(path, kMaxConfigBytes), path.string());
}

std::optional<config::ModelConfig> network_of_folder(const fs::path& folder) {
  if (!is_hugging_face_alone(folder)) return std::nullopt;
  config::ModelConfig model = with_fix(kCopyAnew, [&] { return read_config_json(folder).model; });
  if (model.mtp_num_layers > 0) return std::nullopt;
  return model;
}

}  // namespace megatron::families
