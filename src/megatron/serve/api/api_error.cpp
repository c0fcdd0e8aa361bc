#include "megatron/serve/api/api_error.h"

#include <nlohmann/json.hpp>

namespace megatron::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace

std::string error_json(const ApiError& error) {
  using json = nlohmann::ordered_json;
  const json object{{"error",
                     {{"message", error.what()},
                      {"type", type_of(error.status)},
                      {"param", text_or_null(error.param)},
                      {"code", text_or_null(error.code)}}}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace megatron::serve
