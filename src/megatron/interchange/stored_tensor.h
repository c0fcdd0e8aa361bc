#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/checkpoint/slices/slices.h"

namespace megatron::interchange {

/// The dtype of a name of safetensors ("F32") or of config.json ("float32"). Throws ConfigError, beginning with
/// `where`, for one that is no number of ours.
at::ScalarType scalar_type(const std::string& name, const std::string& where);

/// A tensor in a file.
struct StoredTensor {
  std::span<const std::byte> bytes;  ///< from the tensor's first element on
  std::string dtype;                 ///< safetensors' name
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements; empty: row-major
};

/// Copies a slice of `stored` into `into`, shaped as `box`, converting to its dtype. The bytes need no alignment and
/// are only read; the caller has checked that all elements lie in them. Throws ConfigError, beginning with `where`, as
/// scalar_type() does.
void read_stored(const StoredTensor& stored, const checkpoint::Box& box, const at::Tensor& into,
                 const std::string& where);

}  // namespace megatron::interchange
