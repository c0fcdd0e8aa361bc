#pragma once
#include <filesystem>
#include <string>

// Errors of std::filesystem, as messages for the user.
namespace megatron {

/// The message for `error`: the rule, the path with the system's reason, and what to do. Where a folder on the way may
/// not be entered, it is named.
std::string path_error(const std::filesystem::filesystem_error& error);

/// Whether a path was looked at, and the path itself is wrong for this user: permission denied, a link that leads back
/// to itself, a name that is too long, a file in place of a folder. Of a job that has begun nothing another path is all
/// that it takes. Never where something was to be changed, or was removed meanwhile.
bool is_wrong_path(const std::filesystem::filesystem_error& error);

}  // namespace megatron
