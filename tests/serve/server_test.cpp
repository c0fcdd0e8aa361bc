#include "megatron/serve/http/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>

namespace megatron::serve {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;

/// A client, which reads when it is told to.
class Client {
 public:
  explicit Client(int port, int receives = 0) {
    if (receives > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receives, sizeof(receives));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void say(const std::string& text) { EXPECT_EQ(send(socket_, text.data(), text.size(), 0), std::ssize(text)); }
  /// Up to the end of the connection, or `most` bytes.
  std::string read(std::size_t most = SIZE_MAX) {
    std::string all, bytes(1 << 16, '\0');
    while (all.size() < most) {
      const ssize_t count = recv(socket_, bytes.data(), std::min(bytes.size(), most - all.size()), 0);
      if (count <= 0) break;
      all.append(bytes, 0, static_cast<std::size_t>(count));
    }
    return all;
  }

 private:
  int socket_ = socket(AF_INET, SOCK_STREAM, 0);
};

const char* const kGet = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

TEST(HttpServer, KeepsAClientThatReadsWhateverTheSizeOfAPiece) {
  HttpServer server({.port = 0}, [](const HttpRequest&, const std::shared_ptr<Reply>& reply) {
    reply->begin({});
    reply->write(std::string(kPiece, 'a'));
    reply->write("b");
    reply->write("c");
    reply->end();
  });
  Client client(server.port());
  client.say(kGet);
  const std::string data = client.read();
  EXPECT_GT(data.size(), kPiece);
  EXPECT_TRUE(data.ends_with("1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"));
}

TEST(HttpServer, CutsOffAClientThatDoesNotRead) {
  std::promise<void> cut;
  HttpServer server({.port = 0}, [&](const HttpRequest&, const std::shared_ptr<Reply>& reply) {
    reply->begin({});
    while (!reply->gone()) reply->write(std::string(1 << 16, 'a'));
    cut.set_value();
  });
  Client client(server.port());
  client.say(kGet);
  cut.get_future().wait();
  EXPECT_FALSE(client.read().ends_with("0\r\n\r\n"));
}

TEST(HttpServer, HoldsAtMostTwiceItsConnections) {
  HttpServer server({.port = 0, .connections = 1},
                    [](const HttpRequest&, const std::shared_ptr<Reply>& reply) { reply->send({.body = "{}"}); });
  Client first(server.port());
  first.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(first.read(12), "HTTP/1.1 200");
  Client second(server.port());
  EXPECT_EQ(second.read(12), "HTTP/1.1 503");  // and may still be sending
  Client third(server.port());
  EXPECT_EQ(third.read(), "");
}

TEST(HttpServer, KeepsAClientThatReadsSlowlyButSteadily) {
  // Reading all takes longer than what is allowed for a piece.
  constexpr std::chrono::milliseconds kAllowed(2000);
  const std::size_t size = std::size_t{16} << 20;
  HttpServer server(
      {.port = 0, .write_timeout = kAllowed},
      [&](const HttpRequest&, const std::shared_ptr<Reply>& reply) { reply->send({.body = std::string(size, 'a')}); });
  Client client(server.port(), 1 << 16);
  client.say(kGet);
  std::size_t got = 0;
  const auto end = std::chrono::steady_clock::now() + 3 * kAllowed / 2;
  pollfd nothing{.fd = -1, .events = 0, .revents = 0};
  while (std::chrono::steady_clock::now() < end) {
    got += client.read(1 << 17).size();
    poll(&nothing, 1, 50);
  }
  got += client.read().size();
  EXPECT_GT(got, size);
}

TEST(HttpServer, TakesNoRequestWhoseEndAnotherReaderMightFindElsewhere) {
  std::atomic<int> asked = 0;
  HttpServer server({.port = 0}, [&](const HttpRequest&, const std::shared_ptr<Reply>& reply) {
    ++asked;
    reply->send({.body = "{}"});
  });
  const auto answers = [&](const std::string& head) {
    Client client(server.port());
    client.say(head + "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    return client.read();
  };
  for (const char* codings : {"xchunked", "chunked, identity", "gzip, chunked", "identity", "chunked;a=b", ""}) {
    const std::string all = answers(std::string("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ") + codings);
    EXPECT_THAT(all, testing::StartsWith("HTTP/1.1 501 Not Implemented\r\n")) << codings;
    EXPECT_EQ(all.find("HTTP/1.1 200"), std::string::npos) << codings;
  }
  for (const char* head :
       {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked", "GET / HTTP/1.1", "GET / HTTP/1.1\r\nHost: a\r\nHost: b",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked"}) {
    const std::string all = answers(head);
    EXPECT_THAT(all, testing::StartsWith("HTTP/1.1 400 Bad Request\r\n")) << head;
    EXPECT_EQ(all.find("HTTP/1.1 200"), std::string::npos) << head;
  }
  EXPECT_EQ(asked, 0);
  const std::string both = answers("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0");
  EXPECT_THAT(both, testing::StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace megatron::serve
