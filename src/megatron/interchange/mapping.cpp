#include "megatron/interchange/mapping.h"

#include <algorithm>
#include <array>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::interchange {
namespace {

using plan::GptShape;
using Sizes = std::vector<std::int64_t>;

Sizes reversed_if(bool reverse, Sizes sizes) {
  if (reverse) std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

/// Rows of one source, in the order in which they follow each other in the target.
struct Rows {
  std::string source;
  std::int64_t first = 0, count = 0;
};

/// Collects the tensors of a table.
class Builder {
 public:
  void whole(const std::string& ours, const std::string& theirs, Sizes shape, bool transposed = false) {
    const Sizes origin(shape.size(), 0);
    mapping_[ours] = {shape, transposed, {{theirs, origin, origin, shape}}};
  }
  /// `columns` 0: a vector.
  void stacked(const std::string& ours, const std::vector<Rows>& parts, std::int64_t columns, bool transposed = false) {
    MappedTensor tensor{.shape = {}, .transposed = transposed, .pieces = {}};
    std::int64_t row = 0;
    for (const Rows& part : parts) {
      Piece piece{.source = part.source, .to = {row}, .from = {part.first}, .shape = {part.count}};
      if (columns > 0) {
        piece.to.push_back(0);
        piece.from.push_back(0);
        piece.shape.push_back(columns);
      }
      piece.from = reversed_if(transposed, piece.from);
      tensor.pieces.push_back(std::move(piece));
      row += part.count;
    }
    tensor.shape = columns > 0 ? Sizes{row, columns} : Sizes{row};
    mapping_[ours] = std::move(tensor);
  }
  void norm(const std::string& ours, const std::string& theirs, const GptShape& shape) {
    whole(ours + ".weight", theirs + ".weight", {shape.hidden});
    if (!shape.rms_norm) whole(ours + ".bias", theirs + ".bias", {shape.hidden});
  }
  void linear(const std::string& ours, const std::string& theirs, std::int64_t out, std::int64_t in, bool bias,
              bool transposed = false) {
    whole(ours + ".weight", theirs + ".weight", {out, in}, transposed);
    if (bias) whole(ours + ".bias", theirs + ".bias", {out});
  }
  Mapping take() { return std::move(mapping_); }

 private:
  Mapping mapping_;
};

/// The rows of linear_qkv, group after group: its heads' q, then k, then v. `first`: where q, k and v begin in theirs.
std::vector<Rows> qkv_rows(const GptShape& shape, const std::array<std::string, 3>& sources,
                           const std::array<std::int64_t, 3>& first) {
  const std::int64_t d = shape.head(), queries = shape.num_heads / shape.groups() * d;
  std::vector<Rows> rows;
  for (std::int64_t group = 0; group < shape.groups(); ++group) {
    rows.push_back({sources[0], first[0] + group * queries, queries});
    rows.push_back({sources[1], first[1] + group * d, d});
    rows.push_back({sources[2], first[2] + group * d, d});
  }
  return rows;
}

std::array<std::string, 3> suffixed(std::array<std::string, 3> names, const std::string& suffix) {
  for (std::string& name : names) name += suffix;
  return names;
}

/// linear_qkv of three matrices.
void split_qkv(Builder& build, const std::string& ours, const std::array<std::string, 3>& theirs,
               const GptShape& shape) {
  build.stacked(ours + ".weight", qkv_rows(shape, suffixed(theirs, ".weight"), {}), shape.hidden);
  if (shape.linear_bias || shape.attention.add_qkv_bias)
    build.stacked(ours + ".bias", qkv_rows(shape, suffixed(theirs, ".bias"), {}), 0);
}

void gpt2_layer(Builder& build, const std::string& ours, const std::string& theirs, const GptShape& shape) {
  const std::int64_t h = shape.hidden;
  build.norm(ours + "input_layernorm", theirs + "ln_1", shape);
  for (const auto& [part, columns] : {std::pair<std::string, std::int64_t>{".weight", h}, {".bias", 0}}) {
    const std::string source = theirs + "attn.c_attn" + part;
    build.stacked(ours + "self_attention.linear_qkv" + part, qkv_rows(shape, {source, source, source}, {0, h, 2 * h}),
                  columns, true);
  }
  build.linear(ours + "self_attention.linear_proj", theirs + "attn.c_proj", h, h, true, true);
  build.norm(ours + "pre_mlp_layernorm", theirs + "ln_2", shape);
  build.linear(ours + "mlp.linear_fc1", theirs + "mlp.c_fc", shape.ffn_hidden, h, true, true);
  build.linear(ours + "mlp.linear_fc2", theirs + "mlp.c_proj", h, shape.ffn_hidden, true, true);
}

void llama_layer(Builder& build, const std::string& ours, const std::string& theirs, const GptShape& shape) {
  const std::int64_t h = shape.hidden, f = shape.ffn_hidden;
  const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
  build.norm(ours + "input_layernorm", theirs + "input_layernorm", shape);
  split_qkv(build, ours + "self_attention.linear_qkv",
            {attention + "q_proj", attention + "k_proj", attention + "v_proj"}, shape);
  if (shape.attention.qk_layernorm) {
    build.whole(ours + "self_attention.q_layernorm.weight", attention + "q_norm.weight", {shape.head()});
    build.whole(ours + "self_attention.k_layernorm.weight", attention + "k_norm.weight", {shape.head()});
  }
  build.linear(ours + "self_attention.linear_proj", attention + "o_proj", h, shape.query_rows(), shape.linear_bias);
  build.norm(ours + "pre_mlp_layernorm", theirs + "post_attention_layernorm", shape);
  for (const auto& [part, columns] : {std::pair<std::string, std::int64_t>{".weight", h}, {".bias", 0}})
    if (columns > 0 || shape.linear_bias)
      build.stacked(ours + "mlp.linear_fc1" + part, {{mlp + "gate_proj" + part, 0, f}, {mlp + "up_proj" + part, 0, f}},
                    columns);
  build.linear(ours + "mlp.linear_fc2", mlp + "down_proj", h, f, shape.linear_bias);
}

/// What follows the last norm: the output layer, if it is not the embedding, or the classes of a task.
void gpt_head(Builder& build, const GptShape& shape) {
  if (!shape.predicts_tokens())
    build.whole("task_head.weight", "score.weight", {shape.head_rows(), shape.hidden});
  else if (!shape.tied_output)
    build.whole("output_layer.weight", "lm_head.weight", {shape.vocab, shape.hidden});
}

/// `before`, `between`: the norms of what attention and the MLP read.
void bert_layer(Builder& build, const std::string& ours, const std::string& theirs, const std::string& before,
                const std::string& between, const GptShape& shape) {
  const std::int64_t h = shape.hidden;
  const std::string self = theirs + "attention.self.";
  build.norm(ours + "input_layernorm", before, shape);
  split_qkv(build, ours + "self_attention.linear_qkv", {self + "query", self + "key", self + "value"}, shape);
  build.linear(ours + "self_attention.linear_proj", theirs + "attention.output.dense", h, h, true);
  build.norm(ours + "pre_mlp_layernorm", between, shape);
  build.linear(ours + "mlp.linear_fc1", theirs + "intermediate.dense", shape.ffn_hidden, h, true);
  build.linear(ours + "mlp.linear_fc2", theirs + "output.dense", h, shape.ffn_hidden, true);
}

std::string t5_block(bool encoder, std::int64_t layer) {
  return concat(encoder ? "encoder" : "decoder", ".block.", layer, ".layer.");
}

void t5_layer(Builder& build, const GptShape& shape, std::int64_t layer) {
  const bool encoder = shape.in_encoder(layer);
  const std::int64_t h = shape.hidden, f = shape.ffn_hidden, rows = shape.query_rows(), d = shape.head();
  const std::string ours = shape.layer_prefix(layer);
  const std::string theirs = t5_block(encoder, encoder ? layer : layer - shape.encoder_layers);
  const std::string self = theirs + "0.SelfAttention.", cross = theirs + "1.EncDecAttention.";
  build.norm(ours + "input_layernorm", theirs + "0.layer_norm", shape);
  split_qkv(build, ours + "self_attention.linear_qkv", {self + "q", self + "k", self + "v"}, shape);
  build.linear(ours + "self_attention.linear_proj", self + "o", h, rows, false);
  if (!encoder) {
    build.norm(ours + "pre_cross_attn_layernorm", theirs + "1.layer_norm", shape);
    build.linear(ours + "cross_attention.linear_q", cross + "q", rows, h, false);
    std::vector<Rows> pairs;
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      pairs.push_back({cross + "k.weight", head * d, d});
      pairs.push_back({cross + "v.weight", head * d, d});
    }
    build.stacked(ours + "cross_attention.linear_kv.weight", pairs, h);
    build.linear(ours + "cross_attention.linear_proj", cross + "o", h, rows, false);
  }
  const std::string last = theirs + (encoder ? "1." : "2."), dense = last + "DenseReluDense.";
  build.norm(ours + "pre_mlp_layernorm", last + "layer_norm", shape);
  if (shape.gated)
    build.stacked(ours + "mlp.linear_fc1.weight", {{dense + "wi_0.weight", 0, f}, {dense + "wi_1.weight", 0, f}}, h);
  else
    build.linear(ours + "mlp.linear_fc1", dense + "wi", f, h, false);
  build.linear(ours + "mlp.linear_fc2", dense + "wo", h, f, false);
}

}  // namespace

Mapping inverted(const Mapping& mapping) {
  Mapping result;
  for (auto& [source, shape] : source_shapes(mapping)) result[source].shape = shape;
  for (const auto& [name, tensor] : mapping) {
    for (const Piece& piece : tensor.pieces) {
      MappedTensor& target = result[piece.source];
      target.transposed = tensor.transposed;
      target.pieces.push_back({name, piece.from, piece.to, reversed_if(tensor.transposed, piece.shape)});
    }
  }
  return result;
}

std::map<std::string, std::vector<std::int64_t>> source_shapes(const Mapping& mapping) {
  std::map<std::string, Sizes> shapes;
  for (const auto& [name, tensor] : mapping) {
    for (const Piece& piece : tensor.pieces) {
      Sizes& shape = shapes.try_emplace(piece.source, piece.from.size(), 0).first->second;
      const Sizes extent = reversed_if(tensor.transposed, piece.shape);
      for (std::size_t d = 0; d < extent.size(); ++d) shape.at(d) = std::max(shape[d], piece.from[d] + extent[d]);
    }
  }
  return shapes;
}

Mapping gpt2_mapping(const plan::GptShape& shape, const std::string& prefix) {
  Builder build;
  build.whole("embedding.word_embeddings.weight", prefix + "wte.weight", {shape.vocab, shape.hidden});
  build.whole("embedding.position_embeddings.weight", prefix + "wpe.weight", {shape.max_positions, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    gpt2_layer(build, concat("decoder.layers.", layer, "."), concat(prefix, "h.", layer, "."), shape);
  build.norm("decoder.final_layernorm", prefix + "ln_f", shape);
  gpt_head(build, shape);
  return build.take();
}

Mapping llama_mapping(const plan::GptShape& shape, const std::string& prefix) {
  Builder build;
  build.whole("embedding.word_embeddings.weight", prefix + "embed_tokens.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    llama_layer(build, concat("decoder.layers.", layer, "."), concat(prefix, "layers.", layer, "."), shape);
  build.norm("decoder.final_layernorm", prefix + "norm", shape);
  gpt_head(build, shape);
  return build.take();
}

Mapping bert_mapping(const plan::GptShape& shape, const BertParts& parts, const std::string& prefix) {
  Builder build;
  const std::string embeddings = prefix + "embeddings.";
  const std::int64_t h = shape.hidden;
  build.whole("embedding.word_embeddings.weight", embeddings + "word_embeddings.weight", {shape.vocab, h});
  build.whole("embedding.position_embeddings.weight", embeddings + "position_embeddings.weight",
              {shape.max_positions, h});
  build.whole("embedding.tokentype_embeddings.weight", embeddings + "token_type_embeddings.weight",
              {parts.token_types, h});
  std::string last = embeddings + "LayerNorm";  // the layer before it ends with, or the embedding
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string ours = concat("encoder.layers.", layer, "."),
                      theirs = concat(prefix, "encoder.layer.", layer, ".");
    if (parts.norms_first)
      bert_layer(build, ours, theirs, theirs + "attention.ln", theirs + "ln", shape);
    else
      bert_layer(build, ours, theirs, last, theirs + "attention.output.LayerNorm", shape);
    last = theirs + "output.LayerNorm";
  }
  build.norm("encoder.final_layernorm", parts.norms_first ? prefix + "encoder.ln" : last, shape);
  if (parts.pooler) build.linear("pooler.dense", prefix + "pooler.dense", h, h, true);
  if (parts.token_head) {
    build.linear("lm_head.dense", "cls.predictions.transform.dense", h, h, true);
    build.norm("lm_head.layer_norm", "cls.predictions.transform.LayerNorm", shape);
    build.whole("output_layer.bias", "cls.predictions.bias", {shape.vocab});
  }
  if (parts.sentence_head) build.linear("binary_head", "cls.seq_relationship", 2, h, true);
  if (!shape.predicts_tokens())
    build.linear("task_head", shape.task_head == plan::Head::Span ? "qa_outputs" : "classifier", shape.head_rows(), h,
                 true);
  return build.take();
}

Mapping t5_mapping(const plan::GptShape& shape, const std::string& head) {
  Builder build;
  build.whole("embedding.word_embeddings.weight", "shared.weight", {shape.vocab, shape.hidden});
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) t5_layer(build, shape, layer);
  for (const bool encoder : {true, false}) {
    build.whole(GptShape::position_table(encoder),
                t5_block(encoder, 0) + "0.SelfAttention.relative_attention_bias.weight",
                {shape.position_buckets, shape.num_heads});
    const std::string stack = encoder ? "encoder." : "decoder.";
    build.norm(stack + "final_layernorm", stack + "final_layer_norm", shape);
  }
  if (!shape.tied_output) build.whole("output_layer.weight", head, {shape.vocab, shape.hidden});
  return build.take();
}

}  // namespace megatron::interchange
