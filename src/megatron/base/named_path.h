#pragma once
#include <filesystem>
#include <string>

namespace megatron {

/// `path` and what is there, as a message's "got": "runs/a, which does not exist", "…, a file", "…, an empty folder",
/// "…, which holds a, b, c and 2 more".
std::string place_text(const std::filesystem::path& path);

/// What lies beside `path` and whose name that of `path` is most likely a misspelling of; "" where nothing does.
std::string nearest_beside(const std::filesystem::path& path);

}  // namespace megatron
