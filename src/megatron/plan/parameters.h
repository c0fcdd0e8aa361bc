#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/plan/stages.h"

namespace megatron::plan {

/// How a parameter's first value is drawn, as a function of its name and of each element's index in the full tensor.
enum class Init : std::uint8_t { Zero, One, Normal };

/// One parameter: what it is in the whole model, and which slice of it a rank holds.
struct ParameterSpec {
  std::string name;                 ///< Megatron-Core's name, e.g. "decoder.layers.0.mlp.linear_fc1.weight"
  std::vector<std::int64_t> shape;  ///< of the full tensor
  int split_dim = -1;               ///< dimension split over the tensor-parallel group; -1: every rank holds it whole
  std::int64_t offset = 0;          ///< first index along split_dim of this rank's slice
  std::int64_t length = 0;          ///< indices along split_dim that this rank holds
  Init init = Init::Zero;
  double init_std = 0;
  bool weight_decay = true;  ///< false for biases and for one-dimensional parameters
  int gradient_uses = 1;     ///< contributions to its gradient a microbatch (2: tied embedding, both uses on this rank)
  int stage = 0;             ///< the pipeline stage it belongs to; a tied embedding to the first that has it
  /// The tied word embedding of the output layer, where the embedding is on another rank: same name, same initial
  /// values; gradients are summed over the embedding group. Norms over the model count the other copy alone.
  bool shared_copy = false;
  /// Replicated over the tensor-parallel group and applied to a part of the sequence by each of its ranks where
  /// parallel.sp is on: then its gradient is a partial sum. Norms, biases of row-parallel layers, position embedding.
  bool sequence_partial = false;

  std::vector<std::int64_t> local_shape() const;
  std::int64_t local_size() const;  ///< elements of the slice
  std::int64_t size() const;        ///< elements of the full tensor
  bool replicated() const { return split_dim < 0; }
};

/// The sizes that decide a GPT's parameters.
struct GptShape {
  std::int64_t num_layers = 0, hidden = 0, num_heads = 0, ffn_hidden = 0;
  std::int64_t vocab = 0;         ///< tokens of the vocabulary
  std::int64_t padded_vocab = 0;  ///< rows of the embedding; those past `vocab` never take part
  std::int64_t max_positions = 0;
  bool tied_output = true;  ///< the output layer is the word embedding
  double init_std = 0.02;   ///< output layers of attention and MLP: init_std / sqrt(2 num_layers)
};

/// Smallest multiple of `divisible_by` (and of tp) that is >= vocab. The model's results do not depend on it.
std::int64_t pad_vocab(std::int64_t vocab, std::int64_t divisible_by, int tp);

/// The parameters of a GPT that one rank holds, in forward order: those of `parts`, its stages in model order, sliced
/// for `tp_rank` of `tp`. Names, shapes and the order of rows in linear_qkv (per head: q, k, v) are Megatron-Core's.
/// Throws ConfigError where a size does not divide by tp.
std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, int tp, int tp_rank,
                                          const std::vector<StagePart>& parts);

/// The same of the whole model as one stage.
std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, int tp, int tp_rank);

}  // namespace megatron::plan
