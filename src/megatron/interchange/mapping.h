#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "megatron/plan/parameters.h"

// Which element of one naming of a model's weights is which element of another, as tables. No torch here.
namespace megatron::interchange {

/// A box of a source tensor that makes up a box of a target tensor.
struct Piece {
  std::string source;
  std::vector<std::int64_t> to;     ///< where it begins in the target
  std::vector<std::int64_t> from;   ///< where it begins in the source, in the source's order of dimensions
  std::vector<std::int64_t> shape;  ///< in the target's order of dimensions
};

/// A target tensor and what it is made of.
struct MappedTensor {
  std::vector<std::int64_t> shape;
  bool transposed = false;    ///< the sources are stored [columns, rows]
  std::vector<Piece> pieces;  ///< disjoint, together the whole tensor
};

using Mapping = std::map<std::string, MappedTensor>;  ///< by the target's name

/// The same table read the other way: its targets become the sources. Every source must be covered by its pieces once.
Mapping inverted(const Mapping& mapping);

/// The shape that each source of a table must have: just large enough for its pieces.
std::map<std::string, std::vector<std::int64_t>> source_shapes(const Mapping& mapping);

/// Our names (Megatron-Core's) made of Hugging Face's GPT-2 tensors: Conv1D matrices transposed, the rows q, k, v of
/// linear_qkv interleaved per head. `prefix`: "transformer." as GPT2LMHeadModel writes, "" as GPT2Model does.
Mapping gpt2_mapping(const plan::GptShape& shape, const std::string& prefix = "transformer.");

/// Our names made of the tensors of a Llama, Mistral or Qwen2 folder: per group of heads its q rows, k, v; gate above
/// up. `prefix`: "model.", or "" for a model without its output layer.
Mapping llama_mapping(const plan::GptShape& shape, const std::string& prefix = "model.");

/// The parts of a BERT beside its encoder, and the rows of its token type embedding.
struct BertParts {
  std::int64_t token_types = 2;
  bool pooler = true, token_head = true, sentence_head = true;
  bool norms_first = false;  ///< MegatronBert's names: its blocks begin with a norm
};

/// Our names made of a BERT folder's tensors. Its blocks end with a norm; ours begin with it (model/block.h): the norm
/// of the embedding is the first layer's "input_layernorm", that of each layer's output the next one's, and the last
/// one's "encoder.final_layernorm". A MegatronBert has them where we have them. Heads: "lm_head.dense",
/// "lm_head.layer_norm", "output_layer.bias" (its matrix is the word embedding), "pooler.dense", "binary_head"; of a
/// task "task_head".
Mapping bert_mapping(const plan::GptShape& shape, const BertParts& parts, const std::string& prefix = "bert.");

/// Our names made of a T5 folder's tensors: linear_kv of cross attention has each head's k, then its v; gate above up.
/// A T5 has no biases. `head`: the tensor of an output layer that is not tied.
Mapping t5_mapping(const plan::GptShape& shape, const std::string& head = "lm_head.weight");

}  // namespace megatron::interchange
