#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/slices.h"

namespace megatron::checkpoint {

/// Weights of a whole model, wherever they come from, under our names and in our global shapes (padding of the
/// vocabulary left out), readable slice by slice: one of our checkpoints, a Hugging Face folder, Megatron-LM's files.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// The folder, for messages.
  virtual std::string name() const = 0;
  virtual std::vector<std::string> tensors() const = 0;
  /// The global shape of `tensor`; empty optional where the source does not have it.
  virtual const std::vector<std::int64_t>* shape(const std::string& tensor) const = 0;
  /// safetensors' name ("BF16") of the dtype in which `tensor`, which the source must have, is stored.
  virtual std::string dtype(const std::string& tensor) const = 0;
  /// Fills `into`, shaped as `box`, with that slice of `tensor`, converted to its dtype. Reads only the bytes it needs.
  /// Throws ConfigError naming file and byte offset for anything damaged. Several ranks may read at once, each through
  /// a source of its own.
  virtual void read(const std::string& tensor, const Box& box, const at::Tensor& into) const = 0;
};

}  // namespace megatron::checkpoint
