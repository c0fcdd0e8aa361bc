#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "megatron/serve/grammar/grammar_builder.h"

namespace megatron::serve {

/// A rule of the JSON strings, with their quotes, in which a regular expression of ECMAScript is found somewhere, as
/// `pattern` of JSON Schema means it, and that have from `least` to `most` characters (most < 0: any number). Known are
/// characters and their escapes, sets, groups, |, the quantifiers, ^ and $; \d, \w and \s are ECMAScript's. Throws
/// ApiError 400, which names what it is, for others: looking around, back references, \b, \p{…}, flags.
std::int32_t add_string_pattern(GrammarBuilder& grammar, std::string_view pattern, std::int64_t least,
                                std::int64_t most);

/// The regular expression of a `format` of JSON Schema: date, time, date-time, duration, email, hostname, ipv4, ipv6,
/// uuid. Their strings are all of that format; not each way to write one is among them.
std::optional<std::string_view> pattern_of_format(std::string_view format);

}  // namespace megatron::serve
