#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace megatron::generate {

/// When a search is over though texts might still continue. "Full": num_beams texts have ended.
enum class EarlyStopping : std::uint8_t {
  Likely,    ///< full, and the best that continues would be no better than the worst of these if it ended now
  WhenFull,  ///< as soon as it is full
  Never      ///< full, and the best that continues cannot become better than the worst of these
};

struct BeamOptions {
  std::int64_t num_beams = 1;  ///< beams kept at each step; 1: always the likeliest token
  std::int64_t max_new_tokens = 64;
  double length_penalty = 1;  ///< a text's score: the sum of its logarithms / (its tokens ^ length_penalty)
  EarlyStopping early_stopping = EarlyStopping::Likely;
  std::vector<std::int64_t> ends = {};  ///< tokens that end a text
};

/// Throws ConfigError, for all violated rules together: num_beams and max_new_tokens at least 1 and not too many to be
/// meant, a finite penalty of at most 20 either way, and a vocabulary of at least num_beams tokens for each way in
/// which a text can continue or end: so there are always num_beams that continue.
void check(const BeamOptions& options, std::int64_t vocab);

/// A text and its score.
struct Beam {
  std::vector<std::int64_t> tokens;  ///< the token that ends it included, where one does
  double score = 0;
};

/// Beam search as transformers does it (5.x; the length penalty of Wu et al. 2016 without its constant), for one text.
/// The caller asks the model what may come next, this decides what to continue. Of equal scores the earlier beam and
/// the lower token is better: so every rank decides the same.
class BeamSearch {
 public:
  /// `options` fulfil check() and must outlive this.
  explicit BeamSearch(const BeamOptions& options);

  /// The texts that continue, best first: none where the search is over, one before the first step, then num_beams.
  struct Step {
    std::size_t from;    ///< which of those of the step before it continues
    std::int64_t token;  ///< its last
  };
  const std::vector<Step>& going_on() const { return steps_; }

  /// Takes the logarithms of the probabilities of each next token, [going_on, vocab]. Throws std::runtime_error where
  /// they are not finite numbers.
  void step(std::span<const float> logarithms);

  /// Of one beam: continues with `token`, whose logarithm is given, however likely others are.
  void take(std::int64_t token, double logarithm);

  /// Tokens of each text that continues.
  std::int64_t length() const { return length_; }
  /// Of one beam, after a step: the token that it took.
  std::int64_t last_token() const { return steps_.empty() ? ended_.front().tokens.back() : steps_.front().token; }

  /// The texts that have ended, best first, at most num_beams.
  const std::vector<Beam>& ended() const { return ended_; }

 private:
  double divided(double score, std::int64_t tokens) const;
  bool over() const;
  bool ends(std::int64_t token) const;  ///< a text of length_ tokens, whose last this is

  const BeamOptions* options_;
  std::vector<Beam> running_;  ///< their scores: sums
  std::vector<Beam> ended_;
  std::vector<Step> steps_ = {{0, 0}};
  std::int64_t length_ = 0;
};

}  // namespace megatron::generate
