#include "megatron/text/chat/python/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

[[noreturn]] void refuse_number(const std::string& what) { throw JinjaRefusal(what); }

/// a // b and a % b of Python: the rest has the sign of the divisor.
Value divided(double a, double b, bool rest) {
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) {
    mod += b;
    quotient -= 1;
  } else if (mod == 0) {
    mod = std::copysign(0.0, b);
  }
  if (rest) return mod;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value of_fractions(double a, std::string_view sign, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") {
    if (a == 0 && b < 0) refuse_number("a power of 0 below 0");
    if (a < 0 && b != std::floor(b)) refuse_number("a power that is no real number");
    const double power = std::pow(a, b);
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) refuse_number("a power that is too large");
    return power;
  }
  if (b == 0) refuse_number("a division by zero");
  return sign == "/" ? Value(a / b) : divided(a, b, sign == "%");
}

/// The digits of `text` with underscores between them left out; nothing where one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string digits;
  const auto is_digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') digits += text[i];
    if (text[i] == '_' && (i == 0 || !is_digit(i - 1) || !is_digit(i + 1))) return std::nullopt;
  }
  return digits;
}

/// Python reads the digits of every script.
void must_be_ascii(std::string_view text) {
  for_each_character(text, [&](const DecodedChar& c, std::size_t, std::size_t) {
    if (c.code_point > 0x7F && UnicodeClasses::instance().of(c.code_point) == CharClass::Number)
      refuse_number(concat("the number \"", text, "\""));
  });
}

int digit_of(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'z' ? c - 'a' + 10
         : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                : 99;
}

}  // namespace

JinjaValue calculated(const JinjaValue& left, std::string_view sign, const JinjaValue& right) {
  if (left.is(Kind::Float) || right.is(Kind::Float) || sign == "/")
    return of_fractions(left.number(sign), sign, right.number(sign));
  const std::int64_t a = left.integer(sign), b = right.integer(sign);
  std::int64_t result = 0;
  bool too_large = false;
  if (sign == "+") {
    too_large = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    too_large = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    too_large = __builtin_mul_overflow(a, b, &result);
  } else if (sign == "**") {
    if (b < 0) return of_fractions(static_cast<double>(a), sign, static_cast<double>(b));
    result = 1;
    if (a == 1 || a == -1 || a == 0) return a == 1 || b == 0 ? std::int64_t{1} : a == 0 ? a : b % 2 == 0 ? -a : a;
    for (std::int64_t i = 0; i < b && !too_large; ++i) too_large = __builtin_mul_overflow(result, a, &result);
  } else if (b == 0) {
    refuse_number("a division by zero");
  } else if (b == -1) {  // whose quotient may be too large
    too_large = sign == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
  } else {
    const std::int64_t rest = a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b;  // of Python: as the divisor's
    result = sign == "%" ? rest : a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  }
  if (too_large) refuse_number("a number above 2^63");
  return result;
}

std::optional<std::int64_t> python_int(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) refuse_number(concat("numbers of the base ", base));
  text = python_strip(text);
  must_be_ascii(text);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  constexpr std::array<std::pair<char, int>, 3> kPrefixes = {{{'x', 16}, {'o', 8}, {'b', 2}}};
  const int asked = base;
  if (base == 0) base = 10;
  if (text.size() > 2 && text[0] == '0')
    for (const auto& [letter, of] : kPrefixes)
      if ((text[1] | 0x20) == letter && (asked == 0 || asked == of)) {
        base = of;
        text.remove_prefix(2);
        if (text.starts_with('_')) text.remove_prefix(1);
        break;
      }
  std::int64_t value = 0;
  bool after_digit = false, too_large = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const int digit = digit_of(c);
    if (digit >= base) return std::nullopt;
    after_digit = true;
    too_large |= __builtin_mul_overflow(value, std::int64_t{base}, &value);
    too_large |= __builtin_sub_overflow(value, std::int64_t{digit}, &value);
  }
  if (!after_digit) return std::nullopt;
  if (asked == 0 && base == 10 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos)
    return std::nullopt;
  if (too_large || (!is_negative && __builtin_sub_overflow(std::int64_t{0}, value, &value)))
    refuse_number("a number above 2^63");
  return value;
}

std::optional<double> python_float(std::string_view text) {
  text = python_strip(text);
  must_be_ascii(text);
  auto digits = without_underscores(text);
  if (!digits) return std::nullopt;
  const bool is_negative = digits->starts_with('-');
  if (is_negative || digits->starts_with('+')) digits->erase(0, 1);
  std::ranges::transform(*digits, digits->begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c | 0x20) : c; });
  const bool begins = !digits->empty() && ((*digits)[0] == '.' || ((*digits)[0] >= '0' && (*digits)[0] <= '9'));
  if (!begins && *digits != "inf" && *digits != "infinity" && *digits != "nan") return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (error == std::errc::result_out_of_range) refuse_number(concat("the number \"", text, "\""));
  if (error != std::errc() || end != digits->data() + digits->size()) return std::nullopt;
  return is_negative ? -value : value;
}

JinjaValue rounded(const JinjaValue& value, std::int64_t digits) {
  if (value.is(Kind::Float)) {
    const double number = value.number("round");
    if (!std::isfinite(number) || digits > 323) return number;
    if (digits < 0) refuse_number("\"round\" of a fraction to tens");
    std::array<char, 800> text;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed,
                                   static_cast<int>(digits));
    double result = 0;
    std::from_chars(text.data(), end.ptr, result);
    return result;
  }
  const std::int64_t number = value.integer("round");
  if (digits >= 0) return number;
  if (digits < -18) refuse_number("\"round\" to so many tens");
  std::int64_t unit = 1;
  for (; digits < 0; ++digits) unit *= 10;
  std::int64_t down = number / unit, rest = number % unit;
  if (rest < 0) {
    --down;
    rest += unit;
  }
  if (rest > unit - rest || (rest == unit - rest && down % 2 != 0)) ++down;
  return calculated(Value(down), "*", Value(unit));
}

}  // namespace megatron::text
