#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/files/text_reader.h"

// LAMBADA (Paperno et al. 2016): passages whose last word is foreseen.
namespace megatron::tasks {

/// "jsonl": one object {"text": …} a line; "lines" (or "plain"): one passage a line; "auto": told by the content, which
/// begins with '{' or not. Throws ConfigError for another name. Compressed files are read as they are.
data::TextFormat lambada_format_of(std::string_view name);

/// A passage in two: "… about" and " signs".
struct Passage {
  std::string context;
  std::string last_word;  ///< with the space before it
};

/// At its last space. Throws ConfigError where none is inside.
Passage split_last_word(std::string_view text);

/// The first `limit` passages; 0: all. Throws ConfigError naming the file, and the passage where that is what is wrong.
std::vector<Passage> read_lambada(const std::string& path, data::TextFormat format, std::int64_t limit);

}  // namespace megatron::tasks
