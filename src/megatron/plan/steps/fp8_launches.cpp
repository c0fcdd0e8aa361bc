#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/steps/launch_writer.h"

// Launches of products in 8 bits (parallel/fp8.cpp) of sizes that a GPU's units multiply.
namespace megatron::plan {
namespace {

constexpr double kSums = 4;  ///< bytes of what units add up

std::string in_8_bits(const std::string& name) { return name + " in 8 bits"; }
std::string turned_of(const std::string& name) { return in_8_bits(name) + ", turned"; }
std::string weight_of(const std::string& name) { return name + " weight"; }
std::string scale_of(const std::string& name) { return "scale of " + name; }

}  // namespace

void LaunchWriter::fp8_scale(const std::string& from, const std::string& name, double numbers, bool in_parts,
                             double times) {
  if (fp8_->scales != Fp8Scales::Tensor) return;
  const std::string largest = "magnitude of " + name, scale = scale_of(name);
  add_bytes("fp8_magnitude", largest, {from}, {scale}, times * numbers * size_.element);
  if (in_parts && size_.tp > 1) wait_for(message(kTensorParallel, largest + " of all ranks", scale, scale, 0));
  add_bytes("fp8_scale_of", scale, {scale}, {scale}, 0);
}

void LaunchWriter::fp8_numbers(const std::string& from, const std::string& name, double numbers, bool rows,
                               bool turned) {
  const bool blocks = fp8_->in_blocks();
  const double of_scale = fp8_->scales == Fp8Scales::Mx ? 1 : kSums, copies = (rows ? 1 : 0) + (turned ? 1 : 0);
  std::vector<std::string> reads = {from}, writes;
  if (fp8_->scales == Fp8Scales::Tensor) reads.push_back(scale_of(name));
  if (rows) writes.push_back(in_8_bits(name));
  if (turned) writes.push_back(turned_of(name));
  const std::string what = !turned ? in_8_bits(name) : rows ? in_8_bits(name) + ", both ways" : turned_of(name);
  add_bytes(blocks ? "fp8_matrices" : "fp8_numbers", what, std::move(reads), std::move(writes),
            numbers * (size_.element + copies * (1 + (blocks ? of_scale / static_cast<double>(fp8_->block()) : 0))));
}

void LaunchWriter::fp8_product(const std::string& name, const std::string& x, const std::string& y, double in,
                               double out, bool row_parallel) {
  const std::string weight = weight_of(name);
  fp8_scale(x, x, size_.tokens * in, row_parallel);
  fp8_numbers(x, x, size_.tokens * in, true, false);
  fp8_scale("weights", weight, in * out, true, 1 / static_cast<double>(run_.microbatches_per_step));
  fp8_numbers("weights", weight, in * out, true, false);
  add_bytes("", name + " product", {in_8_bits(x), in_8_bits(weight)}, {y},
            size_.tokens * (in + out * size_.element) + in * out);
}

void LaunchWriter::fp8_input_gradient(const std::string& name, const std::string& dy, const std::string& dx, double out,
                                      double in, bool row_parallel) {
  const std::string weight = weight_of(name);
  fp8_scale(dy, dy, size_.tokens * out, !row_parallel);
  fp8_numbers(dy, dy, size_.tokens * out, true, fp8_->weight_gradients);
  fp8_numbers("weights", weight, in * out, false, true);
  add_bytes("", name + ", input product", {in_8_bits(dy), turned_of(weight)}, {dx},
            size_.tokens * (out + in * size_.element) + in * out);
}

void LaunchWriter::fp8_weight_gradient(const std::string& name, const std::string& dy, const std::string& x, double out,
                                       double in) {
  if (!fp8_->weight_gradients) return weight_gradient(name, dy, x, out, in);
  const std::string sums = "sums of " + name;
  fp8_numbers(x, x, size_.tokens * in, false, true);
  add_bytes("", name + " weight gradient", {turned_of(dy), turned_of(x)}, {sums},
            size_.tokens * (in + out) + in * out * kSums);
  add_bytes("", name + " weight gradient, added", {sums, "gradients"}, {"gradients"},
            in * out * (kSums + size_.gradient_uses * size_.wide));
}

void LaunchWriter::bias_gradient(const std::string& name, const std::string& dy, double out) {
  add("accumulate_bias_gradient", name + " bias gradient", {dy, "gradients"}, {"gradients"}, out);
}

bool multiplies_in_8_bits(const ResolvedRun& run) {
  const auto recipe = fp8_recipe(run.config.fp8);
  if (!recipe || run.config.train.dtype == "fp64") return false;
  const LaunchSizes size(run);
  const auto unit = static_cast<double>(recipe->in_blocks() ? recipe->block() : 16);
  const auto whole = [](double numbers, double of) { return std::fmod(numbers, of) == 0; };
  for (const double features : {size.hidden, size.qkv, size.heads, size.ffn, size.fc1})
    if (!whole(features, unit)) return false;
  return whole(size.tokens, 16) && (!recipe->in_blocks() || !recipe->weight_gradients ||
                                    whole(static_cast<double>(run.config.data.seq_length), unit));
}

}  // namespace megatron::plan
