#include "megatron/base/log.h"

#include "megatron/base/progress.h"
#include "megatron/base/text/printable.h"

namespace megatron {

void Logger::line(const std::string& text) const {
  // On a terminal a Progress may have left its line half done: take it away, its next update draws it again.
  const std::string out =
      concat(is_terminal(stream_) ? kEraseLine : "", name_, name_.empty() ? "" : ": ", printable_lines(text), "\n");
  std::fwrite(out.data(), 1, out.size(), stream_);
  std::fflush(stream_);
}

}  // namespace megatron
