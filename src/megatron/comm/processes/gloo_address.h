#pragma once
#include <cstdint>
#include <vector>

namespace megatron::comm {

/// Checks what a peer has said of itself at the store before Gloo reads it, since Gloo takes the sizes in it for true:
/// the name of its host, the address that it listens on (IPv4 or IPv6) and, for each of the `num_ranks` ranks of the
/// group, the number that a connection from there begins with. Throws PeerError.
void require_gloo_address(const std::vector<std::uint8_t>& bytes, int num_ranks);

}  // namespace megatron::comm
