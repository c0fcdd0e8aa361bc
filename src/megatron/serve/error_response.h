#pragma once
#include <string>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/api/responses.h"
#include "megatron/serve/http/message.h"

namespace megatron::serve {

/// What tells a client of `error`: its status, error_json(), and Retry-After where it names a time.
inline HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return response;
}

/// What ends a text: 503 names a time to try again.
inline ApiError text_error(int status, const std::string& message) {
  ApiError error(status, message);
  if (status == 503) error.retry_after_s = 10;
  return error;
}

}  // namespace megatron::serve
