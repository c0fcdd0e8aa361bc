#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// The longest token of a file of ranks, in bytes.
constexpr std::size_t kMaxRankBytes = 1024;

/// Byte-level BPE as tiktoken has it: of two neighbours that join to a token the lowest id goes first, and a piece that
/// is a token is not cut. `tokens`: by id, empty where none is; `specials` take ids of such, or follow. `expression`
/// cuts text; empty: GPT-2's. Throws ConfigError, beginning with `name`, where an id is taken, or for tokens that join
/// in more ways than those of any published vocabulary.
Vocabulary vocabulary_of_ranks(std::vector<std::string> tokens, std::vector<SpecialToken> specials,
                               const std::string& expression, const std::string& name);

}  // namespace megatron::text
