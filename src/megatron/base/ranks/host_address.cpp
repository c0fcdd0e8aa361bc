#include "megatron/base/ranks/host_address.h"

#include <netdb.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr const char* kRule = "The host at which ranks meet must have an address.";
constexpr const char* kFix = "check MASTER_ADDR, or name an address in numbers there";

std::vector<HostAddress> ask_system(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    throw HostError(rule_got_fix(kRule, concat(host, ": ", gai_strerror(error)), kFix));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, freeaddrinfo);
  std::vector<HostAddress> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
    std::memcpy(&addresses.emplace_back().storage, a->ai_addr, a->ai_addrlen);
    addresses.back().size = a->ai_addrlen;
  }
  return addresses;
}

/// What became of each look-up of this process.
struct Found {
  std::vector<HostAddress> addresses;
  std::exception_ptr error;
};

}  // namespace

std::vector<HostAddress> addresses_by(const std::function<std::vector<HostAddress>()>& look_up, const std::string& host,
                                      std::chrono::milliseconds limit) {
  // Nothing can end a look-up, so its thread is left alone where it takes too long.
  std::packaged_task<std::vector<HostAddress>()> task(look_up);
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready)
    throw HostError(
        rule_got_fix(kRule, concat(host, ": no name server has answered for ", limit.count() / 1000.0, " s"), kFix));
  return result.get();
}

std::vector<HostAddress> addresses_of(const std::string& host, int port) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, Found>;  // a look-up that was left alone may outlive main()
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(host);
  Found& found = place->second;
  if (is_new) {
    try {
      found.addresses = addresses_by([host] { return ask_system(host); }, host, kLookUpLimit);
    } catch (const HostError&) {
      found.error = std::current_exception();
    }
  }
  if (found.error) std::rethrow_exception(found.error);
  std::vector<HostAddress> addresses = found.addresses;
  for (HostAddress& address : addresses) {
    if (address.family() == AF_INET)
      reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(static_cast<std::uint16_t>(port));
    else if (address.family() == AF_INET6)
      reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(static_cast<std::uint16_t>(port));
  }
  return addresses;
}

int bound_socket(const std::string& address, int port) {
  const HostAddress own = addresses_of(address, port).at(0);
  const int fd = socket(own.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (fd < 0 || bind(fd, own.get(), own.size) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) close(fd);
    throw std::runtime_error(concat("cannot listen on ", address, ":", port, ": ", why));
  }
  return fd;
}

}  // namespace megatron
