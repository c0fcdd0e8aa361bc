#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "megatron/text/chat/python/value.h"

// Python's numbers, of 64 bits: what does not fit is a JinjaRefusal.
namespace megatron::text {

/// left SIGN right of two numbers, of + - * / // % **
JinjaValue calculated(const JinjaValue& left, std::string_view sign, const JinjaValue& right);

/// int(text, base) and float(text); nothing where Python raises ValueError.
std::optional<std::int64_t> python_int(std::string_view text, int base);
std::optional<double> python_float(std::string_view text);

/// round(value, digits) of a number: to the even neighbour where two are as near.
JinjaValue rounded(const JinjaValue& value, std::int64_t digits);

}  // namespace megatron::text
