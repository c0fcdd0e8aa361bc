#pragma once
#include <string>
#include <string_view>

#include "megatron/text/chat/python/arguments.h"
#include "megatron/text/chat/python/value.h"

// Jinja's operators and tests. All throw JinjaRefusal for what is not known here.
namespace megatron::text {

/// left SIGN right, of + - ~ * / // % **
JinjaValue jinja_sum(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget);

/// left SIGN right, of == != < > <= >= in, not in
bool jinja_compared(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget);

/// value is name(arguments …)
bool jinja_tested(const JinjaValue& value, const std::string& name, JinjaArguments& arguments, JinjaBudget& budget);

/// What a loop over the value gives.
JinjaValue::Items jinja_items(const JinjaValue& value, std::string_view of, JinjaBudget& budget);

}  // namespace megatron::text
