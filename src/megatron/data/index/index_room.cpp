#include "megatron/data/index/index_room.h"

#include <filesystem>
#include <system_error>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"

namespace megatron::data {

void check_room(const std::string& file, const std::string& samples, double bytes) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::error_code unknown;
  const auto space = std::filesystem::space(folder.empty() ? "." : folder, unknown);
  if (unknown || bytes <= static_cast<double>(space.available)) return;
  throw ConfigError(rule_got_fix(
      concat(folder.string(), ": the disk must hold the index."),
      concat(samples, " take ", human_bytes(bytes), "; free are ", human_bytes(static_cast<double>(space.available))),
      "ask fewer or shorter samples, or name a folder on another disk"));
}

}  // namespace megatron::data
