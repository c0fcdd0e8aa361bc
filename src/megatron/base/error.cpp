#include "megatron/base/error.h"

#include <algorithm>
#include <string_view>

namespace megatron {
namespace {

constexpr std::size_t kLongWord = 255, kKept = 100;  // bytes of a word: more hides the rule and the fix around it

/// Whether a character of UTF-8 begins at `at`, or the text has ended.
bool begins(std::string_view text, std::size_t at) {
  return at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
}

/// `text`, of whose words those of more than 255 bytes keep their two ends.
std::string with_short_words(std::string_view text) {
  std::string cut;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::size_t size = text.substr(0, end).find_last_not_of(":,") + 1;  // without what follows a path
    const std::string_view word = text.substr(0, size);
    if (size > kLongWord) {
      std::size_t head = kKept, tail = size - kKept;
      while (!begins(word, head)) ++head;
      while (!begins(word, tail)) ++tail;
      cut += concat(word.substr(0, head), "…(", size, " bytes)…", word.substr(tail));
    } else {
      cut += word;
    }
    const std::size_t next = std::min(end + 1, text.size());
    cut += text.substr(size, next - size);
    text.remove_prefix(next);
  }
  return cut;
}

}  // namespace

std::string rule_got_fix(const std::string& rule, const std::string& got, const std::string& fix) {
  return rule + "\n  got:  " + with_short_words(got) + (fix.empty() ? "" : "\n  fix:  " + fix);
}

}  // namespace megatron
