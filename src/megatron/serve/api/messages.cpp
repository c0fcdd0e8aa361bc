#include "megatron/serve/api/messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/ordered_json.h"
#include "megatron/base/text/printable.h"
#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxName = 64, kMaxCallId = 256, kMaxArgumentsDepth = 48;

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") ==
             std::string::npos;
}

/// The `name` of a function.
std::string function_name(RequestFields& function) {
  const json& value = function.need("name");
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  if (!is_name(name))
    refuse_field(function.name_of("name"),
                 concat("must be 1 to ", kMaxName, " of the characters A-Z, a-z, 0-9, _ and -, not ",
                        value.is_string() ? in_quotes(name.substr(0, kMaxName)) : json_kind(value)));
  return name;
}

/// The `function` of an object of type function.
const json& function_in(RequestFields& object) {
  if (const std::string type = object.text("type", ""); type != "function")
    refuse_field(object.name_of("type"), concat("must be function, not ", in_quotes(type.substr(0, kMaxName))));
  return object.need("function");
}

std::string content_of(const std::string& name, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse_field(name, "must be a string or a list of parts, not " + json_kind(value));
  std::string text;
  for (const json& part : value) {
    RequestFields fields(part, name);
    if (fields.text("type", "") != "text")
      throw ApiError(400, concat("'", name, "' may hold parts of type text alone"), name, "unsupported_parameter");
    text += fields.text("text", "");
    fields.refuse_others();
  }
  return text;
}

/// The arguments of a call, which clients write as a string: the text of an object. As models write them: a key may
/// come twice, the last counts.
std::string arguments_of(RequestFields& function) {
  const std::string name = function.name_of("arguments");
  const json& value = function.need("arguments");
  const std::string rule = "must be a string that is a JSON object (\"{\\\"day\\\": 1}\"), ";
  if (!value.is_string()) refuse_field(name, concat(rule, "not ", json_kind(value)));
  const auto text = value.get<std::string>();
  if (text.empty()) return "{}";
  try {
    const json parsed = parse_json(text, kMaxArgumentsDepth, RepeatedKeys::LastCounts);
    if (!parsed.is_object()) refuse_field(name, concat(rule, "not one that is ", json_kind(parsed)));
    check_json_keys(name, parsed);
  } catch (const JsonError& error) {
    refuse_field(name, concat(rule, "and has ", error.what()));
  }
  return text;
}

std::vector<text::ChatToolCall> calls_of(RequestFields& message, const RequestLimits& limits) {
  const json* value = message.find("tool_calls");
  if (value == nullptr) return {};
  const std::string name = message.name_of("tool_calls");
  if (!value->is_array() || static_cast<std::int64_t>(value->size()) > limits.tools)
    refuse_field(name, concat("must be a list of at most ", limits.tools, " calls"));
  std::vector<text::ChatToolCall> calls;
  for (std::size_t i = 0; i < value->size(); ++i) {
    RequestFields call((*value)[i], concat(name, "[", i, "]"));
    RequestFields function(function_in(call), call.name_of("function"));
    text::ChatToolCall one{
        .id = call.text("id", ""), .name = function_name(function), .arguments = arguments_of(function)};
    if (one.id.empty() || one.id.size() > kMaxCallId)
      refuse_field(call.name_of("id"), concat("must be a string of 1 to ", kMaxCallId, " bytes"));
    call.integer("index", 0, limits.tools);  // of a stream's pieces, put together
    call.refuse_others();
    function.refuse_others();
    calls.push_back(std::move(one));
  }
  return calls;
}

/// As the chat template takes it: strict is for the server.
nlohmann::ordered_json definition_of(const nlohmann::ordered_json& tool) {
  nlohmann::ordered_json definition = tool;
  definition.at("function").erase("strict");
  return definition;
}

void take_choice(RequestFields& fields, ToolUse& use) {
  use.choice = use.tools.empty() ? ToolChoice::None : ToolChoice::Auto;
  const json* value = fields.find("tool_choice");
  if (value == nullptr) return;
  if (value->is_object()) {
    RequestFields named(*value, "tool_choice");
    RequestFields function(function_in(named), "tool_choice.function");
    const std::string name = function_name(function);
    const auto found = std::ranges::find(use.tools, name, &Tool::name);
    if (found == use.tools.end()) refuse_field("tool_choice.function.name", concat("names no tool of 'tools': ", name));
    use.function = static_cast<std::size_t>(found - use.tools.begin());
    use.choice = ToolChoice::Function;
    function.refuse_others();
    named.refuse_others();
    return;
  }
  const std::string choice = value->is_string() ? value->get<std::string>() : "";
  if (choice != "none" && choice != "auto" && choice != "required")
    refuse_field("tool_choice",
                 concat(R"(must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}, not )",
                        value->is_string() ? in_quotes(choice.substr(0, kMaxName)) : json_kind(*value)));
  if (choice == "required" && use.tools.empty()) refuse_field("tool_choice", "must not be required without 'tools'");
  if (choice == "required") use.choice = ToolChoice::Required;
  if (choice == "none") use.choice = ToolChoice::None;
}

}  // namespace

std::vector<text::ChatMessage> messages_of(RequestFields& fields, const RequestLimits& limits) {
  const json& value = fields.need("messages");
  if (!value.is_array() || value.empty() || static_cast<std::int64_t>(value.size()) > limits.messages)
    refuse_field("messages", concat("must be a list of 1 to ", limits.messages, " messages"));
  std::vector<text::ChatMessage> messages;
  std::set<std::string> called;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string name = concat("messages[", i, "]");
    RequestFields message(value[i], name);
    std::string role = message.text("role", "");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool")
      refuse_field(name + ".role", "must be system, user, assistant or tool");
    text::ChatMessage one{.role = role, .content = {}};
    if (role == "assistant") {
      one.tool_calls = calls_of(message, limits);
      for (const text::ChatToolCall& call : one.tool_calls) called.insert(call.id);
    } else {
      message.unserved("tool_calls");
    }
    if (role == "tool") {
      one.tool_call_id = message.need("tool_call_id").is_string() ? message.text("tool_call_id", "") : "";
      if (!called.contains(one.tool_call_id))
        refuse_field(name + ".tool_call_id",
                     "must be the id of a call in 'tool_calls' of an assistant's message before it");
      one.name = message.text("name", "");
    } else {
      message.unserved("name");
    }
    // Who calls tools need not say anything.
    if (one.tool_calls.empty() || message.find("content") != nullptr)
      one.content = content_of(name + ".content", message.need("content"));
    message.unserved("function_call", nullptr, "'tool_calls'");
    for (const char* unserved : {"audio", "refusal"}) message.unserved(unserved);
    message.unserved("annotations", json::array());
    message.refuse_others();
    messages.push_back(std::move(one));
  }
  return messages;
}

ToolUse tools_of(RequestFields& fields, std::string_view body, const json& whole, const RequestLimits& limits) {
  ToolUse use;
  use.parallel = fields.boolean("parallel_tool_calls", true);
  if (const json* value = fields.find("tools")) {
    if (!value->is_array() || static_cast<std::int64_t>(value->size()) > limits.tools)
      refuse_field("tools", concat("must be a list of at most ", limits.tools, " tools"));
    check_json_keys("tools", whole);
    std::set<std::string> names;
    for (std::size_t i = 0; i < value->size(); ++i) {
      RequestFields tool((*value)[i], concat("tools[", i, "]"));
      RequestFields function(function_in(tool), tool.name_of("function"));
      Tool one{.name = function_name(function)};
      if (!names.insert(one.name).second)
        refuse_field(function.name_of("name"), "is the name of two tools: " + one.name);
      function.text("description", "");
      one.strict = function.boolean("strict", false);
      if (const json* parameters = function.find("parameters"); parameters != nullptr && !parameters->is_object())
        refuse_field(function.name_of("parameters"), "must be a JSON Schema, an object, not " + json_kind(*parameters));
      function.refuse_others();
      tool.refuse_others();
      use.tools.push_back(std::move(one));
    }
    if (!value->empty()) {
      const nlohmann::ordered_json ordered = parse_ordered_json(body).at("tools");
      use.definitions = nlohmann::ordered_json::array();
      for (std::size_t i = 0; i < use.tools.size(); ++i) {
        use.definitions.push_back(definition_of(ordered[i]));
        use.tools[i].parameters = ordered[i].at("function").value("parameters", nlohmann::ordered_json());
      }
    }
  }
  take_choice(fields, use);
  if (use.choice == ToolChoice::None) use = {};
  return use;
}

}  // namespace megatron::serve
