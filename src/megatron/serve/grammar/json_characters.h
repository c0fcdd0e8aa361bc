#pragma once
#include <cstdint>

#include "megatron/base/text/code_points.h"
#include "megatron/serve/grammar/grammar_builder.h"

namespace megatron::serve {

/// Characters alone, in order: what of the ranges is no surrogate.
CodePoints characters_of(const CodePoints& ranges);

/// Adds, as alternatives of a rule, how a string of JSON writes each of the characters: those that JSON has an escape
/// for by it (`\n`, `\"`, `\u0001`), others as they are.
void add_json_characters(GrammarBuilder& grammar, std::int32_t rule, const CodePoints& characters);

}  // namespace megatron::serve
