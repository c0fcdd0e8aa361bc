#pragma once
#include <string>
#include <string_view>

namespace megatron::text {

/// Without the white space at its ends: Unicode's and the four information separators, as Python's strip() has it.
std::string_view trim(std::string_view text);

/// Undoes the tokenization of WikiText and Penn Treebank, as Megatron-LM and the GPT-2 paper's evaluation do: "@-@" to
/// "-", no space before punctuation or inside brackets and quotes, "= =" headings joined, " N " to " 1 ".
/// One quirk of Megatron-LM's rules is left out: it rewrites the literal text "/' 5/", which no such corpus holds.
std::string detokenize_wikitext(std::string_view text);

}  // namespace megatron::text
