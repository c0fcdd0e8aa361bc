#include "megatron/serve/api/request.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/ordered_json.h"
#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRequestDepth = 48;  // a JSON schema is nested

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw ApiError(400, concat("'", name, "' ", what), name, "invalid_value");
}

std::string kind_of(const json& value) {
  return value.is_number() ? "a number" : value.is_null() ? "null" : concat("a JSON ", value.type_name());
}

/// The fields of one object. A null is as if it were not there. Names that nobody has asked for are refused at the end.
class Fields {
 public:
  Fields(const json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
    if (!object.is_object())
      throw ApiError(
          400,
          concat(prefix_.empty() ? "the body" : "'" + prefix_ + "'", " must be a JSON object, not ", kind_of(object)),
          prefix_, "invalid_type");
  }

  std::string name_of(const char* name) const { return prefix_.empty() ? name : prefix_ + "." + name; }

  /// Null where it is missing.
  const json* find(const char* name) {
    known_.insert(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  const json& need(const char* name) {
    const json* value = find(name);
    if (value == nullptr) throw ApiError(400, concat("'", name_of(name), "' is missing"), name_of(name), "missing");
    return *value;
  }

  std::optional<std::int64_t> integer(const char* name, std::int64_t least, std::int64_t most) {
    const json* value = find(name);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                                  : value->is_number_integer();
    if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most)
      refuse(name_of(name), concat("must be an integer from ", least, " to ", most, ", not ", shown(*value)));
    return value->get<std::int64_t>();
  }

  double number(const char* name, double least, double most, double otherwise) {
    const json* value = find(name);
    return value == nullptr ? otherwise : number_of(name_of(name), *value, least, most);
  }

  static double number_of(const std::string& name, const json& value, double least, double most) {
    const double got = value.is_number() ? value.get<double>() : NAN;
    if (!(got >= least && got <= most))
      refuse(name, concat("must be a number from ", least, " to ", most, ", not ", shown(value)));
    return got;
  }

  bool boolean(const char* name, bool otherwise) {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(name_of(name), "must be true or false, not " + kind_of(*value));
    return value->get<bool>();
  }

  std::string text(const char* name, const std::string& otherwise) {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(name_of(name), "must be a string, not " + kind_of(*value));
    return value->get<std::string>();
  }

  /// A field that is known and not served: as if it were not there, or as `harmless`.
  void unserved(const char* name, const json& harmless = nullptr) {
    const json* value = find(name);
    if (value != nullptr && *value != harmless)
      throw ApiError(400, concat("'", name_of(name), "' is not supported by this server"), name_of(name),
                     "unsupported_parameter");
  }

  void refuse_others() const {
    for (const auto& [name, value] : object_.items())
      if (!known_.contains(name))
        throw ApiError(400, concat("Unrecognized request argument supplied: ", name_of(name.substr(0, 64).c_str())),
                       name_of(name.substr(0, 64).c_str()), "unknown_parameter");
  }

 private:
  static std::string shown(const json& value) { return value.is_number() ? value.dump() : kind_of(value); }

  const json& object_;
  std::string prefix_;
  std::set<std::string> known_;
};

json parsed(std::string_view body) {
  try {
    return parse_json(body, kMaxRequestDepth);
  } catch (const JsonError& error) {
    throw ApiError(400, concat("the body must be JSON: ", error.what()), "", "invalid_json");
  }
}

std::vector<std::int64_t> token_ids(const std::string& name, const json& array) {
  std::vector<std::int64_t> ids;
  ids.reserve(array.size());
  for (const json& id : array) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > (std::int64_t{1} << 31))
      refuse(name, "must hold token ids, which are integers from 0 on");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

/// A string, several, the ids of one text, or of several.
std::vector<Prompt> prompts_of(const std::string& name, const json& value, std::int64_t most) {
  if (value.is_string()) return {value.get<std::string>()};
  const std::string forms = "must be a string, a list of strings, a list of token ids or a list of such lists";
  if (!value.is_array() || value.empty()) refuse(name, forms);
  if (value.front().is_number()) return {token_ids(name, value)};
  if (static_cast<std::int64_t>(value.size()) > most) refuse(name, concat("may hold at most ", most, " texts"));
  std::vector<Prompt> prompts;
  for (const json& one : value) {
    if (one.is_string())
      prompts.emplace_back(one.get<std::string>());
    else if (one.is_array())
      prompts.emplace_back(token_ids(name, one));
    else
      refuse(name, forms);
  }
  return prompts;
}

std::vector<std::string> stops_of(Fields& fields, const RequestLimits& limits) {
  const json* value = fields.find("stop");
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  if (static_cast<std::int64_t>(list.size()) > limits.stop_sequences)
    refuse("stop", concat("may hold at most ", limits.stop_sequences, " sequences"));
  std::vector<std::string> stops;
  for (const json& one : list) {
    if (!one.is_string()) refuse("stop", "must be a string or a list of strings");
    stops.push_back(one.get<std::string>());
    if (stops.back().empty() || static_cast<std::int64_t>(stops.back().size()) > limits.stop_bytes)
      refuse("stop", concat("must hold sequences of 1 to ", limits.stop_bytes, " bytes"));
  }
  return stops;
}

std::map<std::int64_t, double> biases_of(Fields& fields, const RequestLimits& limits) {
  const json* value = fields.find("logit_bias");
  if (value == nullptr) return {};
  if (!value->is_object() || static_cast<std::int64_t>(value->size()) > limits.biases)
    refuse("logit_bias", concat("must be an object of at most ", limits.biases, " token ids and their biases"));
  std::map<std::int64_t, double> biases;
  for (const auto& [key, bias] : value->items()) {
    const bool digits = !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) refuse("logit_bias", "must have token ids as keys");
    biases[std::stoll(key)] = Fields::number_of("logit_bias", bias, -100, 100);
  }
  return biases;
}

std::string content_of(const std::string& name, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse(name, "must be a string or a list of parts, not " + kind_of(value));
  std::string text;
  for (const json& part : value) {
    Fields fields(part, name);
    if (fields.text("type", "") != "text")
      throw ApiError(400, concat("'", name, "' may hold parts of type text alone"), name, "unsupported_parameter");
    text += fields.text("text", "");
    fields.refuse_others();
  }
  return text;
}

std::vector<text::ChatMessage> messages_of(Fields& fields, const RequestLimits& limits) {
  const json& value = fields.need("messages");
  if (!value.is_array() || value.empty() || static_cast<std::int64_t>(value.size()) > limits.messages)
    refuse("messages", concat("must be a list of 1 to ", limits.messages, " messages"));
  std::vector<text::ChatMessage> messages;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string name = concat("messages[", i, "]");
    Fields message(value[i], name);
    std::string role = message.text("role", "");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant")
      refuse(name + ".role", "must be system, user or assistant");
    messages.push_back({role, content_of(name + ".content", message.need("content"))});
    for (const char* unserved : {"tool_calls", "function_call", "audio", "refusal", "name"}) message.unserved(unserved);
    message.unserved("annotations", json::array());
    message.refuse_others();
  }
  return messages;
}

/// A schema as it is written: its properties have an order. Of a body that was parsed.
nlohmann::ordered_json ordered_schema(std::string_view body, const json& whole) {
  constexpr std::size_t kMostKeys = 1000;
  std::vector<const json*> open = {&whole};
  while (!open.empty()) {
    const json& value = *open.back();
    open.pop_back();
    if (value.is_object() && value.size() > kMostKeys)
      refuse("response_format", concat("comes with an object of more than ", kMostKeys, " keys"));
    if (value.is_structured())
      for (const json& inner : value) open.push_back(&inner);
  }
  return parse_ordered_json(body).at("response_format").at("json_schema").at("schema");
}

void take_format(Fields& fields, Request& request, std::string_view body, const json& whole) {
  const json* value = fields.find("response_format");
  if (value == nullptr) return;
  Fields format(*value, "response_format");
  const std::string type = format.text("type", "");
  if (type == "json_object") {
    request.schema = nlohmann::ordered_json::object({{"type", "object"}});
  } else if (type == "json_schema") {
    Fields named(format.need("json_schema"), "response_format.json_schema");
    named.text("name", "");
    named.text("description", "");
    named.boolean("strict", true);
    named.need("schema");
    request.schema = ordered_schema(body, whole);
    named.refuse_others();
    if (!request.schema->is_object() && !request.schema->is_boolean())
      refuse("response_format.json_schema.schema", "must be a JSON Schema");
  } else if (type != "text") {
    refuse("response_format.type", "must be text, json_object or json_schema");
  }
  format.refuse_others();
}

void take_common(Fields& fields, Request& request, const RequestLimits& limits) {
  request.model = fields.text("model", "");
  Sampling& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 0, 2, 1);
  sampling.top_p = fields.number("top_p", 0, 1, 1);
  if (sampling.top_p == 0) refuse("top_p", "must be above 0");
  sampling.top_k = static_cast<int>(std::max<std::int64_t>(0, fields.integer("top_k", -1, 1 << 30).value_or(0)));
  sampling.min_p = fields.number("min_p", 0, 1, 0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0, 100, 1);
  if (sampling.repetition_penalty == 0) refuse("repetition_penalty", "must be above 0");
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2, 0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2, 0);
  if (const json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) refuse("seed", "must be an integer");
    sampling.seed =
        seed->is_number_unsigned() ? seed->get<std::uint64_t>() : static_cast<std::uint64_t>(seed->get<std::int64_t>());
  }
  sampling.logit_bias = biases_of(fields, limits);
  request.n = fields.integer("n", 1, limits.choices).value_or(1);
  request.stop = stops_of(fields, limits);
  request.stream = fields.boolean("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!request.stream) refuse("stream_options", "needs stream");
    Fields inner(*options, "stream_options");
    request.include_usage = inner.boolean("include_usage", false);
    inner.refuse_others();
  }
  request.add_special_tokens = fields.boolean("add_special_tokens", !request.chat);
  request.ignore_eos = fields.boolean("ignore_eos", false);
  if (const std::string tier = fields.text("service_tier", "auto"); tier != "default")  // there is one
    fields.unserved("service_tier", "auto");
  fields.text("user", "");  // names whom the client serves; every client is told apart by its address and token
}

}  // namespace

EmbeddingRequest parse_embedding(std::string_view body, const RequestLimits& limits) {
  const json whole = parsed(body);
  Fields fields(whole, "");
  EmbeddingRequest request;
  request.model = fields.text("model", "");
  request.inputs = prompts_of("input", fields.need("input"), limits.inputs);
  const std::string format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64") refuse("encoding_format", "must be float or base64");
  request.base64 = format == "base64";
  request.add_special_tokens = fields.boolean("add_special_tokens", true);
  fields.unserved("dimensions");
  fields.text("user", "");
  fields.refuse_others();
  return request;
}

Request parse_completion(std::string_view body, const RequestLimits& limits) {
  const json whole = parsed(body);
  Fields fields(whole, "");
  Request request;
  take_common(fields, request, limits);
  take_format(fields, request, body, whole);
  request.prompts = prompts_of("prompt", fields.need("prompt"), limits.choices);
  request.max_tokens = fields.integer("max_tokens", 0, 1 << 30).value_or(16);
  request.echo = fields.boolean("echo", false);
  request.logprobs = fields.integer("logprobs", 0, limits.top_logprobs);
  fields.unserved("suffix");
  fields.unserved("best_of", request.n);
  fields.refuse_others();
  if (static_cast<std::int64_t>(request.prompts.size()) > limits.choices / request.n)
    refuse("n", concat("times the number of prompts may be at most ", limits.choices));
  return request;
}

Request parse_chat(std::string_view body, const RequestLimits& limits) {
  const json whole = parsed(body);
  Fields fields(whole, "");
  Request request;
  request.chat = true;
  take_common(fields, request, limits);
  take_format(fields, request, body, whole);
  request.messages = messages_of(fields, limits);
  request.max_tokens = fields.integer("max_tokens", 1, 1 << 30);
  if (const auto completion = fields.integer("max_completion_tokens", 1, 1 << 30)) request.max_tokens = completion;
  const auto top = fields.integer("top_logprobs", 0, limits.top_logprobs);
  if (fields.boolean("logprobs", false))
    request.logprobs = top.value_or(0);
  else if (top)
    refuse("top_logprobs", "needs logprobs");
  for (const char* name : {"tools", "functions"}) fields.unserved(name, json::array());
  for (const char* name : {"tool_choice", "function_call"}) fields.unserved(name, "none");
  fields.unserved("parallel_tool_calls", true);
  for (const char* name : {"audio", "prediction", "web_search_options", "reasoning_effort"}) fields.unserved(name);
  fields.unserved("modalities", json::array({"text"}));
  fields.unserved("store", false);
  fields.unserved("metadata", json::object());
  fields.refuse_others();
  return request;
}

}  // namespace megatron::serve
