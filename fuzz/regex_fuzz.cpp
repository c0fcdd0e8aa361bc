// A text through a tokenizer file's expression: GPT-2's own gives the pieces of the scanner, with digits apart or not.
// The first line of an input is taken for an expression too: it is compiled or a ConfigError, never takes long, and
// finds the same by kinds of characters as by code points, which a script keeps it to.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/regex/regex.h"
#include "megatron/text/split/pretokenize.h"

namespace {

using namespace megatron::text;

/// The bytes with every one that is not part of valid UTF-8 left out.
std::string only_utf8(std::string_view bytes) {
  std::string text;
  const char* const end = bytes.data() + bytes.size();
  for (const char* p = bytes.data(); p < end;) {
    const int length = megatron::decode_utf8(p, end).length;
    text.append(p, static_cast<std::size_t>(length));
    p += length > 0 ? length : 1;
  }
  return text;
}

std::vector<std::string_view> scanned(std::string_view text) {
  std::vector<std::string_view> pieces;
  for_each_piece(text, [&](const char* p, std::size_t size) { pieces.emplace_back(p, size); });
  return pieces;
}

std::vector<std::string_view> matched(const Regex& regex, std::string_view text) {
  std::vector<std::string_view> pieces;
  Regex::Matcher matcher;
  matcher.for_each(regex, text, [&](std::size_t begin, std::size_t end) {
    if (begin > end || end > text.size()) std::abort();
    pieces.push_back(text.substr(begin, end - begin));
  });
  return pieces;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Regex gpt2(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "gpt2");
  const std::string text = only_utf8({reinterpret_cast<const char*>(data), size});
  if (matched(gpt2, text) != scanned(text)) std::abort();
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) return 0;
  try {
    const std::string_view rest = std::string_view(text).substr(line + 1);
    const auto by_kind = matched(Regex(text.substr(0, line), "input"), rest);
    if (by_kind != matched(Regex(text.substr(0, line) + "|(?!)\\p{Han}", "input"), rest)) std::abort();
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
