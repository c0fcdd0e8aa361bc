#include "megatron/base/stack_frames.h"

#include <cctype>
#include <sstream>

namespace megatron {
namespace {

bool starts_with_number(const std::string& text, const std::string& before) {
  return text.starts_with(before) && text.size() > before.size() &&
         std::isdigit(static_cast<unsigned char>(text[before.size()])) != 0;
}

/// "frame #3: c10::…" of one unwinder, "#3 c10::… from file:line" of the other, and the headings of both.
bool is_frame(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return false;
  const std::string text = line.substr(begin);
  return starts_with_number(text, "frame #") || starts_with_number(text, "#") ||
         text.starts_with("C++ CapturedTraceback:");
}

}  // namespace

std::string without_stack_frames(const std::string& text) {
  if (text.find("Exception raised from ") == std::string::npos && text.find("frame #") == std::string::npos &&
      text.find("C++ CapturedTraceback:") == std::string::npos)
    return text;
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (is_frame(line)) continue;
    const std::size_t heading = line.find("Exception raised from ");
    if (heading != std::string::npos) line.resize(heading);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
    if (!line.empty()) result += (result.empty() ? "" : "\n") + line;
  }
  return result;
}

std::string first_line_of(const std::string& text) {
  const std::string plain = without_stack_frames(text);
  std::string line = plain.substr(0, plain.find('\n'));
  const std::size_t begin = line.find("[/"), end = line.find("] ", begin);  // "[/…/tcp/pair.h:311] ", of Gloo
  if (begin != std::string::npos && end != std::string::npos) line.erase(begin, end + 2 - begin);
  return line;
}

}  // namespace megatron
