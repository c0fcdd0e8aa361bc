#pragma once

namespace megatron {

/// Lets no file that the program opens take the number of a standard stream that it was started without (`>&-`): what
/// is printed would be written into that file. Reading from such a stream, or writing to it, fails as before. Called
/// first in main(). Returns whether standard output was open.
bool hold_standard_streams();

}  // namespace megatron
