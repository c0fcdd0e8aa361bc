#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

/// The entry of `known` that `name` is most likely a misspelling of, or "" where none is near: a suggestion for an
/// error message. Insertions, deletions, replacements and swaps of neighbours count one each.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace megatron
