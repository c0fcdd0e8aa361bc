#include "megatron/text/chat/python/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/category_ranges.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = Value::Kind;

constexpr int kDeepest = 200;  // values within values; a conversation has five levels, a tool's schema ten

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

void check_data(const Value& value) {
  if (value.kind() > Kind::Dict && !value.is(Kind::Cycler) && !value.is(Kind::Joiner))
    refuse(concat("it puts ", value.name(), " into a value"));
}

/// Of a dict, which are no lists or dicts.
bool same_key(const Value& a, const Value& b) {
  JinjaBudget enough(std::numeric_limits<std::size_t>::max());
  return a.equals(b, enough);
}

/// What Python has no hash of is no key, and is looked for in no dict.
void must_be_hashable(const Value& key) {
  if (!key.is_hashable()) refuse(concat(key.name(), " as a dict's key"));
}

/// slice.indices(): first, count and step.
struct Cut {
  std::int64_t first = 0, count = 0, step = 1;
};
Cut cut_of(std::int64_t size, const Value& from, const Value& to, const Value& step) {
  Cut cut;
  if (!step.is(Kind::None)) cut.step = std::clamp(step.integer("a slice's step"), -size - 1, size + 1);
  if (cut.step == 0) refuse("a slice of step 0");
  const bool back = cut.step < 0;
  const auto bound = [&](const Value& at, std::int64_t missing) {
    if (at.is(Kind::None)) return missing;
    std::int64_t i = at.integer("a slice's bound");
    if (i < 0) i += size;
    return std::clamp<std::int64_t>(i, back ? -1 : 0, back ? size - 1 : size);
  };
  cut.first = bound(from, back ? size - 1 : 0);
  const std::int64_t last = bound(to, back ? -1 : size);
  const std::int64_t length = back ? cut.first - last : last - cut.first;
  cut.count = length <= 0 ? 0 : (length - 1) / std::abs(cut.step) + 1;
  return cut;
}

/// str.isprintable() of a character.
bool is_printable(std::uint32_t code_point) {
  const auto* found = std::ranges::lower_bound(kCategories, code_point, {}, &CategoryRange::last);
  if (found == std::end(kCategories) || found->first > code_point) return false;
  return code_point == ' ' || (found->category[0] != 'C' && found->category[0] != 'Z');
}

void quote(std::string& out, std::string_view text) {
  const char mark = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += mark;
  for_each_character(text, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    if (c.code_point == '\n' || c.code_point == '\t' || c.code_point == '\r') {
      out += '\\';
      out += c.code_point == '\n' ? 'n' : c.code_point == '\t' ? 't' : 'r';
    } else if (c.length > 0 && !is_printable(c.code_point)) {
      out += c.code_point < 0x100 ? "\\x" : c.code_point < 0x10000 ? "\\u" : "\\U";
      for (int shift = c.code_point < 0x100 ? 4 : c.code_point < 0x10000 ? 12 : 28; shift >= 0; shift -= 4)
        out += kDigits[c.code_point >> shift & 15];
    } else {
      if (c.code_point == '\\' || c.code_point == static_cast<unsigned char>(mark)) out += '\\';
      out += text.substr(begin, end - begin);
    }
  });
  out += mark;
}

}  // namespace

std::string spelled_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool small = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 small ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  if (small && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void JinjaBudget::make(std::size_t bytes) {
  if (bytes > left_) refuse("it does more work than any chat needs");
  left_ -= bytes;
}

const JinjaValue* JinjaValue::Mapping::named(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name.is(Kind::String) && name.text("") == key) return &value;
  return nullptr;
}

const JinjaValue* JinjaValue::Mapping::find(const JinjaValue& key) const {
  if (key.is(Kind::String)) return named(key.text(""));
  for (const auto& [name, value] : members)
    if (same_key(name, key)) return &value;
  return nullptr;
}

JinjaValue::JinjaValue(const nlohmann::ordered_json& json) {
  if (json.is_string()) {
    *this = JinjaValue(json.get<std::string>());
  } else if (json.is_boolean()) {
    *this = JinjaValue(json.get<bool>());
  } else if (json.is_number_float()) {
    *this = JinjaValue(json.get<double>());
  } else if (json.is_number()) {
    if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
      refuse("a number above 2^63");
    *this = JinjaValue(json.get<std::int64_t>());
  } else if (json.is_array()) {
    Items items;
    for (const auto& item : json) items.emplace_back(item);
    *this = sequence(Kind::List, std::move(items));
  } else if (json.is_object()) {
    Members members;
    for (const auto& [key, item] : json.items()) members.emplace_back(JinjaValue(key), JinjaValue(item));
    *this = dict(std::move(members));
  } else {
    kind_ = Kind::None;
  }
}

JinjaValue JinjaValue::none() {
  JinjaValue value;
  value.kind_ = Kind::None;
  return value;
}

JinjaValue JinjaValue::safe(std::string text) {
  JinjaValue value(std::move(text));
  value.safe_ = true;
  return value;
}

JinjaValue JinjaValue::sequence(Kind kind, Items items) {
  JinjaValue value;
  auto all = std::make_shared<Sequence>();
  for (const JinjaValue& item : items) {
    check_data(item);
    all->depth = std::max(all->depth, item.depth() + 1);
  }
  if (all->depth > kDeepest) refuse(concat("values nested ", kDeepest, " deep"));
  all->items = std::move(items);
  value.kind_ = kind;
  value.data_ = std::move(all);
  return value;
}

JinjaValue JinjaValue::dict(Members members) {
  JinjaValue value;
  auto all = std::make_shared<Mapping>();
  for (const auto& [key, item] : members) {
    if (key.kind() < Kind::None || key.kind() > Kind::String) refuse(concat("a dict's key that is ", key.name()));
    check_data(item);
    all->depth = std::max(all->depth, item.depth() + 1);
  }
  if (all->depth > kDeepest) refuse(concat("values nested ", kDeepest, " deep"));
  all->members = std::move(members);
  value.kind_ = Kind::Dict;
  value.data_ = std::move(all);
  return value;
}

void JinjaValue::put(Members& members, JinjaValue key, JinjaValue value) {
  for (auto& [name, old] : members)
    if (same_key(name, key)) {
      old = std::move(value);
      return;
    }
  members.emplace_back(std::move(key), std::move(value));
}

JinjaValue JinjaValue::space(Members members) {
  JinjaValue value = dict(std::move(members));
  value.kind_ = Kind::Namespace;
  return value;
}

JinjaValue JinjaValue::group(JinjaValue key, Items items) {
  JinjaValue value = sequence(Kind::Tuple, {std::move(key), sequence(Kind::List, std::move(items))});
  std::get<std::shared_ptr<Sequence>>(value.data_)->is_group = true;
  return value;
}

JinjaValue JinjaValue::loop(std::shared_ptr<State> state) {
  JinjaValue value;
  value.kind_ = Kind::Loop;
  value.data_ = std::move(state);
  return value;
}

JinjaValue JinjaValue::turns(Kind kind, Items items) {
  const JinjaValue all = sequence(Kind::List, std::move(items));
  auto state = std::make_shared<State>();
  state->items = std::get<std::shared_ptr<Sequence>>(all.data_);
  JinjaValue value = loop(std::move(state));
  value.kind_ = kind;
  return value;
}

JinjaValue JinjaValue::callable(Callable callable) {
  JinjaValue value;
  value.kind_ = Kind::Callable;
  value.data_ = std::make_shared<const Callable>(std::move(callable));
  return value;
}

int JinjaValue::depth() const {
  if (kind_ == Kind::Cycler || kind_ == Kind::Joiner) return state().items->depth;
  return is_list() ? list().depth : kind_ == Kind::Dict ? mapping().depth : 0;
}

std::string_view JinjaValue::name() const {
  constexpr std::string_view kNames[] = {"what is not defined",
                                         "none",
                                         "a boolean",
                                         "a number",
                                         "a number",
                                         "a string",
                                         "a list",
                                         "a tuple",
                                         "a range",
                                         "a view",
                                         "a generator",
                                         "a dict",
                                         "a namespace",
                                         "the loop",
                                         "a cycler",
                                         "a joiner",
                                         "a function"};
  return kNames[static_cast<std::size_t>(kind_)];
}

bool JinjaValue::truth() const {
  switch (kind_) {
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
      return std::get<bool>(data_);
    case Kind::Int:
      return std::get<std::int64_t>(data_) != 0;
    case Kind::Float:
      return std::get<double>(data_) != 0;
    case Kind::String:
      return !text("").empty();
    case Kind::List:
    case Kind::Tuple:
    case Kind::Range:
    case Kind::View:
      return !list().items.empty();
    case Kind::Dict:
      return !mapping().members.empty();
    default:
      return true;
  }
}

const std::string& JinjaValue::text(std::string_view of) const {
  if (kind_ != Kind::String) refuse(concat(of, " of ", name(), " where a string is expected"));
  if (safe_ && !of.empty()) refuse(concat(of, " of a text that the filter \"safe\" went over"));
  return *std::get<std::shared_ptr<const std::string>>(data_);
}

std::int64_t JinjaValue::integer(std::string_view of) const {
  if (kind_ == Kind::Bool) return std::get<bool>(data_) ? 1 : 0;
  if (kind_ != Kind::Int) refuse(concat(of, " of ", name(), " where a whole number should be"));
  return std::get<std::int64_t>(data_);
}

double JinjaValue::number(std::string_view of) const {
  return kind_ == Kind::Float ? std::get<double>(data_) : static_cast<double>(integer(of));
}

JinjaValue::Items& JinjaValue::of_generator() const {
  Sequence& all = *std::get<std::shared_ptr<Sequence>>(data_);
  if (all.is_left) refuse("what is left of a generator that a loop has begun");
  return all.items;
}

JinjaValue JinjaValue::next() const {
  Items& items = of_generator();
  if (items.empty()) return {};
  JinjaValue first = std::move(items.front());
  items.erase(items.begin());
  return first;
}

void JinjaValue::leave() const { std::get<std::shared_ptr<Sequence>>(data_)->is_left = true; }

JinjaValue::Items JinjaValue::items(std::string_view of) const {
  if (kind_ == Kind::Generator) return std::exchange(of_generator(), {});
  if (is_list()) return list().items;
  Items all;
  if (kind_ == Kind::Undefined) return all;
  if (kind_ == Kind::String) {
    for (const std::string_view character : characters_of(text(of))) all.emplace_back(std::string(character));
  } else if (kind_ == Kind::Dict) {
    for (const auto& member : mapping().members) all.push_back(member.first);
  } else {
    refuse(concat(of, " over ", name()));
  }
  return all;
}

std::size_t JinjaValue::length() const {
  if (kind_ == Kind::Undefined) return 0;
  if (kind_ == Kind::String) return character_count(*std::get<std::shared_ptr<const std::string>>(data_));
  if (kind_ == Kind::Dict) return mapping().members.size();
  if (kind_ == Kind::Loop) return state().items->items.size();
  if (!is_list() || kind_ == Kind::Generator) refuse(concat("the length of ", name()));
  return list().items.size();
}

void JinjaValue::set_member(const std::string& name, JinjaValue value) const {
  if (kind_ != Kind::Namespace) refuse(concat("it sets a member of ", this->name(), ", which only a namespace lets"));
  check_data(value);
  put(std::get<std::shared_ptr<Mapping>>(data_)->members, JinjaValue(name), std::move(value));
}

JinjaValue JinjaValue::item(const JinjaValue& key) const {
  if (kind_ == Kind::Undefined) refuse("a part of what is not defined");
  if (kind_ == Kind::Dict)
    if (const JinjaValue* found = mapping().find(key)) return *found;
  if (key.is(Kind::String))
    return kind_ == Kind::Dict && !has_method(*this, key.text("")) ? JinjaValue() : attribute(key.text(""));
  if (!is_sequence() && kind_ != Kind::String) return {};
  if (key.kind() != Kind::Int && key.kind() != Kind::Bool) return {};
  const std::int64_t size = static_cast<std::int64_t>(length());
  std::int64_t at = key.integer("");
  if (at < 0) at += size;
  if (at < 0 || at >= size) return {};
  if (kind_ != Kind::String) return list().items[static_cast<std::size_t>(at)];
  return std::string(characters_of(text("a part"))[static_cast<std::size_t>(at)]);
}

JinjaValue JinjaValue::attribute(const std::string& name) const {
  if (kind_ == Kind::Undefined) refuse(concat("the member \"", name, "\" of what is not defined"));
  if (name.starts_with("__")) refuse(concat("the member \"", name, "\", which Jinja's sandbox keeps"));
  if (kind_ == Kind::Loop) {
    const auto& all = state().items->items;
    const std::size_t at = state().at, size = all.size();
    const auto number = [](std::size_t n) { return JinjaValue(static_cast<std::int64_t>(n)); };
    if (name == "index0") return number(at);
    if (name == "index") return number(at + 1);
    if (name == "revindex0") return number(size - at - 1);
    if (name == "revindex") return number(size - at);
    if (name == "length") return number(size);
    if (name == "first") return at == 0;
    if (name == "last") return at + 1 == size;
    if (name == "previtem") return at == 0 ? JinjaValue() : all[at - 1];
    if (name == "nextitem") return at + 1 == size ? JinjaValue() : all[at + 1];
    if (name == "depth0") return number(state().depth);
    if (name == "depth") return number(state().depth + 1);
    if (!has_method(*this, name)) refuse(concat("loop.", name));
  }
  if (kind_ == Kind::Cycler && name == "current") return state().items->items[state().at];
  if (kind_ == Kind::Tuple && list().is_group && (name == "grouper" || name == "list"))
    return list().items[name == "grouper" ? 0 : 1];
  const bool is_method = has_method(*this, name);
  if (is_method && is_number()) refuse(concat("the member \"", name, "\" of a number"));
  if (is_method) return callable({.name = name});
  if (kind_ != Kind::Dict && kind_ != Kind::Namespace) return {};
  const JinjaValue* found = mapping().named(name);
  return found == nullptr ? JinjaValue() : *found;
}

JinjaValue JinjaValue::slice(const JinjaValue& from, const JinjaValue& to, const JinjaValue& step) const {
  if (!is_sequence() && kind_ != Kind::String) refuse(concat("a slice of ", name()));
  const auto pick = [&](std::size_t size, const auto& take) {
    const Cut cut = cut_of(static_cast<std::int64_t>(size), from, to, step);
    for (std::int64_t i = 0; i < cut.count; ++i) take(static_cast<std::size_t>(cut.first + i * cut.step));
  };
  if (kind_ == Kind::String) {
    const auto all = characters_of(text("a slice"));
    std::string part;
    pick(all.size(), [&](std::size_t i) { part += all[i]; });
    return part;
  }
  Items part;
  pick(list().items.size(), [&](std::size_t i) { part.push_back(list().items[i]); });
  return sequence(kind_, std::move(part));
}

std::string JinjaValue::printed(JinjaBudget& budget) const {
  if (kind_ == Kind::String) return *std::get<std::shared_ptr<const std::string>>(data_);
  std::string out;
  if (kind_ != Kind::Undefined) represent(out, budget);
  return out;
}

void JinjaValue::represent(std::string& out, JinjaBudget& budget) const {
  budget.make(8);
  bool first = true;
  const auto next = [&] {
    if (!first) out += ", ";
    first = false;
  };
  switch (kind_) {
    case Kind::None:
      out += "None";
      return;
    case Kind::Bool:
      out += truth() ? "True" : "False";
      return;
    case Kind::Int:
      out += std::to_string(std::get<std::int64_t>(data_));
      return;
    case Kind::Float:
      out += spelled_number(std::get<double>(data_));
      return;
    case Kind::Undefined:
      out += "Undefined";
      return;
    case Kind::String:
      budget.make(text("").size());
      quote(out, text("its printing"));
      return;
    case Kind::List:
    case Kind::Tuple:
      out += kind_ == Kind::List ? '[' : '(';
      for (const JinjaValue& item : list().items) {
        next();
        item.represent(out, budget);
      }
      if (kind_ == Kind::Tuple && list().items.size() == 1) out += ',';
      out += kind_ == Kind::List ? ']' : ')';
      return;
    case Kind::Dict:
      out += '{';
      for (const auto& [key, item] : mapping().members) {
        next();
        key.represent(out, budget);
        out += ": ";
        item.represent(out, budget);
      }
      out += '}';
      return;
    default:
      refuse(concat("it prints ", name()));
  }
}

bool JinjaValue::equals(const JinjaValue& other, JinjaBudget& budget) const {
  budget.make(8);
  if (is_number() && other.is_number())
    return kind_ == Kind::Float || other.kind_ == Kind::Float ? number("") == other.number("")
                                                              : integer("") == other.integer("");
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::Undefined:
    case Kind::None:
      return true;
    case Kind::String:
      budget.read(std::min(text("").size(), other.text("").size()));
      return text("") == other.text("");
    case Kind::List:
    case Kind::Tuple:
    case Kind::Range:
      return std::ranges::equal(list().items, other.list().items,
                                [&](const JinjaValue& a, const JinjaValue& b) { return a.equals(b, budget); });
    case Kind::Dict:
      return mapping().members.size() == other.mapping().members.size() &&
             std::ranges::all_of(mapping().members, [&](const auto& member) {
               budget.read(other.mapping().members.size() * 8);
               const JinjaValue* found = other.mapping().find(member.first);
               return found != nullptr && member.second.equals(*found, budget);
             });
    default:
      refuse(concat("it compares ", name()));
  }
}

bool JinjaValue::less(const JinjaValue& other, JinjaBudget& budget) const {
  budget.make(8);
  if (is_number() && other.is_number())
    return kind_ == Kind::Float || other.kind_ == Kind::Float ? number("") < other.number("")
                                                              : integer("") < other.integer("");
  if (kind_ == other.kind_ && (kind_ == Kind::List || kind_ == Kind::Tuple)) {
    const Items &mine = list().items, &others = other.list().items;
    for (std::size_t i = 0; i < std::min(mine.size(), others.size()); ++i)
      if (!mine[i].equals(others[i], budget)) return mine[i].less(others[i], budget);
    return mine.size() < others.size();
  }
  if (kind_ != Kind::String || other.kind_ != Kind::String)
    refuse(concat("an order of ", name(), " and ", other.name()));
  budget.read(std::min(text("").size(), other.text("").size()));
  return text("") < other.text("");
}

bool JinjaValue::is_hashable() const {
  if (kind_ == Kind::Tuple) return std::ranges::all_of(items(""), &JinjaValue::is_hashable);
  return kind_ != Kind::List && kind_ != Kind::Dict && kind_ != Kind::View;
}

bool JinjaValue::contains(const JinjaValue& part, JinjaBudget& budget) const {
  if (kind_ == Kind::String) {
    const std::string& all = text("");
    budget.read(all.size());
    return all.find(part.text("in")) != std::string::npos;
  }
  if (kind_ == Kind::Dict) {
    must_be_hashable(part);
    budget.read(mapping().members.size() * 8);
    return mapping().find(part) != nullptr;
  }
  if (kind_ == Kind::Undefined) return false;
  if (!is_list()) refuse(concat("it looks for a part in ", name()));
  Items& items = kind_ == Kind::Generator ? of_generator() : std::get<std::shared_ptr<Sequence>>(data_)->items;
  const auto found = std::ranges::find_if(items, [&](const JinjaValue& item) { return item.equals(part, budget); });
  const bool has = found != items.end();
  if (kind_ == Kind::Generator) items.erase(items.begin(), has ? found + 1 : found);
  return has;
}

}  // namespace megatron::text
