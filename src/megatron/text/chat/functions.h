#pragma once
#include <ctime>
#include <string>
#include <string_view>

#include "megatron/text/chat/python/arguments.h"
#include "megatron/text/chat/python/value.h"

// The functions that transformers gives to a template: namespace, range, dict, cycler, joiner, raise_exception,
// strftime_now; and lipsum, which is refused when it is called.
namespace megatron::text {

bool is_jinja_function(std::string_view name);

/// name(arguments …). Throws JinjaRaised for raise_exception(), and JinjaRefusal.
JinjaValue called_function(const std::string& name, JinjaArguments& arguments, const std::tm& now, JinjaBudget& budget);

/// joiner(): nothing when it is called for the first time.
JinjaValue called_joiner(const JinjaValue& joiner, JinjaArguments& arguments);

}  // namespace megatron::text
