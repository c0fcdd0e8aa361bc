#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/text/chat/filters.h"
#include "megatron/text/chat/operations.h"
#include "megatron/text/chat/python/letter_case.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

[[noreturn]] void refuse_list(const std::string& what) { throw JinjaRefusal(what); }

Value generated(Items items) { return Value::sequence(Kind::Generator, std::move(items)); }

class ListFilters {
 public:
  explicit ListFilters(JinjaBudget& budget) : budget_(budget) {}

  Value filtered(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (name == "last" && value.is(Kind::Generator)) refuse_list("the last of a generator");
    if (name == "first" && value.is(Kind::Generator)) return value.next();
    if (name == "reverse" && value.is(Kind::String))
      return value.slice(Value::none(), Value::none(), Value(std::int64_t{-1}));
    if (name == "dictsort" && !value.is(Kind::Dict)) refuse_list(concat("dictsort of ", value.name()));
    JinjaArguments none("items", {}, {});
    Items items = jinja_items(name == "dictsort" ? call_method(value, "items", none, budget_) : value, name, budget_);
    if (name == "list") return Value::sequence(Kind::List, std::move(items));
    if (name == "first") return items.empty() ? Value() : items.front();
    if (name == "last") return items.empty() ? Value() : items.back();
    if (name == "reverse") {
      std::ranges::reverse(items);
      return generated(std::move(items));
    }
    if (name == "join") return joined(items, arguments);
    if (name == "sum") return summed(items, arguments);
    if (name == "min" || name == "max") return extreme(items, name == "min", arguments);
    if (name == "unique") return unique(items, arguments);
    if (name == "batch") return batches(std::move(items), arguments);
    if (name == "slice") return slices(items, arguments);
    if (name == "groupby") return groups(std::move(items), arguments);
    return sorted(std::move(items), name == "dictsort", arguments);
  }

  /// map, select, reject, selectattr, rejectattr: items changed or picked by another filter or test.
  Value picked(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (!value.truth()) {
      arguments.use_all();
      return generated({});
    }
    const Items items = jinja_items(value, name, budget_);
    Items result;
    const bool by_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
    const bool has_place = arguments.count() > 0 && arguments.names()[0].empty();
    if (name == "map" && !has_place && arguments.count() > 0) {
      const auto attribute = arguments.get_some(arguments.count(), "attribute");
      const auto otherwise = arguments.get_some(arguments.count(), "default");
      for (const Value& item : items) result.push_back(at_path(item, attribute, otherwise));
      return generated(std::move(result));
    }
    const std::size_t at = by_attribute ? 1 : 0;  // where the test or filter is named
    const bool has_test = arguments.count() > at && arguments.names()[at].empty();
    if (!has_test && (name == "map" || arguments.count() > at))
      refuse_list(concat(name, " without its filter or test"));
    if (by_attribute && !has_place) refuse_list(concat(name, " without an attribute"));
    const std::string rest = has_test ? arguments.all()[at].text(name) : name;
    Items others;
    std::vector<std::string> names;
    for (std::size_t i = at + 1; i < arguments.count(); ++i) {
      others.push_back(arguments.all()[i]);
      names.push_back(arguments.names()[i]);
    }
    arguments.use_all();
    for (const Value& item : items) {
      budget_.make(sizeof(Value));
      JinjaArguments given(rest, names, others);
      if (name == "map") {
        result.push_back(jinja_filtered(item, rest, given, budget_));
        continue;
      }
      const Value of = by_attribute ? at_path(item, arguments.all()[0]) : item;
      if ((has_test ? jinja_tested(of, rest, given, budget_) : of.truth()) == keeps) result.push_back(item);
    }
    return generated(std::move(result));
  }

 private:
  /// The member that `path` names: "a.b", "0", 0; the item itself without. `otherwise` stands for what is missing.
  static Value at_path(Value value, const std::optional<Value>& path, const std::optional<Value>& otherwise = {}) {
    if (!path || path->is(Kind::None)) return value;
    const auto step = [&](const Value& key) {
      value = value.item(key);
      if (value.is(Kind::Undefined) && otherwise) value = *otherwise;
    };
    if (path->is(Kind::Int)) {
      step(*path);
      return value;
    }
    std::string_view rest = path->text("an attribute");
    for (bool more = true; more;) {
      const std::string part(rest.substr(0, rest.find('.')));
      more = part.size() < rest.size();
      rest.remove_prefix(std::min(rest.size(), part.size() + 1));
      const bool index = !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == std::string::npos;
      step(index ? Value(std::int64_t{std::stoll(part)}) : Value(part));
    }
    return value;
  }

  Value key_of(const Value& item, bool exact, const std::optional<Value>& path,
               const std::optional<Value>& otherwise = {}) {
    const Value key = at_path(item, path, otherwise);
    return !exact && key.is(Kind::String) ? Value(lower_case(key.text("an order"))) : key;
  }

  Value joined(const Items& items, JinjaArguments& arguments) {
    const auto between = arguments.get(0, "d");
    const auto attribute = arguments.get(1, "attribute");
    std::string out;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string part = at_path(items[i], attribute).printed(budget_);
      const std::string before = i > 0 && between ? between->printed(budget_) : "";
      budget_.make(before.size() + part.size());
      out += before + part;
    }
    return out;
  }

  Value summed(const Items& items, JinjaArguments& arguments) {
    const auto attribute = arguments.get(0, "attribute"), start = arguments.get(1, "start");
    Value sum = start ? *start : Value(std::int64_t{0});
    if (sum.is(Kind::String)) refuse_list("a sum of strings");
    for (const Value& item : items) sum = jinja_sum(sum, "+", at_path(item, attribute), budget_);
    return sum;
  }

  Value extreme(const Items& items, bool smallest, JinjaArguments& arguments) {
    const bool exact = arguments.flag(0, "case_sensitive", false);
    const auto attribute = arguments.get(1, "attribute");
    Value best, key;
    for (std::size_t i = 0; i < items.size(); ++i) {
      Value other = key_of(items[i], exact, attribute);
      if (i > 0 && !(smallest ? other.less(key, budget_) : key.less(other, budget_))) continue;
      best = items[i];
      key = std::move(other);
    }
    return best;
  }

  Value unique(const Items& items, JinjaArguments& arguments) {
    const bool exact = arguments.flag(0, "case_sensitive", false);
    const auto attribute = arguments.get(1, "attribute");
    Items kept, keys;
    for (const Value& item : items) {
      const Value key = key_of(item, exact, attribute);
      if (!key.is_hashable()) refuse_list(concat("unique of ", key.name()));
      if (std::ranges::any_of(keys, [&](const Value& other) { return other.equals(key, budget_); })) continue;
      keys.push_back(key);
      kept.push_back(item);
    }
    return generated(std::move(kept));
  }

  Value batches(Items items, JinjaArguments& arguments) {
    const std::int64_t size = arguments.must(0, "linecount").integer("batch");
    const auto fill = arguments.get_some(1, "fill_with");
    Items all, one;
    for (Value& item : items) {
      if (std::ssize(one) == size) all.push_back(Value::sequence(Kind::List, std::exchange(one, {})));
      one.push_back(std::move(item));
    }
    while (fill && !one.empty() && std::ssize(one) < size) {
      budget_.make(sizeof(Value));
      one.push_back(*fill);
    }
    if (!one.empty()) all.push_back(Value::sequence(Kind::List, std::move(one)));
    return generated(std::move(all));
  }

  Value slices(const Items& items, JinjaArguments& arguments) {
    const std::int64_t count = arguments.must(0, "slices").integer("slice");
    const auto fill = arguments.get_some(1, "fill_with");
    if (count == 0) refuse_list("no slices");
    Items all;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      budget_.make(sizeof(Value) * 4);
      const bool has_more = i < std::ssize(items) % count;
      const std::int64_t end = begin + std::ssize(items) / count + (has_more ? 1 : 0);
      Items one(items.begin() + begin, items.begin() + end);
      begin = end;
      if (fill && !has_more) one.push_back(*fill);
      all.push_back(Value::sequence(Kind::List, std::move(one)));
    }
    return generated(std::move(all));
  }

  Value groups(Items items, JinjaArguments& arguments) {
    const std::optional<Value> attribute = arguments.must(0, "attribute");
    const auto otherwise = arguments.get_some(1, "default");
    const bool exact = arguments.flag(2, "case_sensitive", false);
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : items) {
      Value key = key_of(item, exact, attribute, otherwise);
      keyed.emplace_back(std::move(key), std::move(item));
    }
    order(keyed, false);
    Items all;
    for (std::size_t i = 0; i < keyed.size();) {
      const Value key = keyed[i].first, shown = at_path(keyed[i].second, attribute, otherwise);
      Items members;
      do members.push_back(keyed[i].second);
      while (++i < keyed.size() && keyed[i].first.equals(key, budget_));
      all.push_back(Value::group(shown, std::move(members)));
    }
    return Value::sequence(Kind::List, std::move(all));
  }

  void order(std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
    budget_.make(keyed.size() * sizeof(keyed[0]));
    std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
      return reverse ? b.first.less(a.first, budget_) : a.first.less(b.first, budget_);
    });
  }

  Value sorted(Items items, bool of_dict, JinjaArguments& arguments) {
    const bool exact = arguments.flag(of_dict ? 0 : 1, "case_sensitive", false);
    const bool reverse = arguments.flag(of_dict ? 2 : 0, "reverse", false);
    std::vector<std::optional<Value>> attributes;
    if (of_dict) {
      const auto by = arguments.get(1, "by");
      const std::string what = by ? by->text("dictsort") : "key";
      if (what != "key" && what != "value") refuse_list("dictsort by other than key or value");
      attributes.emplace_back(Value(std::int64_t{what == "value" ? 1 : 0}));
    } else if (const auto given = arguments.get(2, "attribute"); given && given->is(Kind::String)) {
      std::string_view rest = given->text("sort");
      for (bool more = true; more;) {
        const std::string_view part = rest.substr(0, rest.find(','));
        more = part.size() < rest.size();
        rest.remove_prefix(std::min(rest.size(), part.size() + 1));
        attributes.emplace_back(Value(std::string(part)));
      }
    } else {
      attributes.push_back(given);
    }
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : items) {
      Items keys;
      for (const auto& attribute : attributes) keys.push_back(key_of(item, exact, attribute));
      Value key = of_dict ? keys[0] : Value::sequence(Kind::List, keys);  // of which equal ones need no order
      keyed.emplace_back(std::move(key), std::move(item));
    }
    order(keyed, reverse);
    Items all;
    for (auto& [key, item] : keyed) all.push_back(std::move(item));
    return Value::sequence(Kind::List, std::move(all));
  }

  JinjaBudget& budget_;
};

}  // namespace

std::optional<JinjaValue> list_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                                        JinjaBudget& budget) {
  ListFilters filters(budget);
  if (is_one_of(name, {"map", "select", "reject", "selectattr", "rejectattr"}))
    return filters.picked(value, name, arguments);
  if (is_one_of(name, {"list", "first", "last", "join", "reverse", "sort", "unique", "dictsort", "sum", "min", "max",
                       "batch", "slice", "groupby"}))
    return filters.filtered(value, name, arguments);
  return std::nullopt;
}

}  // namespace megatron::text
