#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "megatron/tasks/windows.h"

// What follows from the scores of windows.
namespace megatron::tasks {

/// What a model says of a window's scored tokens.
struct WindowScore {
  double nll = 0;      ///< sum of -ln p
  bool right = false;  ///< each is the likeliest of the vocabulary where it stands; false where that was not asked for

  bool operator==(const WindowScore&) const = default;
};

/// The loss per token, and how far it is known. The windows are taken for independent draws: with n_i tokens scored in
/// window i of W and loss x_i, the mean is L = sum x_i / sum n_i and its standard error that of a ratio of sums,
/// sqrt(W / (W - 1) * sum (x_i - L n_i)^2) / sum n_i (Cochran 1977, section 6.4).
struct LossEstimate {
  double nll = 0;  ///< sum over the scored tokens of -ln p
  std::int64_t scored_tokens = 0;
  double mean = 0;            ///< nats per scored token
  double standard_error = 0;  ///< NaN for a single window

  /// Ends of the interval that holds the true mean in 95 % of such samples: mean -+ 1.96 standard errors.
  double low() const { return mean - 1.96 * standard_error; }
  double high() const { return mean + 1.96 * standard_error; }
};
LossEstimate loss_estimate(const std::vector<Window>& windows, std::span<const WindowScore> scores);

/// Of an accuracy p over n examples: sqrt(p (1 - p) / (n - 1)); NaN for one example.
double standard_error_of_share(double p, std::size_t n);

/// How the likelihoods of answers of different lengths are compared.
enum class Normalization : std::uint8_t {
  Sum,    ///< ln p of the whole answer
  Token,  ///< divided by its tokens
  Byte,   ///< divided by its bytes of text
};

/// An answer to choose from.
struct AnswerScore {
  double nll = 0;
  std::int64_t tokens = 0, bytes = 0;
};

/// The likeliest of one or more answers; the first of equals. One without bytes counts as one byte, and a NaN is never
/// chosen before a number.
std::size_t likeliest_answer(std::span<const AnswerScore> answers, Normalization normalization);

}  // namespace megatron::tasks
