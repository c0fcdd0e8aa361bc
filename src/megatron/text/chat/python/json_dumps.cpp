#include "megatron/text/chat/python/json_dumps.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

void escape_json(std::string& out, std::string_view text, bool ascii) {
  const auto code = [&](std::uint32_t unit) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[unit >> shift & 15];
  };
  out += '"';
  for_each_character(text, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const std::size_t at =
        c.code_point < 0x80 ? kEscaped.find(static_cast<char>(c.code_point)) : std::string_view::npos;
    if (at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (c.code_point < 0x20) {
      code(c.code_point);
    } else if (ascii && c.code_point > 0xFFFF) {
      code(0xD7C0 + (c.code_point >> 10));
      code(0xDC00 + (c.code_point & 0x3FF));
    } else if (ascii && c.code_point >= 0x7F + 1) {
      code(c.code_point);
    } else {
      out += text.substr(begin, end - begin);
    }
  });
  out += '"';
}

class Dumper {
 public:
  Dumper(const JsonDumps& form, JinjaBudget& budget) : form_(form), budget_(budget) {}

  std::string out;

  void dump(const Value& value, int level) {
    budget_.make(8);
    switch (value.kind()) {
      case Kind::None:
        out += "null";
        return;
      case Kind::Bool:
        out += value.truth() ? "true" : "false";
        return;
      case Kind::Int:
        out += std::to_string(value.integer(""));
        return;
      case Kind::Float:
        out += number(value.number(""));
        return;
      case Kind::String:
        budget_.make(value.text("").size());
        escape_json(out, value.text(""), form_.ascii);
        return;
      case Kind::List:
      case Kind::Tuple: {
        bool first = true;
        out += '[';
        for (const Value& item : value.items("tojson")) {
          next(first, level);
          dump(item, level + 1);
        }
        close(first, level, ']');
        return;
      }
      case Kind::Dict:
        return dump(value.mapping(), level);
      default:
        refuse(concat("tojson of ", value.name()));
    }
  }

 private:
  static std::string number(double value) {
    return std::isnan(value)   ? "NaN"
           : std::isinf(value) ? (value > 0 ? "Infinity" : "-Infinity")
                               : spelled_number(value);
  }

  void next(bool& first, int level) {
    if (!first) out += form_.between;
    first = false;
    line(level + 1);
  }
  void line(int level) {
    if (!form_.lines) return;
    budget_.make(form_.indent.size() * static_cast<std::size_t>(level));
    out += '\n';
    for (int i = 0; i < level; ++i) out += form_.indent;
  }
  void close(bool empty, int level, char end) {
    if (!empty) line(level);
    out += end;
  }

  void dump(const Value::Mapping& mapping, int level) {
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : mapping.members) members.push_back(&member);
    if (form_.sorted)
      std::ranges::stable_sort(members, [&](const auto* a, const auto* b) { return a->first.less(b->first, budget_); });
    bool first = true;
    out += '{';
    for (const auto* member : members) {
      next(first, level);
      const std::string key = spelled(member->first);
      budget_.make(key.size());
      escape_json(out, key, form_.ascii);
      out += form_.colon;
      dump(member->second, level + 1);
    }
    close(first, level, '}');
  }

  /// A key is a text in JSON.
  static std::string spelled(const Value& key) {
    return key.is(Kind::String)  ? key.text("")
           : key.is(Kind::None)  ? "null"
           : key.is(Kind::Bool)  ? (key.truth() ? "true" : "false")
           : key.is(Kind::Float) ? number(key.number(""))
                                 : std::to_string(key.integer(""));
  }

  const JsonDumps& form_;
  JinjaBudget& budget_;
};

}  // namespace

std::string JsonDumps::of(const JinjaValue& value, JinjaBudget& budget) const {
  Dumper dumper(*this, budget);
  dumper.dump(value, 0);
  return std::move(dumper.out);
}

}  // namespace megatron::text
