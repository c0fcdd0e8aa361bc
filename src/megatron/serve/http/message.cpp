#include "megatron/serve/http/message.h"

#include <algorithm>
#include <cctype>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/percent.h"

namespace megatron::serve {
namespace {

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return status < 500 ? "Error" : "Internal Server Error";
  }
}

std::string head_of(const HttpResponse& response, const Framing& framing) {
  std::string text = concat(
      "HTTP/1.1 ", response.status, " ", reason_of(response.status), "\r\nContent-Type: ", response.type,
      "\r\nConnection: ", framing.keep_alive ? "keep-alive" : "close", "\r\nX-Content-Type-Options: nosniff\r\n");
  for (const auto& [name, value] : response.headers) text += concat(name, ": ", value, "\r\n");
  return text;
}

}  // namespace

std::string HttpRequest::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

std::string response_bytes(const HttpResponse& response, const Framing& framing) {
  return concat(head_of(response, framing), "Content-Length: ", response.body.size(), "\r\n\r\n",
                framing.head_only ? "" : response.body);
}

std::string stream_head(const HttpResponse& response, const Framing& framing) {
  return head_of(response, framing) + "Cache-Control: no-cache\r\n" +
         (framing.chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

std::string stream_piece(std::string_view data, const Framing& framing) {
  if (!framing.chunked || data.empty()) return std::string(data);
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

std::string stream_end(const Framing& framing) { return framing.chunked ? "0\r\n\r\n" : ""; }

std::string path_of(std::string_view target) {
  // The absolute form, which clients send to proxies and any server must take: http://authority/path (RFC 9112, 3.2.2).
  std::string scheme(target.substr(0, target.find("://")));
  std::ranges::transform(scheme, scheme.begin(), [](unsigned char c) { return std::tolower(c); });
  if (scheme == "http" || scheme == "https") {
    target.remove_prefix(scheme.size() + 3);
    target.remove_prefix(std::min(target.size(), target.find_first_of("/?")));
    if (!target.starts_with('/')) return "/";
  }
  return percent_decoded(target.substr(0, target.find('?')));
}

std::string media_type(const HttpRequest& request) {
  std::string type = request.header("content-type");
  type = type.substr(0, type.find(';'));
  type.erase(type.find_last_not_of(" \t") + 1);
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type;
}

std::string bearer_token(const HttpRequest& request) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string value = request.header("authorization");
  if (value.size() <= kScheme.size()) return "";
  std::string scheme = value.substr(0, kScheme.size());
  std::ranges::transform(scheme, scheme.begin(), [](unsigned char c) { return std::tolower(c); });
  if (scheme != kScheme) return "";
  const std::size_t begin = value.find_first_not_of(' ', kScheme.size());
  return begin == std::string::npos ? "" : value.substr(begin, value.find_last_not_of(' ') - begin + 1);
}

int token_number(std::string_view given, const std::vector<std::string>& tokens) {
  int number = -1;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    unsigned differ = token.size() == given.size() ? 0 : 1;
    for (std::size_t k = 0; k < token.size(); ++k)
      differ |= static_cast<unsigned char>(token[k]) ^ static_cast<unsigned char>(k < given.size() ? given[k] : '\0');
    if (differ == 0) number = static_cast<int>(i);
  }
  return number;
}

}  // namespace megatron::serve
