#include "megatron/interchange/json.h"

#include <set>

#include "megatron/base/error.h"
#include "megatron/base/printable.h"

namespace megatron::interchange {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // what follows parsing may use the stack for each level

[[noreturn]] void damaged(const std::string& file, const std::string& got) {
  throw ConfigError(rule_got_fix(concat(file, ": must be a JSON object."), got));
}

}  // namespace

json parse_json_object(std::string_view text, const std::string& file) {
  std::set<std::string> names;
  std::string twice;
  const json::parser_callback_t note_name = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) damaged(file, concat("one nested deeper than ", kMaxDepth, " levels"));
    if (depth == 1 && event == json::parse_event_t::key && !names.insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  try {
    json object = json::parse(text, note_name);
    if (!object.is_object()) damaged(file, "another JSON value");
    if (!twice.empty()) damaged(file, concat("the key \"", printable(twice), "\" twice"));
    return object;
  } catch (const json::parse_error& e) {
    damaged(file, concat("something that is not JSON at byte ", e.byte));
  } catch (const json::exception&) {  // keys that are not UTF-8, numbers out of range
    damaged(file, "something that is not JSON");
  }
}

}  // namespace megatron::interchange
