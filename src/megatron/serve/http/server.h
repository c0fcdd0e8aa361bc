#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "megatron/serve/http/message.h"

namespace megatron::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                ///< 0: one that is free
  std::size_t connections = 512;  ///< beyond them 503, beyond twice as many not even that
  std::size_t header_bytes = 16 << 10, body_bytes = 1 << 20;
  /// Of a stream, that wait behind the piece being sent, before another comes; then the client is cut off.
  std::size_t unread_bytes = 1 << 20;
  std::chrono::seconds header_timeout{15}, body_timeout{60}, idle_timeout{75};
  std::chrono::milliseconds write_timeout{30'000};  ///< of each piece of 64 KiB that is sent
};

/// The way back to the client of one request. Its members may be called from any thread, and return at once.
class Reply {
 public:
  virtual ~Reply() = default;
  /// The whole response. Once, and nothing else.
  virtual void send(HttpResponse response) = 0;
  /// A streamed response: begin() once, write() often, end() once.
  virtual void begin(HttpResponse response) = 0;
  virtual void write(std::string data) = 0;
  virtual void end() = 0;
  /// Whether nobody will read the rest: the client has gone, or does not read.
  virtual bool gone() const = 0;
};

/// Takes one request at a time, on a thread of its own.
using Handler = std::function<void(HttpRequest request, std::shared_ptr<Reply> reply)>;

/// HTTP/1.1. All clients are served by one thread that waits for none of them; each has a deadline for what it sends
/// and reads, and a bound on what is kept for it. Requests that are no HTTP or too large are answered here; who is too
/// slow is closed.
class HttpServer {
 public:
  /// Listens. Throws ConfigError where the address cannot be had.
  HttpServer(ServerOptions options, Handler handler);
  /// Closes what is open.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  std::size_t connections() const;
  /// Takes no more connections, and closes those on which nothing is under way.
  void close();
  /// After close(): waits until what is under way has been sent, at most so long.
  void drain(std::chrono::milliseconds most);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::serve
