#include "megatron/tasks/scores/eval_scores.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace megatron::tasks {

LossEstimate loss_estimate(const std::vector<Window>& windows, std::span<const WindowScore> scores) {
  LossEstimate estimate;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    estimate.nll += scores[i].nll;
    estimate.scored_tokens += windows[i].scored();
  }
  const auto tokens = static_cast<double>(estimate.scored_tokens), count = static_cast<double>(windows.size());
  estimate.mean = estimate.nll / tokens;
  double squares = 0;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const double off = scores[i].nll - estimate.mean * static_cast<double>(windows[i].scored());
    squares += off * off;
  }
  estimate.standard_error =
      windows.size() > 1 ? std::sqrt(count / (count - 1) * squares) / tokens : std::numeric_limits<double>::quiet_NaN();
  return estimate;
}

double standard_error_of_share(double p, std::size_t n) {
  return n > 1 ? std::sqrt(p * (1 - p) / static_cast<double>(n - 1)) : std::numeric_limits<double>::quiet_NaN();
}

std::size_t likeliest_answer(std::span<const AnswerScore> answers, Normalization normalization) {
  const auto cost = [&](const AnswerScore& answer) {
    const std::int64_t length = normalization == Normalization::Token  ? answer.tokens
                                : normalization == Normalization::Byte ? answer.bytes
                                                                       : 1;
    const double nll = answer.nll / static_cast<double>(std::max<std::int64_t>(1, length));
    return std::isnan(nll) ? std::numeric_limits<double>::infinity() : nll;
  };
  return static_cast<std::size_t>(std::ranges::min_element(answers, std::ranges::less(), cost) - answers.begin());
}

}  // namespace megatron::tasks
