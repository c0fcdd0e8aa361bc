#pragma once
#include <string>

namespace megatron {

/// `text` without the stack frames that libtorch and c10d append to what their exceptions say ("Exception raised from …
/// frame #0: …"): they mean nothing to a user. Use it wherever such a text is shown or becomes part of another.
std::string without_stack_frames(const std::string& text);

/// The first line of that, without the place in a library's source that Gloo puts before its message: what happened,
/// where several lines do not fit.
std::string first_line_of(const std::string& text);

}  // namespace megatron
