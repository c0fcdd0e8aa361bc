#include "megatron/text/chat/python/formats.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

constexpr std::size_t kMaxDigits = 1 << 20;  // of a width or a precision

[[noreturn]] void refuse_format(const std::string& what) { throw JinjaRefusal(what); }

/// How a value is to be written, in either of the two ways.
struct Form {
  std::string fill = " ";
  char align = 0;     ///< < > ^, or = : behind the sign; 0 as the value's kind has it
  char sign = '-';    ///< + or space: of numbers that are not negative
  char grouping = 0;  ///< , or _
  bool alternate = false;
  std::size_t width = 0;
  std::optional<std::size_t> precision;
  char type = 0;
};

/// A number's sign, what stands before its digits, and these.
struct Digits {
  std::string sign, prefix, digits;
};

std::string padded(std::string before, const std::string& text, const Form& form, char align, JinjaBudget& budget) {
  const std::size_t size = character_count(before) + character_count(text);
  const std::size_t blanks = form.width > size ? form.width - size : 0;
  budget.make(before.size() + text.size() + blanks * form.fill.size());
  const std::size_t left = align == '<' ? 0 : align == '^' ? blanks / 2 : blanks;
  const auto fill = [&](std::size_t count) {
    std::string all;
    for (; count > 0; --count) all += form.fill;
    return all;
  };
  const std::string ahead = fill(left), behind = fill(blanks - left);
  return align == '=' ? before + ahead + text : ahead + before + text + behind;
}

std::string padded_number(const Digits& number, const Form& form, JinjaBudget& budget) {
  return padded(number.sign + number.prefix, number.digits, form, form.align == 0 ? '>' : form.align, budget);
}

std::string sign_of(bool is_negative, const Form& form) {
  return is_negative ? "-" : form.sign == '-' ? "" : std::string(1, form.sign);
}

/// Of the types d, o, x, X, b.
Digits whole_digits(std::int64_t value, const Form& form) {
  const unsigned base = form.type == 'o' ? 8 : form.type == 'b' ? 2 : form.type == 'x' || form.type == 'X' ? 16 : 10;
  const bool large = form.type == 'X';
  auto left = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  Digits number{sign_of(value < 0, form), "", ""};
  const std::string_view all = large ? "0123456789ABCDEF" : "0123456789abcdef";
  do number.digits += all[left % base];
  while ((left /= base) != 0);
  std::ranges::reverse(number.digits);
  if (form.alternate && base != 10) number.prefix = std::string{'0', form.type};
  return number;
}

/// Of the types e, f, g and their capitals.
Digits fraction_digits(double value, const Form& form, JinjaBudget& budget) {
  const std::size_t precision = form.precision.value_or(6);
  const char type = static_cast<char>(form.type | 0x20);
  if (form.alternate) refuse_format("a format with # of a fraction");
  budget.make(precision + 400);
  std::string text(precision + 400, '\0');
  const auto way = type == 'e'   ? std::chars_format::scientific
                   : type == 'f' ? std::chars_format::fixed
                                 : std::chars_format::general;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), std::abs(value), way, static_cast<int>(precision)).ptr;
  text.resize(static_cast<std::size_t>(end - text.data()));
  if (type != form.type)
    std::ranges::transform(text, text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? char(c - 32) : c; });
  return {sign_of(std::signbit(value) && !std::isnan(value), form), "", text};
}

/// A width or a precision, which is taken off; nothing where no digit is.
std::optional<std::size_t> take_count(std::string_view& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  std::size_t count = 0;
  for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1)) {
    count = count * 10 + static_cast<std::size_t>(text[0] - '0');
    if (count > kMaxDigits) refuse_format("a format of so many digits");
  }
  return count;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

char first_of(std::string_view text) { return text.empty() ? '\0' : text[0]; }

std::string cut(const std::string& text, std::optional<std::size_t> count) {
  if (!count || character_count(text) <= *count) return text;
  std::string out;
  for (const std::string_view c : characters_of(text)) {
    if ((*count)-- == 0) break;
    out += c;
  }
  return out;
}

// -- text % values

class PercentFormat {
 public:
  PercentFormat(const Value& values, JinjaBudget& budget) : values_(values), budget_(budget) {
    is_tuple_ = values.is(Kind::Tuple);
    if (is_tuple_) given_ = values.items("%");
  }

  std::string of(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const std::string_view plain = text.substr(0, text.find('%'));
      out += plain;
      text.remove_prefix(plain.size());
      if (take(text, '%')) out += field(text);
    }
    const bool may_be_unused = values_.is(Kind::Dict) || values_.is(Kind::List) || values_.is(Kind::Range) ||
                               values_.is(Kind::Undefined) || is_named_;
    if (next_ < (is_tuple_ ? given_.size() : may_be_unused ? 0 : 1))
      refuse_format("a format of more values than fields");
    return out;
  }

 private:
  Value next() {
    if (is_named_ || next_ >= (is_tuple_ ? given_.size() : 1)) refuse_format("a format of more fields than values");
    ++next_;
    return is_tuple_ ? given_[next_ - 1] : values_;
  }

  Value named(std::string_view& text) {
    const std::size_t end = text.find(')');
    if (end == std::string_view::npos) refuse_format("a format with a single bracket");
    const std::string_view name = text.substr(0, end);
    if (name.find('(') != std::string_view::npos) refuse_format("a format with brackets in brackets");
    if (!values_.is(Kind::Dict)) refuse_format(concat("the field %(", name, ") of ", values_.name()));
    const Value* found = values_.mapping().named(name);
    if (found == nullptr) refuse_format(concat("the field %(", name, "), which the dict has not"));
    text.remove_prefix(end + 1);
    is_named_ = true;
    return *found;
  }

  std::size_t count(std::string_view& text) {
    if (!take(text, '*')) return take_count(text).value_or(0);
    if (is_named_) refuse_format("a format with * and names");
    const std::int64_t given = next().integer("*");
    if (given < 0 || given > static_cast<std::int64_t>(kMaxDigits)) refuse_format("a format of so many digits");
    return static_cast<std::size_t>(given);
  }

  /// Behind the sign %.
  std::string field(std::string_view& text) {
    if (take(text, '%')) return "%";
    std::optional<Value> value;
    if (take(text, '(')) value = named(text);
    Form form;
    bool left = false, zero = false;
    for (; !text.empty() && std::string_view("-+ #0").find(text[0]) != std::string_view::npos; text.remove_prefix(1)) {
      left |= text[0] == '-';
      zero |= text[0] == '0';
      form.alternate |= text[0] == '#';
      if (text[0] == '+' || (text[0] == ' ' && form.sign != '+')) form.sign = text[0];
    }
    form.width = count(text);
    if (take(text, '.')) form.precision = count(text);
    if (!text.empty() && std::string_view("hlL").find(text[0]) != std::string_view::npos) text.remove_prefix(1);
    if (text.empty()) refuse_format("a format that ends with %");
    form.type = text[0];
    text.remove_prefix(1);
    if (!value) value = next();
    form.align = left ? '<' : '>';
    if (std::string_view("srac").find(form.type) != std::string_view::npos)
      return padded("", cut(shown(*value, form), form.type == 'c' ? std::nullopt : form.precision), form, form.align,
                    budget_);
    const Digits number = digits(*value, form);
    if (zero && !left) {
      form.align = '=';
      form.fill = "0";
    }
    return padded_number(number, form, budget_);
  }

  std::string shown(const Value& value, const Form& form) {
    if (form.type == 's') return value.printed(budget_);
    if (form.type == 'a') refuse_format("the field %a of a format");
    std::string text;
    if (form.type == 'r') {
      value.represent(text, budget_);
    } else if (value.is(Kind::String)) {
      text = value.text("%c");
      if (character_count(text) != 1) refuse_format("the field %c of a text of several characters");
    } else {
      const std::int64_t code = value.integer("%c");
      if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        refuse_format("the field %c of no character");
      append_utf8(text, static_cast<std::uint32_t>(code));
    }
    return text;
  }

  Digits digits(const Value& value, Form form) {
    const char type = form.type;
    if (std::string_view("eEfFgG").find(type) != std::string_view::npos)
      return fraction_digits(value.number(concat("%", std::string(1, type))), form, budget_);
    if (std::string_view("diuoxX").find(type) == std::string_view::npos)
      refuse_format(concat("the field %", std::string(1, type), " of a format"));
    if (type == 'i' || type == 'u') form.type = 'd';
    std::int64_t whole = 0;
    if (form.type == 'd' && value.is(Kind::Float)) {
      if (!(std::abs(value.number("")) < 9e18)) refuse_format("the field %d of a large number");
      whole = static_cast<std::int64_t>(value.number(""));
    } else {
      whole = value.integer(concat("%", std::string(1, type)));
    }
    Digits number = whole_digits(whole, form);
    const std::size_t least = form.precision.value_or(0);
    if (least > number.digits.size())
      number.digits.insert(0, repeated("0", static_cast<std::int64_t>(least - number.digits.size()), budget_));
    return number;
  }

  const Value& values_;
  JinjaBudget& budget_;
  Value::Items given_;
  std::size_t next_ = 0;
  bool is_tuple_ = false, is_named_ = false;
};

// -- text.format(values …)

Form form_of(std::string_view text) {
  Form form;
  const std::string_view all = text;
  constexpr std::string_view kAligns = "<>=^";
  if (const auto characters = characters_of(text.substr(0, 8));
      characters.size() > 1 && characters[1].size() == 1 && kAligns.find(characters[1][0]) != std::string_view::npos) {
    form.fill = characters[0];
    form.align = characters[1][0];
    text.remove_prefix(form.fill.size() + 1);
  } else if (!text.empty() && kAligns.find(text[0]) != std::string_view::npos) {
    form.align = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty() && std::string_view("+- ").find(text[0]) != std::string_view::npos) {
    form.sign = text[0];
    text.remove_prefix(1);
  }
  form.alternate = take(text, '#');
  if (first_of(text) == '0') {
    take(text, '0');
    if (form.align == 0) {
      form.align = '=';
      form.fill = "0";
    } else if (form.fill == " ") {
      form.fill = "0";
    }
  }
  form.width = take_count(text).value_or(0);
  if (first_of(text) == ',' || first_of(text) == '_') {
    form.grouping = text[0];
    text.remove_prefix(1);
  }
  if (take(text, '.')) {
    form.precision = take_count(text);
    if (!form.precision) refuse_format(concat("the form \"", all, "\" of a format"));
  }
  form.type = first_of(text);
  if (text.size() > 1) refuse_format(concat("the form \"", all, "\" of a format"));
  return form;
}

/// 1234567.5 as 1,234,567.5
std::string grouped(std::string digits, char sign, std::size_t of) {
  std::size_t end = 0;
  while (end < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[end])) != 0 &&
         (of == 4 || std::isdigit(static_cast<unsigned char>(digits[end])) != 0))
    ++end;
  for (; end > of; end -= of) digits.insert(end - of, 1, sign);
  return digits;
}

std::string number_in_form(const Value& value, Form form, std::string_view spec, JinjaBudget& budget) {
  const auto not_known = [&] { refuse_format(concat("the form \"", spec, "\" of ", value.name())); };
  const bool fraction = value.is(Kind::Float);
  const auto is_type = [&](std::string_view types) { return types.find(form.type) != std::string_view::npos; };
  Digits number;
  if (form.type == '%' || (form.type != 0 && is_type("eEfFgG"))) {
    const bool percent = std::exchange(form.type, form.type == '%' ? 'f' : form.type) == '%';
    const double shown = value.number("format") * (percent ? 100 : 1);
    number = fraction_digits(shown, form, budget);
    if (percent) number.digits += '%';
  } else if (fraction) {
    if (form.type != 0 || form.precision || form.alternate) not_known();
    const double shown = value.number("");
    number = {sign_of(std::signbit(shown) && !std::isnan(shown), form), "", spelled_number(std::abs(shown))};
  } else {
    if (form.precision || (form.type != 0 && !is_type("dboxX"))) not_known();
    if (form.grouping == ',' && form.type != 0 && form.type != 'd') not_known();
    number = whole_digits(value.integer("format"), form);
  }
  if (form.grouping != 0) {
    if (form.align == '=') not_known();  // where the sign goes between the zeros too
    number.digits = grouped(number.digits, form.grouping, form.type != 0 && is_type("boxX") && !fraction ? 4 : 3);
  }
  return padded_number(number, form, budget);
}

std::string in_form(const Value& value, std::string_view spec, JinjaBudget& budget) {
  if (spec.empty()) return value.printed(budget);
  const Form form = form_of(spec);
  if (value.is_number()) return number_in_form(value, form, spec, budget);
  if (!value.is(Kind::String) || (form.type != 0 && form.type != 's') || form.align == '=' || form.sign != '-' ||
      form.alternate || form.grouping != 0 || form.fill == "0")
    refuse_format(concat("the form \"", spec, "\" of ", value.name()));
  return padded("", cut(value.text("format"), form.precision), form, form.align == 0 ? '<' : form.align, budget);
}

/// The member or part that `path` names of a value: .a[b]
Value at_field(Value value, std::string_view path, std::string_view field) {
  while (!path.empty()) {
    const bool is_member = path[0] == '.';
    const std::size_t end = is_member ? std::min(path.find_first_of(".[", 1), path.size()) : path.find(']');
    if ((!is_member && path[0] != '[') || end == std::string_view::npos || end == 1)
      refuse_format(concat("the field {", field, "} of a format"));
    const std::string part(path.substr(1, end - 1));
    path.remove_prefix(end + (is_member ? 0 : 1));
    std::string_view digits = part;
    const auto index = take_count(digits);
    value = is_member                 ? value.attribute(part)
            : index && digits.empty() ? value.item(Value(static_cast<std::int64_t>(*index)))
                                      : value.item(Value(part));
  }
  return value;
}

}  // namespace

std::string formatted(std::string_view text, const JinjaValue& values, JinjaBudget& budget) {
  return PercentFormat(values, budget).of(text);
}

std::string format_fields(std::string_view text, const JinjaArguments& arguments, JinjaBudget& budget) {
  std::string out;
  std::size_t next = 0;
  bool counts = false, names_places = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == text[at]) {
      out += text[at++];
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (text[at] == '}' || end == std::string_view::npos) refuse_format("a format with a single brace");
    const std::string_view field = text.substr(at + 1, end - at - 1);
    if (field.find('{') != std::string_view::npos) refuse_format(concat("the field {", field, "} of a format"));
    at = end;
    const std::string_view spec = field.find(':') == std::string_view::npos ? "" : field.substr(field.find(':') + 1);
    std::string_view path = field.substr(0, field.find(':'));
    const std::string_view conversion = path.find('!') == std::string_view::npos ? "" : path.substr(path.find('!'));
    path = path.substr(0, path.find('!'));
    const std::string_view name = path.substr(0, path.find_first_of(".["));
    std::size_t place = arguments.count();
    std::string_view digits = name;
    if (const auto index = take_count(digits); name.empty() || (index && digits.empty())) {
      place = name.empty() ? next++ : *index;
      (name.empty() ? counts : names_places) = true;
      if (place < arguments.count() && !arguments.names()[place].empty()) place = arguments.count();
    } else {
      place = static_cast<std::size_t>(std::ranges::find(arguments.names(), name) - arguments.names().begin());
    }
    if (place >= arguments.count() || (counts && names_places))
      refuse_format(concat("the field {", field, "} of a format"));
    Value value = at_field(arguments.all()[place], path.substr(name.size()), field);
    if (conversion == "!r") {
      std::string shown;
      value.represent(shown, budget);
      value = Value(shown);
    } else if (conversion == "!s") {
      value = Value(value.printed(budget));
    } else if (!conversion.empty()) {
      refuse_format(concat("the field {", field, "} of a format"));
    }
    const std::string part = in_form(value, spec, budget);
    budget.make(part.size());
    out += part;
  }
  return out;
}

}  // namespace megatron::text
