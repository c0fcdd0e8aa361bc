#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megatron::tasks {

/// What a task's predictions are worth, by one measure.
struct Metric {
  std::string name;
  double value = 0;  ///< percent
  bool operator==(const Metric&) const = default;
};

/// The class with the largest logit of each row of `logits` [rows, classes]; of equal ones the first.
std::vector<std::int32_t> best_classes(std::span<const float> logits, std::size_t classes);

/// Share of rows whose class is right, 0 … 1; 0 of none.
double accuracy(std::span<const std::int32_t> predicted, std::span<const std::int32_t> labels);

/// F1 of class 1 against the others, 0 … 1: QQP's second measure. 0 where class 1 is never predicted rightly.
double binary_f1(std::span<const std::int32_t> predicted, std::span<const std::int32_t> labels);

}  // namespace megatron::tasks
