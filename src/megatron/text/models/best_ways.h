#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace megatron::text {

/// The best way to each place of a text by tokens that end there (Viterbi's algorithm). Scores are kept as far as a
/// token reaches, 8 bytes for each byte of text; one a thread, and its room is used again.
class BestWays {
 public:
  /// Begins at place 0 of a text of `size` bytes, fewer than 2^32, with tokens of at most `longest` bytes.
  void start(std::size_t size, std::size_t longest) {
    last_.assign(size + 1, {});
    scores_.resize(std::bit_ceil(std::max<std::size_t>(longest, 4) + 1));  // a character is taken in any case
    scores_[0] = 0;
  }

  /// Of the best way to `place`, one that is reached and not passed yet.
  double score(std::size_t place) const { return scores_[place & (scores_.size() - 1)]; }

  /// A way of this score leads to `end` by the token `id`, which begins at `begin`; the first of equal ones counts.
  void reach(std::size_t begin, std::size_t end, std::int32_t id, double score) {
    double& best = scores_[end & (scores_.size() - 1)];
    if (last_[end].id >= 0 && score <= best) return;
    best = score;
    last_[end] = {static_cast<std::uint32_t>(begin), id};
  }

  /// The last token of the best way to a place that is reached.
  struct Token {
    std::uint32_t begin = 0;
    std::int32_t id = -1;  // -1: the place is not reached
  };
  const Token& last(std::size_t place) const { return last_[place]; }

 private:
  std::vector<Token> last_;
  std::vector<double> scores_;  // of place p at p modulo its size
};

}  // namespace megatron::text
