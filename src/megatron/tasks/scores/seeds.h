#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// What several runs of one recipe with different seeds come to: medians, and the ensemble of all.
namespace megatron::tasks {

/// The middle value, or the mean of the two in the middle. Throws std::logic_error for none.
double median(std::vector<double> values);

/// The mean of the runs' logits, element by element, added in double: the ensemble's. All have the same size, else
/// std::logic_error.
std::vector<float> mean_logits(std::span<const std::vector<float>> runs);

/// The measures of the runs of one task, of one set or of several.
struct SeedTable {
  struct SeedRun {
    std::int64_t seed = 0;
    std::vector<double> values;  ///< one a metric
  };
  std::string task;
  std::vector<std::string> metrics;
  std::vector<std::string> sets = {};  ///< of which set each metric is, those of a set in succession; empty: of one
  std::vector<SeedRun> runs;           ///< one at least
  std::vector<double> ensemble;        ///< one a metric, or empty where there is none

  /// The median of each metric over the runs.
  std::vector<double> medians() const;
  /// A table with a row a seed, the medians and the ensemble, and a column a metric and set. Values have two digits
  /// after the point.
  std::string markdown() const;
  /// {"task": …, "metric": the first, "metrics": […], "seeds": {"1": {metric: value, …}, …}, "median": {…},
  /// "ensemble": {…} or null} on one line, of the first set; of several also "sets": {set: the same without task, …}.
  std::string json() const;
};

}  // namespace megatron::tasks
