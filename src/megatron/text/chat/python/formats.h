#pragma once
#include <string>
#include <string_view>

#include "megatron/text/chat/python/arguments.h"
#include "megatron/text/chat/python/value.h"

// Python's two ways of putting values into a text. What is not known here is a JinjaRefusal.
namespace megatron::text {

/// text % values: %s %r %c, %d %i %u %o %x %X, %e %f %g and their capitals, with names, flags, width and precision.
std::string formatted(std::string_view text, const JinjaValue& values, JinjaBudget& budget);

/// text.format(arguments …): {}, {0}, {name}, with .members, [parts], !s and !r, and a form behind a colon.
std::string format_fields(std::string_view text, const JinjaArguments& arguments, JinjaBudget& budget);

}  // namespace megatron::text
