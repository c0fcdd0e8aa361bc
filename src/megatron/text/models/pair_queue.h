#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace megatron::text {

/// Places of a piece by the rank of the pair that begins there: gives the lowest rank, and of its places the leftmost.
/// A place to the right of all others of its rank costs a constant, and memory is read in order; another one costs the
/// logarithm of how many such wait.
class PairQueue {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  /// Empties it, for ranks below `ranks`.
  void reset(std::size_t ranks);
  void add(std::uint32_t rank, std::uint32_t place);
  /// False where none is left.
  bool take(std::uint32_t& rank, std::uint32_t& place);

 private:
  struct Bucket {
    std::vector<std::uint32_t> run;  // from left to right; the first `taken` are gone
    std::size_t taken = 0;
    std::vector<std::uint32_t> late;  // heap of those that came out of order
  };
  void release();

  std::vector<std::uint32_t> bucket_of_;  // per rank, or kNone
  std::vector<Bucket> buckets_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> waiting_;  // heap of the ranks that have a bucket
};

}  // namespace megatron::text
