#pragma once
#include <filesystem>
#include <string>

namespace megatron {

/// The message for a file that the system did not take: what failed, its reason, and for a full disk, a used-up quota
/// or the limit of `ulimit -f` what to do. `action`: "cannot be written". `error`: errno.
std::string write_error(const std::filesystem::path& path, const std::string& action, int error);

/// Lets a write beyond `ulimit -f` fail as one to a full disk does, instead of ending the process without a word
/// (SIGXFSZ). Called once, by main().
void let_large_writes_fail();

}  // namespace megatron
