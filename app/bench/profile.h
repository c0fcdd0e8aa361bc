#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/kernels/profile.h"

namespace megatron::app {

/// What the operators of a step, of training or of reading a prompt, took on one rank.
struct StepProfile {
  std::map<std::string, kernels::OperatorUse> uses;  ///< of all steps
  double step_s = 0;                                 ///< of all steps
  std::int64_t steps = 1;
};

/// What this machine could do at best, which bounds are made of.
struct MachinePeaks {
  double gflops = 0;       ///< of matrix products
  double copied_gb_s = 0;  ///< read and written
};

/// A row for each operator, the longest first, and at last what no operator took: calls, milliseconds, share of the
/// step, GFLOP, GB, the least milliseconds that products and memory allow, and the share of them that is reached.
nlohmann::ordered_json profile_rows(const StepProfile& profile, const MachinePeaks& peaks);

/// The rows as text, and at last their sum, named `whole`.
std::string profile_table(const nlohmann::ordered_json& rows, const std::string& whole);

/// Step, its passes, their operators: an SVG file.
std::string profile_flame(const std::string& title, const nlohmann::ordered_json& rows);

/// 1e9 operations a second of the best of some products of square matrices, libtorch's or our own, on so many threads,
/// or on one GPU.
double matmul_peak_gflops(at::ScalarType dtype, at::Device device, int threads);

/// The rate at which `threads` threads copy what no cache holds, the best of several times.
double measure_copied_gb_s(int threads);

}  // namespace megatron::app
