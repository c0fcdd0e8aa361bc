#pragma once
#include <cstdint>
#include <string>
#include <vector>

// Which tokens of each sample a rank of context parallelism has. Pure arithmetic.
namespace megatron::plan {

/// Positions [begin, end) of a sequence.
struct Positions {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Positions&) const = default;
};

/// A rank's place among those that share each sequence. A sequence is cut into 2 x ranks chunks of one length, of which
/// rank k has chunk k and chunk 2 x ranks - 1 - k, in this order (Megatron-Core's get_batch_on_this_cp_rank, the
/// zig-zag of Llama 3's report): in causal attention, where a token's work grows with its position, all ranks then have
/// equal work.
struct SequenceShare {
  int ranks = 1, rank = 0;

  /// The rank's positions in a sequence of `length` tokens, which 2 x ranks divides: two pieces of one length, of one
  /// rank the whole.
  std::vector<Positions> pieces(std::int64_t length) const;

  /// Where a chunk lies.
  struct ChunkOwner {
    int rank = 0, piece = 0;
  };
  /// The owner of each of the 2 x ranks chunks.
  std::vector<ChunkOwner> places() const;
};

/// How the ranks that share a sequence attend to all of it. Each gives the same result.
enum class SequenceExchange : std::uint8_t {
  AllGather,  ///< every rank gathers the keys and values of all (Llama 3)
  AllToAll,   ///< every rank gets some heads of the whole sequence, and gives their outputs back (DeepSpeed-Ulysses)
  Ring        ///< keys and values go around while attention computes on what has come (Liu et al. 2023)
};
/// As Megatron-LM calls it: "allgather", "a2a", "p2p".
const char* name_of(SequenceExchange exchange);

/// "0-3 12-15".
std::string text_of(const std::vector<Positions>& pieces);

}  // namespace megatron::plan
