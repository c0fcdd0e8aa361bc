#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "app/config_file.h"
#include "app/jobs.h"

// The jobs of `megatron bench`: each measures one thing and prints its figures, as JSON with --json.
namespace megatron::app {

struct BenchScalingOptions;

int bench_checkpoint(const Args& args);
int bench_comm(const Args& args);
int bench_data(const Args& args);
int bench_generate(const Args& args);
int bench_hardware(const Args& args);
int bench_pipeline(const Args& args);
int bench_scaling(const Args& args);  ///< with --measured
int bench_scaling_prediction(const BenchScalingOptions& options);
int bench_step(const Args& args);
int bench_tokenizer(const Args& args);

/// Of at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace megatron::app
