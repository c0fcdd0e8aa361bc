#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::serve {

struct HttpRequest {
  std::string method = {}, path = {};               ///< path_of() what was asked for
  std::map<std::string, std::string> headers = {};  ///< names in lower case
  std::string body = {};
  std::string address = {};  ///< of the client

  /// "" where it is missing.
  std::string header(const std::string& name) const;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// How a response is sent, and what becomes of its connection.
struct Framing {
  bool keep_alive = true;
  bool chunked = true;  ///< HTTP/1.1 knows chunks; before it a stream ends with its connection
  bool head_only = false;
};

/// The bytes of a whole response.
std::string response_bytes(const HttpResponse& response, const Framing& framing);
/// The bytes with which a streamed one begins.
std::string stream_head(const HttpResponse& response, const Framing& framing);
/// A piece of a stream; none is empty.
std::string stream_piece(std::string_view data, const Framing& framing);
std::string stream_end(const Framing& framing);

/// The path of a request's target, without its query, percent-decoded; also of the absolute form
/// (http://host/path).
std::string path_of(std::string_view target);
/// "application/json" of "Application/JSON; charset=utf-8"; "" where none is named.
std::string media_type(const HttpRequest& request);

/// The token of "Authorization: Bearer TOKEN"; "" where there is none.
std::string bearer_token(const HttpRequest& request);
/// Number of the token that `given` is, from 0; -1: none. Takes as long whatever is given.
int token_number(std::string_view given, const std::vector<std::string>& tokens);

}  // namespace megatron::serve
