#include "megatron/serve/api/request.h"

#include <algorithm>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/ordered_json.h"
#include "megatron/serve/api/api_error.h"
#include "megatron/serve/api/messages.h"
#include "megatron/serve/api/request_fields.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRequestDepth = 48;  // a JSON schema is nested

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
      refuse_field(name, "must hold token ids, which are integers from 0 on");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

/// A string, several, the ids of one text, or of several.
std::vector<Prompt> prompts_of(const std::string& name, const json& value, std::int64_t most) {
  if (value.is_string()) return {value.get<std::string>()};
  const std::string forms = "must be a string, a list of strings, a list of token ids or a list of such lists";
  if (!value.is_array() || value.empty()) refuse_field(name, forms);
  if (value.front().is_number()) return {token_ids(name, value)};
  if (static_cast<std::int64_t>(value.size()) > most) refuse_field(name, concat("may hold at most ", most, " texts"));
  std::vector<Prompt> prompts;
  for (const json& one : value) {
    if (one.is_string())
      prompts.emplace_back(one.get<std::string>());
    else if (one.is_array())
      prompts.emplace_back(token_ids(name, one));
    else
      refuse_field(name, forms);
  }
  return prompts;
}

std::vector<std::string> stops_of(RequestFields& fields, const RequestLimits& limits) {
  const json* value = fields.find("stop");
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  if (static_cast<std::int64_t>(list.size()) > limits.stop_sequences)
    refuse_field("stop", concat("may hold at most ", limits.stop_sequences, " sequences"));
  std::vector<std::string> stops;
  for (const json& one : list) {
    if (!one.is_string()) refuse_field("stop", "must be a string or a list of strings");
    stops.push_back(one.get<std::string>());
    if (stops.back().empty() || static_cast<std::int64_t>(stops.back().size()) > limits.stop_bytes)
      refuse_field("stop", concat("must hold sequences of 1 to ", limits.stop_bytes, " bytes"));
  }
  return stops;
}

std::map<std::int64_t, double> biases_of(RequestFields& fields, const RequestLimits& limits) {
  const json* value = fields.find("logit_bias");
  if (value == nullptr) return {};
  if (!value->is_object() || static_cast<std::int64_t>(value->size()) > limits.biases)
    refuse_field("logit_bias", concat("must be an object of at most ", limits.biases, " token ids and their biases"));
  std::map<std::int64_t, double> biases;
  for (const auto& [key, bias] : value->items()) {
    const bool digits = !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) refuse_field("logit_bias", "must have token ids as keys");
    biases[std::stoll(key)] = number_at("logit_bias", bias, -100, 100);
  }
  return biases;
}

void take_format(RequestFields& fields, Request& request, std::string_view body, const json& whole) {
  const json* value = fields.find("response_format");
  if (value == nullptr) return;
  RequestFields format(*value, "response_format");
  const std::string type = format.text("type", "");
  if (type == "json_object") {
    request.schema = nlohmann::ordered_json::object({{"type", "object"}});
  } else if (type == "json_schema") {
    RequestFields named(format.need("json_schema"), "response_format.json_schema");
    named.text("name", "");
    named.text("description", "");
    named.boolean("strict", true);
    named.need("schema");
    check_json_keys("response_format", whole);
    request.schema = parse_ordered_json(body).at("response_format").at("json_schema").at("schema");
    named.refuse_others();
    if (!request.schema->is_object() && !request.schema->is_boolean())
      refuse_field("response_format.json_schema.schema", "must be a JSON Schema");
  } else if (type != "text") {
    refuse_field("response_format.type", "must be text, json_object or json_schema");
  }
  format.refuse_others();
}

void take_common(RequestFields& fields, Request& request, const RequestLimits& limits) {
  request.model = fields.text("model", "");
  Sampling& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 0, 2, 1);
  sampling.top_p = fields.number("top_p", 0, 1, 1);
  if (sampling.top_p == 0) refuse_field("top_p", "must be above 0");
  sampling.top_k = static_cast<int>(std::max<std::int64_t>(0, fields.integer("top_k", -1, 1 << 30).value_or(0)));
  sampling.min_p = fields.number("min_p", 0, 1, 0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0.01, 100, 1);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2, 0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2, 0);
  if (const json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) refuse_field("seed", "must be an integer");
    sampling.seed =
        seed->is_number_unsigned() ? seed->get<std::uint64_t>() : static_cast<std::uint64_t>(seed->get<std::int64_t>());
  }
  sampling.logit_bias = biases_of(fields, limits);
  request.n = fields.integer("n", 1, limits.choices).value_or(1);
  request.stop = stops_of(fields, limits);
  request.stream = fields.boolean("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!request.stream) refuse_field("stream_options", "needs stream");
    RequestFields inner(*options, "stream_options");
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
  RequestFields fields(whole, "");
  EmbeddingRequest request;
  request.model = fields.text("model", "");
  request.inputs = prompts_of("input", fields.need("input"), limits.inputs);
  const std::string format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64") refuse_field("encoding_format", "must be float or base64");
  request.base64 = format == "base64";
  request.add_special_tokens = fields.boolean("add_special_tokens", true);
  fields.unserved("dimensions");
  fields.text("user", "");
  fields.refuse_others();
  return request;
}

Request parse_completion(std::string_view body, const RequestLimits& limits) {
  const json whole = parsed(body);
  RequestFields fields(whole, "");
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
    refuse_field("n", concat("times the number of prompts may be at most ", limits.choices));
  return request;
}

Request parse_chat(std::string_view body, const RequestLimits& limits) {
  const json whole = parsed(body);
  RequestFields fields(whole, "");
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
    refuse_field("top_logprobs", "needs logprobs");
  request.tools = tools_of(fields, body, whole, limits);
  if (request.schema && request.tools.choice != ToolChoice::None && request.tools.choice != ToolChoice::Auto)
    refuse_field("response_format", "asks for an answer that 'tool_choice' rules out: leave one of them out");
  fields.unserved("functions", json::array(), "'tools'");
  fields.unserved("function_call", "none", "'tools' and 'tool_choice'");
  for (const char* name : {"audio", "prediction", "web_search_options", "reasoning_effort"}) fields.unserved(name);
  fields.unserved("modalities", json::array({"text"}));
  fields.unserved("store", false);
  fields.unserved("metadata", json::object());
  fields.refuse_others();
  return request;
}

}  // namespace megatron::serve
