#include "megatron/plan/parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megatron/base/error.h"

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

/// Collects specs; `split` is the dimension split over the tensor-parallel group, -1 for none.
class SpecBuilder {
 public:
  SpecBuilder(int tp, int tp_rank) : tp_(tp), tp_rank_(tp_rank) {}

  void begin_stage(int stage) { stage_ = stage; }

  ParameterSpec& add(std::string name, std::vector<std::int64_t> shape, int split, Init init, double std = 0) {
    ParameterSpec spec{
        .name = std::move(name), .shape = std::move(shape), .split_dim = split, .init = init, .init_std = std};
    if (split >= 0) {
      spec.length = spec.shape[static_cast<std::size_t>(split)] / tp_;
      spec.offset = spec.length * tp_rank_;
    }
    spec.weight_decay = spec.shape.size() > 1;
    spec.stage = stage_;
    spec.sequence_partial = split < 0;
    return specs_.emplace_back(std::move(spec));
  }

  void norm(const std::string& prefix, std::int64_t hidden) {
    add(prefix + ".weight", {hidden}, -1, Init::One);
    add(prefix + ".bias", {hidden}, -1, Init::Zero);
  }
  /// Split by rows: each rank computes some of the outputs.
  void column_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std) {
    add(prefix + ".weight", {out, in}, 0, Init::Normal, std);
    add(prefix + ".bias", {out}, 0, Init::Zero);
  }
  /// Split by columns: each rank has some of the inputs, so the bias belongs to all.
  void row_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std) {
    add(prefix + ".weight", {out, in}, 1, Init::Normal, std);
    add(prefix + ".bias", {out}, -1, Init::Zero);
  }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  int tp_, tp_rank_, stage_ = 0;
  std::vector<ParameterSpec> specs_;
};

void add_layer(const GptShape& shape, std::int64_t layer, SpecBuilder& build) {
  const std::int64_t h = shape.hidden;
  const double output_std = shape.init_std / std::sqrt(2.0 * static_cast<double>(shape.num_layers));
  const std::string prefix = concat("decoder.layers.", layer, ".");
  build.norm(prefix + "input_layernorm", h);
  build.column_linear(prefix + "self_attention.linear_qkv", 3 * h, h, shape.init_std);
  build.row_linear(prefix + "self_attention.linear_proj", h, h, output_std);
  build.norm(prefix + "pre_mlp_layernorm", h);
  build.column_linear(prefix + "mlp.linear_fc1", shape.ffn_hidden, h, shape.init_std);
  build.row_linear(prefix + "mlp.linear_fc2", h, shape.ffn_hidden, output_std);
}

}  // namespace

std::vector<std::int64_t> ParameterSpec::local_shape() const {
  std::vector<std::int64_t> local = shape;
  if (split_dim >= 0) local[static_cast<std::size_t>(split_dim)] = length;
  return local;
}
std::int64_t ParameterSpec::local_size() const { return product(local_shape()); }
std::int64_t ParameterSpec::size() const { return product(shape); }

std::int64_t pad_vocab(std::int64_t vocab, std::int64_t divisible_by, int tp) {
  const auto round_up = [](std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; };
  const std::int64_t padded = round_up(vocab, divisible_by);
  return padded % tp == 0 ? padded : round_up(padded, std::lcm(divisible_by, std::int64_t{tp}));
}

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, int tp, int tp_rank,
                                          const std::vector<StagePart>& parts) {
  check_divides("model.num_attention_heads", shape.num_heads, tp);
  check_divides("model.hidden_size", shape.hidden, tp);
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
    if (part.embedding) {
      word_embedding(build).gradient_uses = shape.tied_output && has_output ? 2 : 1;
      build.add("embedding.position_embeddings.weight", {shape.max_positions, shape.hidden}, -1, Init::Normal,
                shape.init_std);
    }
    for (std::int64_t layer = part.first_layer; layer < part.first_layer + part.num_layers; ++layer)
      add_layer(shape, layer, build);
    if (!part.output) continue;
    build.norm("decoder.final_layernorm", shape.hidden);
    if (!shape.tied_output)
      build.add("output_layer.weight", {shape.padded_vocab, shape.hidden}, 0, Init::Normal, shape.init_std);
    else if (!has_embedding)
      word_embedding(build).shared_copy = true;
  }
  return build.take();
}

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, int tp, int tp_rank) {
  return gpt_parameters(shape, tp, tp_rank, {whole_model(shape.num_layers)});
}

}  // namespace megatron::plan
