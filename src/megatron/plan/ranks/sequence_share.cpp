#include "megatron/plan/ranks/sequence_share.h"

#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::plan {

std::vector<Positions> SequenceShare::pieces(std::int64_t length) const {
  if (ranks == 1) return {{0, length}};
  if (length % (2 * ranks) != 0)
    throw std::logic_error(concat("a sequence of ", length, " tokens, which ", 2 * ranks, " does not divide"));
  const std::int64_t chunk = length / (2 * ranks), last = 2 * ranks - 1 - rank;
  return {{rank * chunk, (rank + 1) * chunk}, {last * chunk, (last + 1) * chunk}};
}

std::vector<SequenceShare::ChunkOwner> SequenceShare::places() const {
  std::vector<ChunkOwner> all;
  for (int chunk = 0; chunk < ranks; ++chunk) all.push_back({chunk, 0});
  for (int chunk = ranks; chunk < 2 * ranks; ++chunk) all.push_back({2 * ranks - 1 - chunk, 1});
  return all;
}

const char* name_of(SequenceExchange exchange) {
  switch (exchange) {
    case SequenceExchange::AllToAll:
      return "a2a";
    case SequenceExchange::Ring:
      return "p2p";
    case SequenceExchange::AllGather:
      break;
  }
  return "allgather";
}

std::string text_of(const std::vector<Positions>& pieces) {
  std::string text;
  for (const Positions& piece : pieces) text += concat(text.empty() ? "" : " ", piece.begin, "-", piece.end - 1);
  return text;
}

}  // namespace megatron::plan
