#include "megatron/comm/processes/gloo_address.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "megatron/base/error.h"
#include "megatron/comm/group.h"

namespace megatron::comm {
namespace {

constexpr std::uint64_t kMaxHostName = 255;
// A sockaddr_storage and the number of a connection, as Gloo's tcp::Address keeps them.
constexpr std::uint64_t kAddressBytes = sizeof(sockaddr_storage) + sizeof(std::int64_t);

/// Takes numbers and blocks from the front of the bytes.
class Reader {
 public:
  explicit Reader(const std::vector<std::uint8_t>& bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size() - at_; }
  const std::uint8_t* take(std::uint64_t size, const char* what) {
    if (size > left()) refuse(concat(what, " of ", size, " bytes where ", left(), " are left"));
    const std::uint8_t* begin = bytes_.data() + at_;
    at_ += static_cast<std::size_t>(size);
    return begin;
  }
  std::uint64_t size(const char* what) {
    std::uint64_t number = 0;
    std::memcpy(&number, take(sizeof number, what), sizeof number);
    return number;
  }
  [[noreturn]] static void refuse(const std::string& got) {
    throw PeerError(rule_got_fix("A rank must say at the rendezvous store where it listens, as Gloo writes it.", got,
                                 "start all ranks from the same build, and give the run a secret (docs/launching.md)"));
  }

 private:
  const std::vector<std::uint8_t>& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

void require_gloo_address(const std::vector<std::uint8_t>& bytes, int num_ranks) {
  Reader in(bytes);
  const std::uint64_t name_size = in.size("the size of a host name");
  if (name_size > kMaxHostName) Reader::refuse(concat("a host name of ", name_size, " bytes"));
  in.take(name_size, "a host name");
  const std::uint64_t address_size = in.size("the size of an address");
  if (address_size != kAddressBytes) Reader::refuse(concat("an address of ", address_size, " bytes"));
  sockaddr_storage address{};
  std::memcpy(&address, in.take(address_size, "an address"), sizeof address);
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6)
    Reader::refuse(concat("an address of family ", address.ss_family));
  const std::size_t numbers = static_cast<std::size_t>(num_ranks) * sizeof(std::int64_t);
  if (in.left() != numbers) Reader::refuse(concat(in.left(), " bytes of connection numbers for ", num_ranks, " ranks"));
}

}  // namespace megatron::comm
