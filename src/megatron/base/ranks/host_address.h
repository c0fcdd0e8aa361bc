#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace megatron {

/// A host has no address, or none that is known in time.
struct HostError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An address to bind or connect a socket to.
struct HostAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

/// How long one look-up of a name may take: below the 10 s within which a rank ends after its run's timeout, and above
/// the 5 s after which the system asks the next name server.
constexpr std::chrono::seconds kLookUpLimit{8};

/// The addresses of `host`, with `port`, in the system's order; a name is looked up once a process, and so is one whose
/// look-up has failed. Where no name server answers, the system's own look-up takes up to minutes: HostError after
/// kLookUpLimit, and for a name that has no address.
std::vector<HostAddress> addresses_of(const std::string& host, int port);

/// addresses_of() by `look_up`, within `limit` (tests).
std::vector<HostAddress> addresses_by(const std::function<std::vector<HostAddress>()>& look_up, const std::string& host,
                                      std::chrono::milliseconds limit);

/// A socket bound to `address`:`port` (0: a free one) and to no other interface; it does not listen yet. Throws
/// std::runtime_error, HostError among them.
int bound_socket(const std::string& address, int port);

}  // namespace megatron
