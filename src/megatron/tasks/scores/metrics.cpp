#include "megatron/tasks/scores/metrics.h"

#include <algorithm>
#include <stdexcept>

namespace megatron::tasks {
namespace {

void need_equal_sizes(std::span<const std::int32_t> predicted, std::span<const std::int32_t> labels) {
  if (predicted.size() != labels.size()) throw std::logic_error("metrics: one label a prediction");
}

}  // namespace

std::vector<std::int32_t> best_classes(std::span<const float> logits, std::size_t classes) {
  if (classes == 0 || logits.size() % classes != 0)
    throw std::logic_error("best_classes: logits must be [rows, classes]");
  std::vector<std::int32_t> best;
  best.reserve(logits.size() / classes);
  for (std::size_t row = 0; row < logits.size(); row += classes) {
    const auto scores = logits.subspan(row, classes);
    best.push_back(static_cast<std::int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin()));
  }
  return best;
}

double accuracy(std::span<const std::int32_t> predicted, std::span<const std::int32_t> labels) {
  need_equal_sizes(predicted, labels);
  std::int64_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += predicted[i] == labels[i];
  return labels.empty() ? 0 : static_cast<double>(right) / static_cast<double>(labels.size());
}

double binary_f1(std::span<const std::int32_t> predicted, std::span<const std::int32_t> labels) {
  need_equal_sizes(predicted, labels);
  std::int64_t both = 0, either = 0;  // class 1: predicted and right; predicted, and right, each counted
  for (std::size_t i = 0; i < labels.size(); ++i) {
    both += predicted[i] == 1 && labels[i] == 1;
    either += (predicted[i] == 1) + (labels[i] == 1);
  }
  return either == 0 ? 0 : 2 * static_cast<double>(both) / static_cast<double>(either);
}

}  // namespace megatron::tasks
