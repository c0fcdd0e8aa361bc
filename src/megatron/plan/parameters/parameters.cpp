#include "megatron/plan/parameters/parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/plan/parameters/output_bias.h"
#include "megatron/plan/ranks/heads.h"

namespace megatron::plan {
namespace {

constexpr const char* kPositionEmbedding = "embedding.position_embeddings.weight";

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void check_divides(const char* what, std::int64_t size, int ranks, const char* axis = "tp") {
  if (size % ranks == 0) return;
  throw ConfigError(
      rule_got_fix(concat(what, " must divide by parallel.", axis, "."), concat(size, ", ", axis, "=", ranks)));
}

/// How a tensor-parallel rank has a share of something.
using Pieces = std::vector<ShardSlice>;

/// Its heads with their keys and values: whole groups, or a part of one group's queries, of their gates if any, and its
/// key and value.
Pieces group_pieces(const Linear& linear, const SelfAttention& attention, int tp, int tp_rank) {
  const std::int64_t groups = attention.groups, group_rows = linear.outputs / groups;
  if (groups % tp == 0) return {{.offset = groups / tp * group_rows * tp_rank, .length = groups / tp * group_rows}};
  const int sharing = tp / static_cast<int>(groups), among = tp_rank % sharing;
  const std::int64_t queries = attention.query_rows() / tp, begin = tp_rank / sharing * group_rows;
  Pieces pieces{{.offset = begin + among * queries, .length = queries}};
  if (attention.gated()) pieces.push_back({.offset = begin + (sharing + among) * queries, .length = queries});
  pieces.push_back({.offset = begin + group_rows - 2 * attention.head_size,
                    .length = 2 * attention.head_size,
                    .copies = sharing,
                    .copy = among});
  return pieces;
}

/// Of the keys' features: those of its groups, or of the one that it shares.
Pieces key_pieces(const SelfAttention& attention, int tp, int tp_rank) {
  const std::int64_t groups = attention.groups, size = attention.head_size;
  if (groups % tp == 0) return {{.offset = groups / tp * size * tp_rank, .length = groups / tp * size}};
  const int sharing = tp / static_cast<int>(groups);
  return {{.offset = tp_rank / sharing * size, .length = size, .copies = sharing, .copy = tp_rank % sharing}};
}

/// Its part of both halves.
Pieces half_pieces(std::int64_t rows, int tp, int tp_rank) {
  if (tp == 1) return {{.offset = 0, .length = rows}};
  const std::int64_t half = rows / 2, length = half / tp;
  return {{.offset = length * tp_rank, .length = length}, {.offset = half + length * tp_rank, .length = length}};
}

Pieces even_pieces(std::int64_t rows, int tp, int tp_rank) {
  const std::int64_t length = rows / tp;
  return {{.offset = length * tp_rank, .length = length}};
}

/// Collects specs; `split` is the dimension split over the tensor-parallel group, -1 for none.
class SpecBuilder {
 public:
  /// `xavier`: matrix() draws so unless it is told otherwise.
  SpecBuilder(int tp, int tp_rank, const ExpertShare& experts, bool xavier)
      : tp_(tp), tp_rank_(tp_rank), experts_(experts), xavier_(xavier) {
    if (experts_.etp == 0) experts_ = {experts.ep, experts.rank, tp, tp_rank};
  }

  void begin_stage(int stage) { stage_ = stage; }
  void at_depth(std::int64_t depth) { depth_ = depth; }

  ParameterSpec& add(std::string name, std::vector<std::int64_t> shape, int split, Init init, double std = 0) {
    ParameterSpec spec{
        .name = std::move(name), .shape = std::move(shape), .split_dim = split, .init = init, .init_std = std};
    if (split >= 0) {
      const std::int64_t length = spec.shape[static_cast<std::size_t>(split)] / slices();
      spec.pieces = {{.offset = length * slice(), .length = length}};
    }
    spec.weight_decay = spec.shape.size() > 1;
    spec.stage = stage_;
    spec.depth = depth_;
    spec.sequence_partial = split < 0;
    spec.of_expert = of_expert_;
    return specs_.emplace_back(std::move(spec));
  }

  /// A matrix [rows, columns]: normal, or with `xavier` within the bound of Glorot and Bengio 2010.
  ParameterSpec& matrix(std::string name, std::int64_t rows, std::int64_t columns, int split, double std, bool xavier) {
    const double bound = std::sqrt(6.0 / static_cast<double>(rows + columns));
    return add(std::move(name), {rows, columns}, split, xavier ? Init::Uniform : Init::Normal, xavier ? bound : std);
  }
  ParameterSpec& matrix(std::string name, std::int64_t rows, std::int64_t columns, int split, double std) {
    return matrix(std::move(name), rows, columns, split, std, xavier_);
  }

  void norm(const std::string& prefix, const ModelShape& shape) {
    norm(prefix, shape.hidden, shape.norms_have_bias(), shape.norm_1p);
  }
  void norm(const std::string& prefix, std::int64_t size, bool bias, bool one_plus) {
    add(prefix + ".weight", {size}, -1, one_plus ? Init::Zero : Init::One);
    if (bias) add(prefix + ".bias", {size}, -1, Init::Zero);
  }
  /// A norm over all heads, of which a rank has `pieces`.
  void full_norm(const std::string& prefix, std::int64_t size, bool one_plus, const Pieces& pieces) {
    add(prefix + ".weight", {size}, 0, one_plus ? Init::Zero : Init::One).pieces = pieces;
  }
  /// A norm that each head passes.
  void head_norm(const std::string& prefix, std::int64_t size, bool bias, bool one_plus) {
    const std::size_t before = specs_.size();
    norm(prefix, size, bias, one_plus);
    for (std::size_t i = before; i < specs_.size(); ++i) {
      specs_[i].sequence_partial = false;
      specs_[i].heads_partial = true;
    }
  }
  /// Split by rows: each rank computes some of the outputs.
  void column_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std, const Pieces& pieces,
                     bool bias) {
    matrix(prefix + ".weight", out, in, 0, std).pieces = pieces;
    if (bias) add(prefix + ".bias", {out}, 0, Init::Zero).pieces = pieces;
  }
  /// Split by columns: each rank has some of the inputs, so the bias belongs to all.
  void row_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std, bool bias) {
    matrix(prefix + ".weight", out, in, 1, std);
    if (bias) add(prefix + ".bias", {out}, -1, Init::Zero);
  }
  /// Whole on each rank. `whole_sequence`: and applied to the same values by each, whether or not the stream is split.
  void whole_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double std, bool whole_sequence,
                    bool bias = true) {
    matrix(prefix + ".weight", out, in, -1, std).sequence_partial = !whole_sequence;
    if (bias) add(prefix + ".bias", {out}, -1, Init::Zero).sequence_partial = !whole_sequence;
  }
  /// Whole on each rank, which has a part of its gradient.
  void each_in_part(const std::string& prefix, std::int64_t out, std::int64_t in, double std, bool bias) {
    const std::size_t before = specs_.size();
    whole_linear(prefix, out, in, std, /*whole_sequence=*/true, bias);
    for (std::size_t i = before; i < specs_.size(); ++i) specs_[i].heads_partial = true;
  }
  ParameterSpec& last() { return specs_.back(); }
  /// The one of that name among those so far, or null.
  ParameterSpec* find(const std::string& name) {
    const auto found = std::find_if(specs_.begin(), specs_.end(), [&](const auto& spec) { return spec.name == name; });
    return found == specs_.end() ? nullptr : &*found;
  }
  int tp() const { return tp_; }
  int tp_rank() const { return tp_rank_; }
  /// Ranks that split what follows, and this one's number among them.
  int slices() const { return of_expert_ ? experts_.etp : tp_; }
  int slice() const { return of_expert_ ? experts_.etp_rank : tp_rank_; }
  const ExpertShare& experts() const { return experts_; }
  /// What follows is of one expert, or of none.
  void of_expert(bool on) { of_expert_ = on; }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  int tp_, tp_rank_, stage_ = 0;
  ExpertShare experts_;
  bool xavier_, of_expert_ = false;
  std::int64_t depth_ = 0;
  std::vector<ParameterSpec> specs_;
};

void add_layer(const LayerSpec& layer, SpecBuilder& build) {
  const int tp = build.tp(), rank = build.tp_rank();
  for (std::size_t b = 0; b < layer.branches.size(); ++b) {
    const Branch& branch = layer.branches[b];
    if (layer.norm_before(b))
      build.norm(layer.prefix + branch.norm(), layer.hidden, layer.norms_have_bias(), layer.norm_1p);
    for (const Linear& linear : branch.linears(layer.hidden)) {
      if (linear.expert >= 0 && !build.experts().has(linear.expert, layer.experts()->count)) continue;
      build.of_expert(linear.expert >= 0);
      const std::string name = layer.prefix + linear.name;
      const auto column = [&](const Pieces& pieces) {
        build.column_linear(name, linear.outputs, linear.inputs, layer.init_std, pieces, linear.bias);
      };
      switch (linear.split) {
        case Linear::Split::Outputs:
        case Linear::Split::Pairs:
          column(even_pieces(linear.outputs, build.slices(), build.slice()));
          break;
        case Linear::Split::Groups:
          column(group_pieces(linear, layer.attention(), tp, rank));
          break;
        case Linear::Split::Halves:
          column(half_pieces(linear.outputs, build.slices(), build.slice()));
          break;
        case Linear::Split::Inputs:
          build.row_linear(name, linear.outputs, linear.inputs, layer.output_init_std, linear.bias);
          // Each rank sees the whole sequence's tokens of an expert.
          if (linear.expert >= 0 && linear.bias) build.last().sequence_partial = false;
          break;
        case Linear::Split::Whole:
          build.each_in_part(name, linear.outputs, linear.inputs, layer.init_std, linear.bias);
          break;
      }
      build.of_expert(false);
      for (std::size_t i = 0; i < linear.head_norms.size(); ++i) {
        const std::string norm = layer.prefix + linear.head_norms[i];
        if (linear.full_norms)
          build.full_norm(
              norm, i == 0 ? layer.attention().query_rows() : layer.attention().key_rows(), layer.norm_1p,
              i == 0 ? even_pieces(layer.attention().query_rows(), tp, rank) : key_pieces(layer.attention(), tp, rank));
        else
          build.head_norm(norm, linear.head_size, layer.norms_have_bias(), layer.norm_1p);
      }
    }
    if (const auto* const attention = std::get_if<SelfAttention>(&branch.inner);
        attention != nullptr && attention->learned_sinks())
      build.add(layer.prefix + SelfAttention::kSinks, {attention->heads}, 0, Init::Normal, layer.init_std);
    if (const auto* const experts = std::get_if<Experts>(&branch.inner); experts != nullptr && experts->router.bias)
      build.add(layer.prefix + Experts::kBias, {experts->count}, -1, Init::Zero).sequence_partial = false;
    if (layer.norms.behind)
      build.norm(layer.prefix + branch.out_norm(), layer.hidden, layer.norms_have_bias(), layer.norm_1p);
  }
}

/// What a BERT has between its last layer and the output layer.
void add_masked_lm_head(const ModelShape& shape, SpecBuilder& build) {
  const std::int64_t h = shape.hidden;
  if (shape.sentence_head) {
    build.whole_linear("pooler.dense", h, h, shape.init_std, /*whole_sequence=*/true);
    build.whole_linear("binary_head", 2, h, shape.init_std, /*whole_sequence=*/true);
  }
  build.whole_linear("lm_head.dense", h, h, shape.init_std, /*whole_sequence=*/false, shape.masked_lm_bias);
  build.norm("lm_head.layer_norm", shape);
}

/// Everything of a depth but what it shares with the model: word embedding and output layer.
void add_prediction_depth(const PredictionDepth& depth, SpecBuilder& build) {
  const LayerSpec& layer = depth.layer;
  const Linear projection = depth.projection();
  const auto norm = [&](const char* name) {
    build.norm(depth.prefix + name, layer.hidden, layer.norms_have_bias(), layer.norm_1p);
  };
  norm(PredictionDepth::kTokenNorm);
  norm(PredictionDepth::kStateNorm);
  build.column_linear(depth.prefix + projection.name, projection.outputs, projection.inputs, layer.init_std,
                      even_pieces(projection.outputs, build.tp(), build.tp_rank()), projection.bias);
  add_layer(layer, build);
  norm(PredictionDepth::kFinalNorm);
}

/// The head of a task: of a BERT on the pooler, of a GPT without a bias on the last token; of spans on each token.
void add_task_head(const ModelShape& shape, SpecBuilder& build) {
  const bool each_token = shape.task_head == Head::Span;
  if (shape.pooled_tasks && !each_token)
    build.whole_linear("pooler.dense", shape.hidden, shape.hidden, shape.init_std, /*whole_sequence=*/true);
  build.whole_linear("task_head", shape.head_rows(), shape.hidden, shape.init_std, /*whole_sequence=*/!each_token,
                     /*bias=*/shape.pooled_tasks);
}

/// Layers of a part that are its T5's encoder's, or its decoder's.
std::int64_t layers_of_stack(const ModelShape& shape, const StageSpec& part, bool encoder) {
  const std::int64_t end = part.first_layer + part.num_layers;
  const std::int64_t before = std::clamp(shape.encoder_layers, part.first_layer, end) - part.first_layer;
  return encoder ? before : part.num_layers - before;
}

ParameterSpec& add_positions(const ModelShape& shape, SpecBuilder& build) {
  return build.matrix(kPositionEmbedding, shape.position_offset + shape.max_positions, shape.hidden, -1,
                      shape.words_std(), shape.words_xavier);
}

void add_other_embeddings(const ModelShape& shape, SpecBuilder& build) {
  if (shape.learned_positions) add_positions(shape, build);
  if (shape.token_types > 0)
    build.matrix("embedding.tokentype_embeddings.weight", shape.token_types, shape.hidden, -1, shape.words_std(),
                 shape.words_xavier);
}

/// What several stages use: a rank has it once.
class Shared {
 public:
  Shared(const ModelShape& shape, const std::vector<StageSpec>& parts, SpecBuilder& build)
      : shape_(shape), parts_(parts), build_(build) {}

  /// The word embedding; `in_forward`: as the output layer. `uses`: of each microbatch.
  void use_words(bool in_forward, std::int64_t uses = 1) {
    ParameterSpec* words = build_.find(kWordEmbedding);
    if (words == nullptr) {
      words = &build_.matrix(kWordEmbedding, shape_.padded_vocab, shape_.hidden, 0, shape_.words_std(),
                             shape_.words_xavier);
      words->shared_copy = std::none_of(parts_.begin(), parts_.end(), [](const StageSpec& p) { return p.embedding; });
      words->gradient_uses = static_cast<int>(uses);
    } else {
      words->gradient_uses += static_cast<int>(uses);
      words->across_layers = true;
    }
    words->in_forward = words->in_forward || in_forward;
  }

  /// The learned positions, besides the first stage: by a decoder behind the encoder of the same rank (rules.cpp), and
  /// by depths of prediction, `uses` of each microbatch.
  void use_positions_again(std::int64_t uses = 1) {
    if (!shape_.learned_positions) return;
    ParameterSpec* positions = build_.find(kPositionEmbedding);
    if (positions == nullptr) {
      positions = &add_positions(shape_, build_);
      positions->shared_copy = true;
      positions->gradient_uses = 0;
    }
    positions->gradient_uses += static_cast<int>(uses);
    positions->across_layers = true;
  }

  /// The tables of biases of the stacks that the part has layers of; each layer adds to their gradients.
  void use_position_tables(const StageSpec& part) {
    if (shape_.position_buckets == 0) return;
    for (const bool encoder : {true, false}) {
      const auto layers = static_cast<int>(layers_of_stack(shape_, part, encoder));
      if (layers == 0) continue;
      const std::string name = ModelShape::position_table(encoder);
      if (ParameterSpec* table = build_.find(name); table != nullptr) {
        table->gradient_uses += layers;
        continue;
      }
      ParameterSpec& table = build_.matrix(name, shape_.position_buckets, shape_.num_heads, 1, shape_.init_std);
      table.gradient_uses = layers;
      table.across_layers = true;
      const std::int64_t first = encoder ? 0 : shape_.encoder_layers;
      table.shared_copy = std::none_of(parts_.begin(), parts_.end(), [&](const StageSpec& p) {
        return p.first_layer <= first && first < p.first_layer + p.num_layers;
      });
    }
  }

 private:
  const ModelShape& shape_;
  const std::vector<StageSpec>& parts_;
  SpecBuilder& build_;
};

}  // namespace

bool begins_decoder(const ModelShape& shape, const StageSpec& part) {
  return shape.encoder_decoder() && part.first_layer <= shape.encoder_layers &&
         shape.encoder_layers < part.first_layer + part.num_layers;
}

std::string ModelShape::layer_prefix(std::int64_t layer) const {
  if (layer >= num_layers) return concat("mtp.layers.", layer - num_layers, ".", PredictionDepth::kLayer);
  const bool after = encoder_decoder() && !in_encoder(layer);
  return concat(in_encoder(layer) ? "encoder." : "decoder.", "layers.", after ? layer - encoder_layers : layer, ".");
}

std::vector<std::int64_t> ModelShape::expert_layers() const {
  std::vector<std::int64_t> numbers;
  for (std::int64_t l = 0; l < num_layers + mtp_depths; ++l)
    if (layer(l).experts() != nullptr) numbers.push_back(l);
  return numbers;
}

bool ModelShape::wide(std::int64_t layer) const {
  if (layer >= num_layers) return false;  // a depth of multi-token prediction
  const bool second = encoder_decoder() && !in_encoder(layer);
  const std::int64_t number = second ? layer - encoder_layers : layer;
  const std::int64_t of_stack = second ? num_layers - encoder_layers : encoder_decoder() ? encoder_layers : num_layers;
  return number < wide_first || number >= of_stack - wide_last;
}

PredictionDepth ModelShape::prediction_depth(std::int64_t depth) const {
  return {.prefix = concat("mtp.layers.", depth, "."), .layer = layer(num_layers + depth)};
}

LayerSpec ModelShape::layer(std::int64_t number) const {
  if (number >= num_layers && number < num_layers + mtp_depths) {
    LayerSpec like_last = layer(num_layers - 1);
    like_last.prefix = layer_prefix(number);
    like_last.first_after_norm = false;  // it reads no embeddings that are yet to be normalized
    like_last.wide = false;
    return like_last;
  }
  if (!layers.empty()) {
    LayerSpec own = layers.at(static_cast<std::size_t>(number));
    own.wide = wide(number);
    return own;
  }
  const bool encoder = in_encoder(number);
  const std::int64_t of_stack = !encoder_decoder() ? num_layers
                                : encoder          ? encoder_layers
                                                   : num_layers - encoder_layers;
  LayerSpec layer{.prefix = layer_prefix(number),
                  .hidden = hidden,
                  .rms_norm = rms_norm,
                  .norm_bias = norm_bias,
                  .residual_after_norm = residual_after_norm,
                  .first_after_norm = embedding_norm && number == 0,
                  .norms = norms,
                  .norm_1p = norm_1p,
                  .parallel = parallel,
                  .init_std = init_std,
                  .output_init_std = init_std / std::sqrt(2.0 * static_cast<double>(of_stack)),
                  .decoder = encoder_decoder() && !encoder,
                  .wide = wide(number)};
  const auto skips = [number](std::int64_t freq, bool first = false) {
    return freq > 0 && (number + (first ? 0 : 1)) % freq == 0;
  };
  config::AttentionVariant own = attention;
  if (skips(attention.window_attn_skip_freq, attention.window_attn_skip_first)) own.sliding_window = 0;
  layer.branches.push_back({SelfAttention{.heads = num_heads,
                                          .groups = groups(),
                                          .head_size = head(),
                                          .bias = linear_bias && attention_bias,
                                          .causal = !encoder,
                                          .scale = attention_scale,
                                          .distance_bias = position_buckets > 0,
                                          .rotary = !skips(attention.no_rope_freq),
                                          .local_rotary = own.sliding_window > 0 && attention.rotary_base_local > 0,
                                          .variant = own,
                                          .latents = latents}});
  if (layer.decoder)
    layer.branches.push_back(
        {CrossAttention{.heads = num_heads, .head_size = head(), .bias = linear_bias, .scale = attention_scale}});
  if (has_experts(number)) {
    layer.branches.push_back({*experts});
    return layer;
  }
  layer.branches.push_back(
      {Mlp{.width = ffn_hidden, .gated = gated, .bias = linear_bias && mlp_bias, .inner_dropout = inner_dropout},
       shared_norm ? Branch::Reads::NormBefore : Branch::Reads::OwnNorm});
  return layer;
}

std::vector<std::int64_t> ParameterSpec::local_shape() const {
  std::vector<std::int64_t> local = shape;
  if (split_dim < 0) return local;
  std::int64_t length = 0;
  for (const ShardSlice& piece : pieces) length += piece.length;
  local[static_cast<std::size_t>(split_dim)] = length;
  return local;
}
std::int64_t ParameterSpec::local_size() const { return product(local_shape()); }
std::int64_t ParameterSpec::size() const { return product(shape); }
bool ParameterSpec::has_copies() const {
  return std::any_of(pieces.begin(), pieces.end(), [](const ShardSlice& piece) { return piece.copies > 1; });
}

std::int64_t pad_vocab(std::int64_t vocab, std::int64_t divisible_by, int tp) {
  const auto round_up = [](std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; };
  const std::int64_t padded = round_up(vocab, divisible_by);
  return padded % tp == 0 ? padded : round_up(padded, std::lcm(divisible_by, std::int64_t{tp}));
}

namespace {

void check_layers(const ModelShape& shape, const StageSpec& part, int tp, const ExpertShare& share) {
  if (part.output && shape.mtp_depths > 0) check_divides("model.hidden_size", shape.hidden, tp);
  const std::int64_t depths = part.output ? shape.mtp_depths : 0;
  for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers + depths; ++l) {
    const LayerSpec layer = shape.layer(l);
    check_heads(layer.attention().heads, layer.attention().groups, tp);
    const Experts* const experts = layer.experts();
    if (experts == nullptr) {
      check_divides("model.ffn_hidden_size", layer.mlp().width, tp);
      continue;
    }
    if (share.etp == 0)
      check_divides("model.moe_ffn_hidden_size", experts->expert.width, tp);
    else
      check_divides("model.moe_ffn_hidden_size", experts->expert.width, share.etp, "etp");
    check_divides("model.moe_shared_expert_intermediate_size", experts->shared_width, tp);
    check_divides("model.num_experts", experts->count, share.ep, "ep");
  }
}

}  // namespace

std::vector<ParameterSpec> model_parameters(const ModelShape& shape, int tp, int tp_rank,
                                            const std::vector<StageSpec>& parts, const ExpertShare& experts) {
  for (const StageSpec& part : parts) check_layers(shape, part, tp, experts);
  check_divides("the padded vocabulary", shape.padded_vocab, tp);
  SpecBuilder build(tp, tp_rank, experts, shape.xavier);
  Shared shared(shape, parts, build);
  for (const StageSpec& part : parts) {
    build.begin_stage(part.stage);
    build.at_depth(0);
    if (part.embedding) {
      shared.use_words(/*in_forward=*/false);
      add_other_embeddings(shape, build);
    }
    if (begins_decoder(shape, part)) {
      shared.use_words(/*in_forward=*/false);
      build.find(kWordEmbedding)->across_layers = true;  // reached between layers, not behind all of the stage
      shared.use_positions_again();
    }
    shared.use_position_tables(part);
    for (std::int64_t layer = part.first_layer; layer < part.first_layer + part.num_layers; ++layer) {
      build.at_depth(1 + layer);
      add_layer(shape.layer(layer), build);
      if (layer + 1 == shape.encoder_layers) build.norm("encoder.final_layernorm", shape);
    }
    if (!part.output) continue;
    build.at_depth(1 + shape.num_layers);
    build.norm(shape.stack() + "final_layernorm", shape);
    if (!shape.predicts_tokens()) {
      add_task_head(shape, build);
      continue;
    }
    if (shape.masked_lm_head) add_masked_lm_head(shape, build);
    if (shape.mtp_depths > 0) {
      shared.use_words(/*in_forward=*/false, shape.mtp_depths);
      build.find(kWordEmbedding)->across_layers = true;  // written at once, also where layers' gradients are put off
      shared.use_positions_again(shape.mtp_depths);
    }
    for (std::int64_t k = 0; k < shape.mtp_depths; ++k) {
      build.at_depth(depth_of_prediction(shape, k));
      add_prediction_depth(shape.prediction_depth(k), build);
    }
    // What the layers of depths share with the model's output comes behind them: backward begins with it.
    if (shape.mtp_depths > 0) build.at_depth(depth_of_prediction(shape, shape.mtp_depths));
    const std::int64_t predictions = 1 + shape.mtp_depths;
    if (!shape.tied_output) {
      build.matrix(kOutputMatrix, shape.padded_vocab, shape.hidden, 0, shape.output_matrix_std()).in_forward = true;
      build.last().gradient_uses = static_cast<int>(predictions);
    } else {
      shared.use_words(/*in_forward=*/true, predictions);
    }
    if (has_output_bias(shape)) build.add("output_layer.bias", {shape.padded_vocab}, 0, Init::Zero).in_forward = true;
  }
  return build.take();
}

std::vector<SharedCopies> shared_copies(const ModelShape& shape, const std::vector<StageSpec>& parts,
                                        const schedule::Placement& placement) {
  std::vector<SharedCopies> all = {{kWordEmbedding, {}}};
  const auto hold = [&](SharedCopies& copies, const StageSpec& part) {
    copies.pipeline_ranks.push_back(placement.rank_of(part.stage));
  };
  for (const StageSpec& part : parts)
    if (part.embedding || begins_decoder(shape, part) || (part.output && (shape.tied_output || shape.mtp_depths > 0)))
      hold(all.front(), part);
  if (shape.learned_positions && shape.mtp_depths > 0) {
    all.push_back({kPositionEmbedding, {}});
    for (const StageSpec& part : parts)
      if (part.embedding || part.output) hold(all.back(), part);
  }
  if (shape.position_buckets > 0) {
    for (const bool encoder : {true, false}) {
      all.push_back({ModelShape::position_table(encoder), {}});
      for (const StageSpec& part : parts)
        if (layers_of_stack(shape, part, encoder) > 0) hold(all.back(), part);
    }
  }
  std::erase_if(all, [](SharedCopies& copies) {
    std::vector<int>& ranks = copies.pipeline_ranks;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks.size() < 2;
  });
  return all;
}

std::vector<ParameterSpec> model_parameters(const ModelShape& shape, int tp, int tp_rank) {
  return model_parameters(shape, tp, tp_rank, {whole_model(shape.num_layers)});
}

}  // namespace megatron::plan
