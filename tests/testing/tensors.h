#pragma once
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/max.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/parallel/parameter.h"

namespace megatron::testing {

using Tensors = std::map<std::string, at::Tensor>;

/// Largest |a - b| over the largest |b| (or 1, if that is larger); infinite for different shapes or a NaN.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const auto x = a.detach().to(at::kCPU, at::kDouble), y = b.detach().to(at::kCPU, at::kDouble);
  const double error = x.sub(y).abs().max().item<double>() / std::max(1.0, y.abs().max().item<double>());
  return error == error ? error : std::numeric_limits<double>::infinity();
}

#define EXPECT_NEAR_TENSOR(a, b, tolerance) EXPECT_LE(::megatron::testing::relative_error(a, b), tolerance)

/// The slice of `full` that `spec` gives to its rank.
inline at::Tensor slice_of(const at::Tensor& full, const plan::ParameterSpec& spec) {
  if (spec.split_dim < 0) return full;
  std::vector<at::Tensor> parts;
  for (const auto& piece : spec.pieces) parts.push_back(full.narrow(spec.split_dim, piece.offset, piece.length));
  return parts.size() == 1 ? parts.front() : at::cat(parts, spec.split_dim);
}

/// A parameter on its own, outside a store, with the slice of `full` along `split_dim` of rank k of t.
inline parallel::ParameterPtr make_parameter(const std::string& name, const at::Tensor& full, int split_dim, int t,
                                             int k) {
  auto parameter = std::make_shared<parallel::Parameter>();
  auto& spec = parameter->spec;
  spec.name = name;
  spec.shape = full.sizes().vec();
  spec.split_dim = split_dim;
  if (split_dim >= 0) {
    const std::int64_t length = full.size(split_dim) / t;
    spec.pieces = {{.offset = length * k, .length = length}};
  }
  parameter->value = slice_of(full.detach(), spec).clone(at::MemoryFormat::Contiguous).requires_grad_(true);
  // Garbage: a backward pass has to overwrite it with its first contribution.
  parameter->grad = at::empty_like(parameter->value.detach()).fill_(std::numeric_limits<double>::quiet_NaN());
  return parameter;
}

/// Reads a safetensors file of float32, int64 and bool tensors. For files of this project's tests: trusts them.
inline Tensors read_safetensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t header = 0;
  if (bytes.size() < 8) throw std::runtime_error("cannot read " + path.string());
  std::memcpy(&header, bytes.data(), 8);
  Tensors tensors;
  const auto parsed = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, entry] : parsed.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = entry["dtype"];
    const auto type = dtype == "F32" ? at::kFloat : dtype == "I64" ? at::kLong : at::kBool;
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
    tensors[name] = at::from_blob(bytes.data() + 8 + header + begin, shape, type).clone();
  }
  return tensors;
}

}  // namespace megatron::testing
