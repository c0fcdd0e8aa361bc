#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// The first step of reading a Jinja template: text and tags, and the words of these.
namespace megatron::text {

struct JinjaToken {
  enum class Kind : std::uint8_t { Name, Number, String, Sign };
  Kind kind = Kind::Name;
  std::string text;
  int line = 0;
};

/// A piece of a template: text, or what a tag holds.
struct JinjaPiece {
  enum class Kind : std::uint8_t { Text, Output, Block };
  Kind kind = Kind::Text;
  int line = 0;
  std::string text;
  std::vector<JinjaToken> tokens;
};

/// Cuts a template into pieces, with the white space around tags taken off as trim_blocks, lstrip_blocks and the signs
/// of the tags say; comments are left out. Throws ConfigError, which names the line.
std::vector<JinjaPiece> scan_jinja(std::string_view source);

/// Throws the ConfigError of what is no template.
[[noreturn]] void refuse_jinja(int line, const std::string& got);

}  // namespace megatron::text
