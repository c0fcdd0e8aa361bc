#pragma once
#include <cstdio>
#include <string>
#include <string_view>

// Text from outside (names in files, paths, messages of peers) as it may be shown: a terminal obeys control characters,
// and a reader takes a line break for the end of the message.
namespace megatron {

/// `text` with what is not a visible character escaped: "\x1b", "\0", "\n", bytes that are not UTF-8 as "\xff", and
/// invisible characters that change how others are shown (C1 controls, bidirectional marks, line separators) as
/// "\u{202e}". For a name inside of a message; valid UTF-8 always.
std::string printable(std::string_view text);

/// printable(text) in quotes, cut after 60 bytes: for what may be long.
std::string in_quotes(std::string_view text);

/// As printable(), but keeps line breaks and tabs: for a whole message.
std::string printable_lines(std::string_view text);

/// Writes printable_lines(text) and a line break in one write, and flushes: every line of an error or a warning that
/// goes to stderr passes here.
void write_line(std::FILE* stream, std::string_view text);

}  // namespace megatron
