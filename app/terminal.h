#pragma once
#include <sys/ioctl.h>
#include <unistd.h>

namespace megatron::app {

/// Columns of the terminal that standard output is, 120 where it is none or does not say.
inline int terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

}  // namespace megatron::app
