#include "app/print.h"

#include <cstdio>

namespace megatron::app {

void print_text(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string formatted_text(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

}  // namespace megatron::app
