#pragma once
#include <string>
#include <string_view>

#include "megatron/base/text/format.h"

// What jobs say on standard output. Whether it could be written shows once, when the program ends (megatron.cpp); what
// goes to stderr, and text from outside, passes write_line() of base/text/printable.h.
namespace megatron::app {

/// Writes the text as it is.
void print_text(std::string_view text);

std::string formatted_text(fmt::string_view format, fmt::format_args arguments);

/// What fmt::format(format, arguments...) returns. The compiler checks the format against the arguments; {fmt} itself,
/// which takes a second, is compiled in print.cpp alone.
template <class... Arguments>
std::string formatted(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return formatted_text(static_cast<fmt::string_view>(format), fmt::make_format_args(arguments...));
}

/// Writes formatted(format, arguments...).
template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  print_text(formatted_text(static_cast<fmt::string_view>(format), fmt::make_format_args(arguments...)));
}

}  // namespace megatron::app
