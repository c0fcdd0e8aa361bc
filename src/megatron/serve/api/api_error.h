#pragma once
#include <stdexcept>
#include <string>

namespace megatron::serve {

/// What a client is told, in the form of OpenAI's API: an HTTP status, a message, and where one is at fault the
/// request's field and a code.
struct ApiError : std::runtime_error {
  ApiError(int status_, const std::string& message, std::string param_ = "", std::string code_ = "")
      : std::runtime_error(message), status(status_), param(std::move(param_)), code(std::move(code_)) {}

  int status;
  std::string param, code;
  int retry_after_s = 0;  ///< 0: the response names no time
};

/// {"error": {"message", "type", "param", "code"}}, the type by the status.
std::string error_json(const ApiError& error);

}  // namespace megatron::serve
