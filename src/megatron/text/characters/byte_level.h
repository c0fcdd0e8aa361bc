#pragma once
#include <string>
#include <string_view>

namespace megatron::text {

// GPT-2's files write a token's bytes as printable characters: a byte that is printable in Latin-1 stands for itself,
// the other 68 are U+0100 … U+0143 in the order of their values.

/// Bytes to that spelling, in UTF-8.
std::string to_byte_level(std::string_view bytes);

/// The spelling back to bytes. False where `spelling` holds a character that stands for no byte.
bool from_byte_level(std::string_view spelling, std::string& bytes);

/// Code point that stands for `byte`.
char32_t byte_level_code_point(unsigned char byte);

}  // namespace megatron::text
