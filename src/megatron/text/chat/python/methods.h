#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/chat/python/arguments.h"
#include "megatron/text/chat/python/value.h"

// Methods of Python's texts, lists and dicts. What is not known here is a JinjaRefusal.
namespace megatron::text {

/// The characters of a text, which Python counts.
std::vector<std::string_view> characters_of(std::string_view text);
std::size_t character_count(std::string_view text);

/// What Python's str.strip() takes off the ends of a text, or off one of them: Unicode's white space and ASCII's
/// separators; or the characters `characters`, where they are given.
std::string_view python_strip(std::string_view text, bool left = true, bool right = true,
                              const std::string* characters = nullptr);

/// Whether it has a method of this name: a template's `x.name` is that, and not a member.
bool has_method(const JinjaValue& value, std::string_view name);

/// value.name(arguments …) of texts, lists, dicts, loops and cyclers. Throws JinjaRefusal for others than Jinja's users
/// call.
JinjaValue call_method(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                       JinjaBudget& budget);

/// str.splitlines()
JinjaValue::Items split_lines(std::string_view text, bool with_ends = false);
/// str.replace(); `most` below 0: all.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                     JinjaBudget& budget);
/// str.center(), with white space.
std::string centered(std::string_view text, std::int64_t width, JinjaBudget& budget);
/// text * times
std::string repeated(std::string_view text, std::int64_t times, JinjaBudget& budget);

}  // namespace megatron::text
