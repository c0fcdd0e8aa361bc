#include "megatron/plan/parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/plan/heads.h"

namespace megatron::plan {
namespace {

constexpr const char* kWordEmbedding = "embedding.word_embeddings.weight";

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void check_divides(const char* what, std::int64_t size, int tp) {
  if (size % tp == 0) return;
  throw ConfigError(rule_got_fix(concat(what, " must divide by parallel.tp."), concat(size, ", tp=", tp)));
}

/// How a tensor-parallel rank has a share of something.
using Pieces = std::vector<Piece>;

/// Its heads with their keys and values: whole groups, or a part of one group's queries and its key and value.
Pieces qkv_pieces(const GptShape& shape, int tp, int tp_rank) {
  const std::int64_t groups = shape.groups(), group_rows = shape.qkv_rows() / groups;
  if (groups % tp == 0) return {{.offset = groups / tp * group_rows * tp_rank, .length = groups / tp * group_rows}};
  const int sharing = tp / static_cast<int>(groups), among = tp_rank % sharing;
  const std::int64_t queries = shape.query_rows() / tp, begin = tp_rank / sharing * group_rows;
  return {{.offset = begin + among * queries, .length = queries},
          {.offset = begin + sharing * queries, .length = 2 * shape.head(), .copies = sharing, .copy = among}};
}

/// Its features of the MLP; of a gated one those of both halves.
Pieces fc1_pieces(const GptShape& shape, int tp, int tp_rank) {
  if (tp == 1) return {{.offset = 0, .length = shape.fc1_rows()}};
  const std::int64_t length = shape.ffn_hidden / tp;
  Pieces pieces{{.offset = length * tp_rank, .length = length}};
  if (shape.gated) pieces.push_back({.offset = shape.ffn_hidden + length * tp_rank, .length = length});
  return pieces;
}

/// Collects specs; `split` is the dimension split over the tensor-parallel group, -1 for none.
class SpecBuilder {
 public:
  SpecBuilder(int tp, int tp_rank) : tp_(tp), tp_rank_(tp_rank) {}

  void begin_stage(int stage) { stage_ = stage; }
  void at_depth(std::int64_t depth) { depth_ = depth; }

  ParameterSpec& add(std::string name, std::vector<std::int64_t> shape, int split, Init init, double std = 0) {
    ParameterSpec spec{
        .name = std::move(name), .shape = std::move(shape), .split_dim = split, .init = init, .init_std = std};
    if (split >= 0) {
      const std::int64_t length = spec.shape[static_cast<std::size_t>(split)] / tp_;
      spec.pieces = {{.offset = length * tp_rank_, .length = length}};
    }
    spec.weight_decay = spec.shape.size() > 1;
    spec.stage = stage_;
    spec.depth = depth_;
    spec.sequence_partial = split < 0;
    return specs_.emplace_back(std::move(spec));
  }

  void norm(const std::string& prefix, const GptShape& shape) {
    add(prefix + ".weight", {shape.hidden}, -1, Init::One);
    if (!shape.rms_norm) add(prefix + ".bias", {shape.hidden}, -1, Init::Zero);
  }
  /// Split by rows: each rank computes some of the outputs.
  void column_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std, const Pieces& pieces,
                     bool bias) {
    add(prefix + ".weight", {out, in}, 0, Init::Normal, std).pieces = pieces;
    if (bias) add(prefix + ".bias", {out}, 0, Init::Zero).pieces = pieces;
  }
  /// Split by columns: each rank has some of the inputs, so the bias belongs to all.
  void row_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std, bool bias) {
    add(prefix + ".weight", {out, in}, 1, Init::Normal, std);
    if (bias) add(prefix + ".bias", {out}, -1, Init::Zero);
  }
  /// Whole on each rank. `whole_sequence`: and applied to the same values by each, whether or not the stream is split.
  void whole_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std, bool whole_sequence) {
    add(prefix + ".weight", {out, in}, -1, Init::Normal, std).sequence_partial = !whole_sequence;
    add(prefix + ".bias", {out}, -1, Init::Zero).sequence_partial = !whole_sequence;
  }
  int tp() const { return tp_; }
  int tp_rank() const { return tp_rank_; }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  int tp_, tp_rank_, stage_ = 0;
  std::int64_t depth_ = 0;
  std::vector<ParameterSpec> specs_;
};

void add_layer(const GptShape& shape, std::int64_t layer, SpecBuilder& build) {
  const std::int64_t h = shape.hidden;
  const double output_std = shape.init_std / std::sqrt(2.0 * static_cast<double>(shape.num_layers));
  const std::string prefix = concat(shape.stack(), "layers.", layer, ".");
  const Pieces qkv = qkv_pieces(shape, build.tp(), build.tp_rank());
  const Pieces fc1 = fc1_pieces(shape, build.tp(), build.tp_rank());
  const bool bias = shape.linear_bias;
  build.norm(prefix + "input_layernorm", shape);
  build.column_linear(prefix + "self_attention.linear_qkv", shape.qkv_rows(), h, shape.init_std, qkv,
                      bias || shape.qkv_bias);
  build.row_linear(prefix + "self_attention.linear_proj", h, shape.query_rows(), output_std, bias);
  build.norm(prefix + "pre_mlp_layernorm", shape);
  build.column_linear(prefix + "mlp.linear_fc1", shape.fc1_rows(), h, shape.init_std, fc1, bias);
  build.row_linear(prefix + "mlp.linear_fc2", h, shape.ffn_hidden, output_std, bias);
}

/// What a BERT has between its last layer and the output layer.
void add_bert_heads(const GptShape& shape, SpecBuilder& build) {
  const std::int64_t h = shape.hidden;
  if (shape.sentence_head) {
    build.whole_linear("pooler.dense", h, h, shape.init_std, /*whole_sequence=*/true);
    build.whole_linear("binary_head", 2, h, shape.init_std, /*whole_sequence=*/true);
  }
  build.whole_linear("lm_head.dense", h, h, shape.init_std, /*whole_sequence=*/false);
  build.norm("lm_head.layer_norm", shape);
}

/// The head of a task: of a BERT on the pooler, of a GPT on the last token; of spans on each token.
void add_task_head(const GptShape& shape, SpecBuilder& build) {
  const bool each_token = shape.task_head == Head::Span;
  if (shape.is_bert() && !each_token)
    build.whole_linear("pooler.dense", shape.hidden, shape.hidden, shape.init_std, /*whole_sequence=*/true);
  build.whole_linear("task_head", shape.head_rows(), shape.hidden, shape.init_std, /*whole_sequence=*/!each_token);
}

}  // namespace

std::vector<std::int64_t> ParameterSpec::local_shape() const {
  std::vector<std::int64_t> local = shape;
  if (split_dim < 0) return local;
  std::int64_t length = 0;
  for (const Piece& piece : pieces) length += piece.length;
  local[static_cast<std::size_t>(split_dim)] = length;
  return local;
}
std::int64_t ParameterSpec::local_size() const { return product(local_shape()); }
std::int64_t ParameterSpec::size() const { return product(shape); }
bool ParameterSpec::has_copies() const {
  return std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.copies > 1; });
}

std::int64_t pad_vocab(std::int64_t vocab, std::int64_t divisible_by, int tp) {
  const auto round_up = [](std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; };
  const std::int64_t padded = round_up(vocab, divisible_by);
  return padded % tp == 0 ? padded : round_up(padded, std::lcm(divisible_by, std::int64_t{tp}));
}

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, int tp, int tp_rank,
                                          const std::vector<StagePart>& parts) {
  check_heads(shape.num_heads, shape.groups(), tp);
  check_divides("model.ffn_hidden_size", shape.ffn_hidden, tp);
  check_divides("the padded vocabulary", shape.padded_vocab, tp);
  const auto word_embedding = [&](SpecBuilder& build) -> ParameterSpec& {
    return build.add(kWordEmbedding, {shape.padded_vocab, shape.hidden}, 0, Init::Normal, shape.init_std);
  };
  const bool has_embedding = std::any_of(parts.begin(), parts.end(), [](const StagePart& p) { return p.embedding; });
  const bool has_output = std::any_of(parts.begin(), parts.end(), [](const StagePart& p) { return p.output; });
  SpecBuilder build(tp, tp_rank);
  for (const StagePart& part : parts) {
    build.begin_stage(part.stage);
    build.at_depth(0);
    if (part.embedding) {
      ParameterSpec& words = word_embedding(build);
      words.in_forward = shape.tied_output && shape.predicts_tokens() && has_output;
      words.gradient_uses = words.in_forward ? 2 : 1;
      if (shape.learned_positions)
        build.add("embedding.position_embeddings.weight", {shape.max_positions, shape.hidden}, -1, Init::Normal,
                  shape.init_std);
      if (shape.token_types > 0)
        build.add("embedding.tokentype_embeddings.weight", {shape.token_types, shape.hidden}, -1, Init::Normal,
                  shape.init_std);
    }
    for (std::int64_t layer = part.first_layer; layer < part.first_layer + part.num_layers; ++layer) {
      build.at_depth(1 + layer);
      add_layer(shape, layer, build);
    }
    if (!part.output) continue;
    build.at_depth(1 + shape.num_layers);
    build.norm(shape.stack() + "final_layernorm", shape);
    if (!shape.predicts_tokens()) {
      add_task_head(shape, build);
      continue;
    }
    if (shape.is_bert()) add_bert_heads(shape, build);
    if (!shape.tied_output) {
      build.add("output_layer.weight", {shape.padded_vocab, shape.hidden}, 0, Init::Normal, shape.init_std).in_forward =
          true;
    } else if (!has_embedding) {
      ParameterSpec& copy = word_embedding(build);
      copy.shared_copy = copy.in_forward = true;
    }
    if (shape.is_bert()) build.add("output_layer.bias", {shape.padded_vocab}, 0, Init::Zero).in_forward = true;
  }
  return build.take();
}

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, int tp, int tp_rank) {
  return gpt_parameters(shape, tp, tp_rank, {whole_model(shape.num_layers)});
}

}  // namespace megatron::plan
