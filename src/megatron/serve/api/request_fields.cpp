#include "megatron/serve/api/request_fields.h"

#include <cmath>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxKeys = 1000;  // reading them in their order takes time quadratic in them

std::string shown_value(const json& value) { return value.is_number() ? value.dump() : json_kind(value); }

}  // namespace

void refuse_field(const std::string& name, const std::string& what) {
  throw ApiError(400, concat("'", name, "' ", what), name, "invalid_value");
}

std::string json_kind(const json& value) {
  return value.is_number() ? "a number" : value.is_null() ? "null" : concat("a JSON ", value.type_name());
}

void check_json_keys(const std::string& name, const json& whole) {
  std::vector<const json*> open = {&whole};
  while (!open.empty()) {
    const json& value = *open.back();
    open.pop_back();
    if (value.is_object() && value.size() > kMaxKeys)
      refuse_field(name, concat("comes with an object of more than ", kMaxKeys, " keys"));
    if (value.is_structured())
      for (const json& inner : value) open.push_back(&inner);
  }
}

RequestFields::RequestFields(const json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
  if (!object.is_object())
    throw ApiError(
        400,
        concat(prefix_.empty() ? "the body" : "'" + prefix_ + "'", " must be a JSON object, not ", json_kind(object)),
        prefix_, "invalid_type");
}

const json* RequestFields::find(const char* name) {
  known_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

const json& RequestFields::need(const char* name) {
  const json* value = find(name);
  if (value == nullptr) throw ApiError(400, concat("'", name_of(name), "' is missing"), name_of(name), "missing");
  return *value;
}

std::optional<std::int64_t> RequestFields::integer(const char* name, std::int64_t least, std::int64_t most) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                                : value->is_number_integer();
  if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most)
    refuse_field(name_of(name), concat("must be an integer from ", least, " to ", most, ", not ", shown_value(*value)));
  return value->get<std::int64_t>();
}

double RequestFields::number(const char* name, double least, double most, double otherwise) {
  const json* value = find(name);
  return value == nullptr ? otherwise : number_at(name_of(name), *value, least, most);
}

bool RequestFields::boolean(const char* name, bool otherwise) {
  const json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse_field(name_of(name), "must be true or false, not " + json_kind(*value));
  return value->get<bool>();
}

std::string RequestFields::text(const char* name, const std::string& otherwise) {
  const json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) refuse_field(name_of(name), "must be a string, not " + json_kind(*value));
  return value->get<std::string>();
}

void RequestFields::unserved(const char* name, const json& harmless, const std::string& instead) {
  const json* value = find(name);
  if (value == nullptr || *value == harmless) return;
  throw ApiError(
      400, concat("'", name_of(name), "' is not supported by this server", instead.empty() ? "" : ": use " + instead),
      name_of(name), "unsupported_parameter");
}

void RequestFields::refuse_others() const {
  for (const auto& [name, value] : object_.items())
    if (!known_.contains(name))
      throw ApiError(400, concat("Unrecognized request argument supplied: ", name_of(name.substr(0, 64))),
                     name_of(name.substr(0, 64)), "unknown_parameter");
}

double number_at(const std::string& name, const json& value, double least, double most) {
  const double got = value.is_number() ? value.get<double>() : NAN;
  if (!(got >= least && got <= most))
    refuse_field(name, concat("must be a number from ", least, " to ", most, ", not ", shown_value(value)));
  return got;
}

}  // namespace megatron::serve
