#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/slices/slices.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/parameters.h"

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

/// The weights of one of our checkpoints, meant by `folder` as find_checkpoint() says. Throws Damage where there is
/// none or its manifest is damaged.
std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& folder);

/// How the tensors of a source and those of a model differ, by name; the same on every rank.
struct WeightReport {
  std::vector<std::string> missing;     ///< parameters of the model that the source does not have
  std::vector<std::string> unexpected;  ///< tensors of the source that the model has no place for

  bool empty() const { return missing.empty() && unexpected.empty(); }
  /// One line for each.
  std::vector<std::string> lines() const;
};

/// Compares names and shapes with plan::trained_parameters(): of a shape with adapters theirs alone. Reads no weights.
/// Throws ConfigError that lists the tensors whose shapes differ, and where `strict` also what is missing and
/// unexpected.
WeightReport compare_weights(const WeightSource& source, const plan::ModelShape& shape, bool strict);

/// Fills the parameters of this rank, split in any way, in any dtype, with the weights of `source`: those that it has;
/// others stay as they are, as do rows that pad the vocabulary. What a store holds in blocks is quantized, one
/// parameter at a time. Compares first, as compare_weights(). Not collective.
WeightReport load_weights(const WeightSource& source, const parallel::ParameterStore& parameters,
                          const plan::ModelShape& shape, bool strict = true);

}  // namespace megatron::checkpoint
