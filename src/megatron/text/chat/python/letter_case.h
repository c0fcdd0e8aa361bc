#pragma once
#include <string>
#include <string_view>

#include "megatron/text/chat/python/value.h"

// Python's methods of a text that change or ask for its case. Of the letters that become several, or whose form hangs
// on their neighbours, few are known: the others are a JinjaRefusal.
namespace megatron::text {

std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);
std::string swapped_case(std::string_view text);
/// str.title(): a word begins behind each character that is no letter.
std::string title_case(std::string_view text);
/// The filter "title": a word begins behind white space, dashes and opening brackets.
std::string word_case(std::string_view text);
std::string capitalized(std::string_view text);

/// str.NAME() of isalpha, isalnum, isdigit, isdecimal, isnumeric, isspace, islower, isupper, istitle, isascii,
/// isidentifier.
bool has_class(std::string_view text, std::string_view name);

}  // namespace megatron::text
