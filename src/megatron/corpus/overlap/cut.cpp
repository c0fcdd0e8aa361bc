#include "megatron/corpus/overlap/cut.h"

namespace megatron::corpus {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }
bool ends_sentence(char byte) { return byte == '.' || byte == '!' || byte == '?'; }

bool has_more_characters(std::string_view text, std::size_t n) {
  for (const char byte : text) {
    if (continues(byte)) continue;
    if (n-- == 0) return true;
  }
  return false;
}

/// Bytes of the piece before a match at byte `match` of `text`; 0 where there is none.
std::size_t piece_before(std::string_view text, std::size_t match, std::size_t radius) {
  std::size_t at = match;
  for (; radius > 0; --radius) {
    if (at == 0) return 0;
    do --at;
    while (at > 0 && continues(text[at]));
  }
  while (at > 0 && !ends_sentence(text[at])) --at;
  return at == 0 ? 0 : at + 1;
}

/// Where the rest begins after a match that ends at byte `match` of `text`; text.size() where there is none.
std::size_t rest_after(std::string_view text, std::size_t match, std::size_t radius) {
  std::size_t at = match;
  for (; radius > 0 && at < text.size(); --radius) {
    do ++at;
    while (at < text.size() && continues(text[at]));
  }
  while (at < text.size() && !ends_sentence(text[at])) ++at;
  return at < text.size() ? at + 1 : at;
}

}  // namespace

std::vector<TextSpan> cut_out(std::string_view text, const std::vector<TextSpan>& matches, const CutOptions& options) {
  std::vector<TextSpan> pieces;
  std::size_t begin = 0;
  for (const TextSpan& match : matches) {
    if (match.begin < begin) continue;
    const std::string_view rest = text.substr(begin);
    const std::size_t before = piece_before(rest, match.begin - begin, options.radius);
    if (has_more_characters(rest.substr(0, before), options.min_characters)) pieces.push_back({begin, begin + before});
    begin += rest_after(rest, match.end - begin, options.radius);
    if (!has_more_characters(text.substr(begin), options.min_characters)) return pieces;
  }
  if (begin < text.size()) pieces.push_back({begin, text.size()});
  return pieces;
}

}  // namespace megatron::corpus
