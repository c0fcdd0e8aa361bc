#pragma once

namespace megatron {

/// The version of the program, and the commit that it was built from where it was built in a git checkout:
/// "0.2.0+c2bbc14ab3f0", with ".changed" behind it where tracked files were not as that commit has them.
const char* program_version();

/// The version of libtorch that it was built with: "2.11.0".
const char* libtorch_version();

}  // namespace megatron
