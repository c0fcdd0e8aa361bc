#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megatron/text/chat/python/arguments.h"
#include "megatron/text/chat/python/value.h"

// Jinja's filters. All throw JinjaRefusal for what is not known here.
namespace megatron::text {

/// value | name(arguments …)
JinjaValue jinja_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                          JinjaBudget& budget);

/// Whether Jinja has a filter of this name, known here or not.
bool is_filter(std::string_view name);

/// The filters of texts, and of what goes over the items of a value; nothing where there is none of this name.
std::optional<JinjaValue> text_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                                        JinjaBudget& budget);
std::optional<JinjaValue> list_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                                        JinjaBudget& budget);

/// What Jinja's escape() makes of a text: HTML's entities.
std::string escaped(std::string_view text);

}  // namespace megatron::text
