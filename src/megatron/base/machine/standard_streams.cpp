#include "megatron/base/machine/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace megatron {

bool hold_standard_streams() {
  bool has_output = true;
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) != -1 || errno != EBADF) continue;
    has_output = has_output && number != STDOUT_FILENO;
    // The lowest number that is free is this one. Opened for what the stream is not for, so that its use fails.
    open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
  return has_output;
}

}  // namespace megatron
