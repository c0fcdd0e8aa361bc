#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

/// The entry of `known` that `name` is most likely a misspelling of, or "" where none is near: a suggestion for an
/// error message. Insertions, deletions, replacements and swaps of neighbours count one each.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

/// The option that `name` most likely means. Names are words with '-', '_' or '.' between them; a word may have two
/// edits, and one word may be missing or too many. Never one of another sense, as no-X of X, untie of tie and disable
/// of enable are, nor with other digits: --fp8-margin is no misspelling of --fp4-margin.
std::string nearest_option(std::string_view name, const std::vector<std::string>& known);

/// "a, b or c".
std::string listed(const std::vector<std::string>& words, std::string_view last = " or ");

/// What is wrong with a value that is none of `choices`, as rule_got_fix() says it: "WHAT must be one of a, b, c."; the
/// fix is `option` with the nearest of them, or `otherwise` where none is near.
std::string not_a_choice(std::string_view what, std::string_view value, const std::vector<std::string>& choices,
                         std::string_view option, std::string_view otherwise);

}  // namespace megatron
