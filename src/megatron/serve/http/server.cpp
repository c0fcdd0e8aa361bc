#include "megatron/serve/http/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kWrittenAtOnce = 64 << 10;   // for which a client has ServerOptions::write_timeout
constexpr std::size_t kPipelinedBytes = 64 << 10;  // of later requests that are taken in before this one is answered

HttpResponse refusal(int status, const std::string& message) {
  return {.status = status, .body = error_json(ApiError(status, message))};
}

/// Why a request is refused by its header alone. One of whose body another reader would find another end is taken for
/// two by it or by us: a proxy in front would be tricked into passing one on unseen (RFC 9112, sections 3.2 and 6.3).
std::optional<ApiError> header_error(const http::request<http::string_body>& message) {
  if (const auto codings = message.count(http::field::transfer_encoding); codings > 0) {
    if (message.version() < 11) return ApiError(400, "Transfer-Encoding is of HTTP/1.1");
    if (codings > 1 || !beast::iequals(message[http::field::transfer_encoding], "chunked"))
      return ApiError(501, "the one Transfer-Encoding that is known is chunked");
  }
  if (message.version() >= 11 && message.count(http::field::host) != 1)
    return ApiError(400, "a request of HTTP/1.1 must have one Host");
  return std::nullopt;
}

HttpRequest request_of(http::request<http::string_body>&& message, std::string address) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const auto target = message.target();
  request.path = path_of({target.data(), target.size()});
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers[name] = std::string(field.value());
  }
  request.body = std::move(message.body());
  request.address = std::move(address);
  return request;
}

}  // namespace

namespace {

class Session;

/// What sessions share. All but `handlers` and `count` is used by the thread of `io` alone. Sessions die with `io` at
/// the latest.
struct Hub {
  ServerOptions options;
  Handler handler;
  std::set<Session*> sessions;
  std::atomic<std::size_t> count{0};
  bool closing = false;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::thread_pool handlers{1};
};

/// One connection. Handlers run on the thread of `io`.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Hub& hub) : hub_(hub), stream_(std::move(socket)) {
    error_code ignored;
    address_ = stream_.socket().remote_endpoint(ignored).address().to_string();
    (void)stream_.socket().set_option(tcp::no_delay(true), ignored);
#ifdef TCP_NOTSENT_LOWAT
    // Else the kernel takes megabytes of what a slow client has yet to read, and then for long nothing.
    const int unsent = static_cast<int>(kWrittenAtOnce);
    (void)setsockopt(stream_.socket().native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
#endif
    hub_.sessions.insert(this);
    ++hub_.count;
  }
  ~Session() {
    hub_.sessions.erase(this);
    --hub_.count;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void next_request();
  void refuse_at_once(int status, const std::string& message);
  /// Where no request is under way.
  void close_if_idle() {
    if (!busy_) close();
  }

  // Called from other threads.
  bool gone() const { return gone_; }
  void hand_over(std::string bytes, bool last);
  Framing framing() const { return framing_; }
  Hub& hub() { return hub_; }

 private:
  void on_header(error_code error);
  void read_body();
  void on_request(error_code error);
  void watch();
  void write_next();
  void write_piece();
  void on_written(error_code error);
  void close();
  void linger();
  void refuse(error_code error);

  Hub& hub_;
  beast::tcp_stream stream_;
  std::string address_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  Framing framing_;
  std::deque<std::string> out_;
  std::size_t sent_ = 0;    ///< bytes of the front
  std::size_t unread_ = 0;  ///< bytes in out_ behind the front, which is being sent
  std::atomic<bool> gone_{false};
  bool busy_ = false;  ///< a request is under way
  bool last_ = false;  ///< the end of its response is in out_
  bool writing_ = false, watching_ = false, first_ = true;
  bool lingers_ = false;  ///< the client may still be sending what was refused
  std::size_t discarded_ = 0;
};

/// The way back for one request of a session.
class SessionReply : public Reply {
 public:
  explicit SessionReply(std::shared_ptr<Session> session)
      : session_(std::move(session)), framing_(session_->framing()) {}
  ~SessionReply() override {
    if (state_ == State::New)
      send(refusal(500, "the request was not answered"));
    else
      end();
    session_release();
  }
  SessionReply(const SessionReply&) = delete;
  SessionReply& operator=(const SessionReply&) = delete;

  void send(HttpResponse response) override {
    if (std::exchange(state_, State::Ended) != State::New) return;
    session_->hand_over(response_bytes(response, framing_), true);
  }
  void begin(HttpResponse response) override {
    if (state_ != State::New) return;
    state_ = State::Streams;
    head_ = stream_head(response, framing_);
  }
  void write(std::string data) override {
    if (state_ == State::Streams && !data.empty())
      session_->hand_over(std::exchange(head_, "") + stream_piece(data, framing_), false);
  }
  void end() override {
    if (std::exchange(state_, State::Ended) == State::Streams)
      session_->hand_over(std::exchange(head_, "") + stream_end(framing_), true);
  }
  bool gone() const override { return session_->gone(); }

 private:
  enum class State : std::uint8_t { New, Streams, Ended };

  /// The session dies on its own thread.
  void session_release() {
    Hub& hub = session_->hub();
    asio::post(hub.io, [session = std::move(session_)] {});
  }

  std::shared_ptr<Session> session_;
  Framing framing_;
  State state_ = State::New;
  std::string head_;  ///< that goes with the first piece: a large one is then the one being sent
};

void Session::next_request() {
  busy_ = false;
  if (hub_.closing) return close();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(hub_.options.header_bytes));
  parser_->body_limit(hub_.options.body_bytes);
  framing_ = Framing();
  stream_.expires_after(std::exchange(first_, false) ? hub_.options.header_timeout : hub_.options.idle_timeout);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, std::size_t) { self->on_header(error); });
}

void Session::refuse_at_once(int status, const std::string& message) {
  busy_ = lingers_ = true;
  framing_.keep_alive = false;
  hand_over(response_bytes(refusal(status, message), framing_), true);
}

void Session::refuse(error_code error) {
  if (error == http::error::body_limit)
    return refuse_at_once(413, concat("the body may have at most ", hub_.options.body_bytes, " bytes"));
  if (error == http::error::header_limit)
    return refuse_at_once(431, concat("the headers may have at most ", hub_.options.header_bytes, " bytes"));
  const bool of_http = error.category() == http::make_error_code(http::error::bad_method).category();
  if (!of_http || error == http::error::end_of_stream || error == http::error::partial_message) return close();
  refuse_at_once(400, concat("no HTTP request: ", error.message()));
}

void Session::on_header(error_code error) {
  if (error) return refuse(error);
  busy_ = true;
  const auto& message = parser_->get();
  framing_ = {.keep_alive = message.keep_alive(),
              .chunked = message.version() >= 11,
              .head_only = message.method() == http::verb::head};
  if (!framing_.chunked) framing_.keep_alive = false;
  if (const auto wrong = header_error(message)) return refuse_at_once(wrong->status, wrong->what());
  if (beast::iequals(message[http::field::expect], "100-continue")) {
    stream_.expires_after(hub_.options.body_timeout);
    static const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    return asio::async_write(stream_, asio::buffer(go_on), [self = shared_from_this()](error_code failed, std::size_t) {
      if (failed) return self->close();
      self->read_body();
    });
  }
  read_body();
}

void Session::read_body() {
  stream_.expires_after(hub_.options.body_timeout);
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, std::size_t) { self->on_request(error); });
}

void Session::on_request(error_code error) {
  if (error) return refuse(error);
  last_ = false;
  asio::post(hub_.handlers,
             [&hub = hub_, request = request_of(parser_->release(), address_),
              reply = std::shared_ptr<Reply>(std::make_shared<SessionReply>(shared_from_this()))]() mutable {
               hub.handler(std::move(request), std::move(reply));
             });
  parser_.reset();
  watch();
}

// While a request is under way, this hears whether its client goes.
void Session::watch() {
  if (buffer_.size() >= kPipelinedBytes) return;
  watching_ = true;
  stream_.expires_never();
  stream_.async_read_some(buffer_.prepare(1024), [self = shared_from_this()](error_code error, std::size_t count) {
    self->watching_ = false;
    self->buffer_.commit(count);
    if (error && error != asio::error::operation_aborted) return self->close();
    if (!self->busy_) return self->gone_ ? self->close() : self->next_request();
    if (!error) self->watch();
  });
}

void Session::hand_over(std::string bytes, bool last) {
  asio::post(hub_.io, [self = shared_from_this(), bytes = std::move(bytes), last]() mutable {
    if (self->gone_ || self->unread_ > self->hub_.options.unread_bytes) return self->close();
    if (!self->out_.empty()) self->unread_ += bytes.size();
    self->out_.push_back(std::move(bytes));
    self->last_ = last;
    self->write_next();
  });
}

void Session::write_next() {
  if (writing_ || out_.empty()) return;
  writing_ = true;
  sent_ = 0;
  write_piece();
}

// However large the front is, a client that reads some of it in time is not too slow.
void Session::write_piece() {
  stream_.expires_after(hub_.options.write_timeout);
  asio::async_write(stream_, asio::buffer(asio::buffer(out_.front()) + sent_, kWrittenAtOnce),
                    [self = shared_from_this()](error_code error, std::size_t count) {
                      self->sent_ += count;
                      if (error || self->sent_ == self->out_.front().size()) return self->on_written(error);
                      self->write_piece();
                    });
}

void Session::on_written(error_code error) {
  writing_ = false;
  if (error) return close();
  out_.pop_front();
  if (!out_.empty()) {
    unread_ -= out_.front().size();
    return write_next();
  }
  if (!last_) return;
  last_ = false;
  if (lingers_) return linger();
  if (!framing_.keep_alive) return close();
  busy_ = false;
  if (watching_)
    stream_.cancel();  // what was watching continues with the next request
  else
    next_request();
}

// Reads on for a while: who is still sending would else be told that the connection broke, before the refusal.
void Session::linger() {
  constexpr std::size_t kMost = 64 << 20, kAtOnce = 64 << 10;
  constexpr std::chrono::seconds kPatience(3);
  if (discarded_ == 0) {
    error_code ignored;
    (void)stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    buffer_.clear();
    stream_.expires_after(kPatience);
  }
  stream_.async_read_some(buffer_.prepare(kAtOnce), [self = shared_from_this()](error_code error, std::size_t count) {
    self->discarded_ += count;
    if (error || self->discarded_ > kMost) return self->close();
    self->linger();
  });
}

void Session::close() {
  gone_ = true;
  busy_ = false;
  error_code ignored;
  (void)stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.close();
}

}  // namespace

struct HttpServer::Impl {
  Hub hub;
  std::thread thread;
  asio::executor_work_guard<asio::io_context::executor_type> work{hub.io.get_executor()};
  int port = 0;

  void listen();
  void accept();
};

void HttpServer::Impl::listen() {
  const ServerOptions& options = hub.options;
  error_code error;
  tcp::resolver resolver(hub.io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  const auto check = [&](const char* fix) {
    if (error)
      throw ConfigError(rule_got_fix("serve: the address must be one that this machine can listen on.",
                                     concat(options.host, " port ", options.port, ": ", error.message()), fix));
  };
  check("--host 127.0.0.1");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  (void)hub.acceptor.open(endpoint.protocol(), error);
  check("--host 127.0.0.1");
  hub.acceptor.set_option(tcp::acceptor::reuse_address(true));
  (void)hub.acceptor.bind(endpoint, error);
  check("--port 0, one that is free");
  (void)hub.acceptor.listen(tcp::acceptor::max_listen_connections, error);
  check("--port 0, one that is free");
  port = hub.acceptor.local_endpoint().port();
}

void HttpServer::Impl::accept() {
  hub.acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (hub.closing) return;
    if (!error && hub.count >= 2 * hub.options.connections) {
      error_code ignored;
      (void)socket.close(ignored);
    } else if (!error) {
      const auto session = std::make_shared<Session>(std::move(socket), hub);
      if (hub.count > hub.options.connections)
        session->refuse_at_once(503, "too many connections");
      else
        session->next_request();
    } else if (error == asio::error::no_descriptors) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // until some connection ends
    }
    accept();
  });
}

HttpServer::HttpServer(ServerOptions options, Handler handler) : impl_(std::make_unique<Impl>()) {
  impl_->hub.options = std::move(options);
  impl_->hub.handler = std::move(handler);
  impl_->listen();
  impl_->accept();
  impl_->thread = std::thread([this] { impl_->hub.io.run(); });
}

HttpServer::~HttpServer() {
  close();
  impl_->hub.handlers.join();
  impl_->hub.io.stop();
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }
std::size_t HttpServer::connections() const { return impl_->hub.count; }

void HttpServer::close() {
  asio::post(impl_->hub.io, [this] {
    Hub& hub = impl_->hub;
    if (std::exchange(hub.closing, true)) return;
    error_code ignored;
    (void)hub.acceptor.close(ignored);
    for (Session* session : hub.sessions) session->close_if_idle();
  });
}

void HttpServer::drain(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  while (connections() > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace megatron::serve
