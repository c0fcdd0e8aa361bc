#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "megatron/serve/grammar/grammar_builder.h"

namespace megatron::serve {

/// Characters of Unicode, as ranges with both ends in them: sorted, apart, without surrogates.
using CodePoints = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

/// Sorted, joined where they touch, without surrogates.
CodePoints normalized(CodePoints ranges);
/// All characters but these.
CodePoints complement(const CodePoints& ranges);

/// Adds, as alternatives of a rule, how a string of JSON writes each of the characters: those that JSON has an escape
/// for by it (`\n`, `\"`, `\u0001`), others as they are.
void add_json_characters(GrammarBuilder& grammar, std::int32_t rule, const CodePoints& characters);

}  // namespace megatron::serve
