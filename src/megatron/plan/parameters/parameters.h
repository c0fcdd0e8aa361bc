#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/plan/layer.h"
#include "megatron/plan/stages.h"

namespace megatron::plan {

/// How a parameter's first value is drawn, as a function of its name and of each element's index in the full tensor.
enum class Init : std::uint8_t { Zero, One, Normal, Uniform };

inline constexpr const char* kWordEmbedding = "embedding.word_embeddings.weight";
inline constexpr const char* kOutputMatrix = "output_layer.weight";

/// A range of indices of the full tensor that a rank holds.
struct ShardSlice {
  std::int64_t offset = 0, length = 0;
  /// Ranks of the tensor-parallel group that hold the same piece, and this one's number among them. Each has a part of
  /// the gradient; norms over the model count that of copy 0 alone.
  int copies = 1, copy = 0;

  bool operator==(const ShardSlice&) const = default;
};

/// One parameter: what it is in the whole model, and which slice of it a rank holds.
struct ParameterSpec {
  std::string name;                 ///< Megatron-Core's name, e.g. "decoder.layers.0.mlp.linear_fc1.weight"
  std::vector<std::int64_t> shape;  ///< of the full tensor
  int split_dim = -1;               ///< dimension split over the tensor-parallel group; -1: every rank holds it whole
  /// This rank's slice: these ranges along split_dim, one after the other, in ascending order; empty where it is whole.
  /// Mostly one. The matrix of a gated unit, [gate; up], gives each rank a part of both; one of grouped attention gives
  /// ranks that share a group queries of their own and copies of its key and value.
  std::vector<ShardSlice> pieces = {};
  Init init = Init::Zero;
  double init_std = 0;       ///< of Init::Uniform: the bound, from -init_std to init_std
  bool weight_decay = true;  ///< false for biases and for one-dimensional parameters
  int gradient_uses = 1;     ///< contributions to its gradient a microbatch (2: tied embedding, both uses on this rank)
  int stage = 0;             ///< the pipeline stage it belongs to; what several stages use to the first that does
  /// Backward passes write the gradients of a stage's greater depths first: 0 for embeddings, 1 + the layer's number,
  /// the most for what follows the layers.
  std::int64_t depth = 0;
  bool in_forward = false;  ///< (also) the forward pass writes its gradient: the output layer's, with the loss
  /// A copy of what the rank of an earlier stage has too (shared_copies()): same name, same initial values; gradients
  /// are summed over the ranks that hold one. Norms over the model count the other copy alone.
  bool shared_copy = false;
  bool across_layers = false;  ///< its gradient is written at other depths than its own, or at several
  /// Replicated over the tensor-parallel group and applied to a part of the sequence by each of its ranks where
  /// parallel.sp is on: then its gradient is a partial sum. Norms, biases of row-parallel layers, position embedding.
  bool sequence_partial = false;
  /// Replicated over the tensor-parallel group and applied by each of its ranks to heads of its own: the gradient is a
  /// partial sum whether or not parallel.sp is on. Norms of queries and keys; routers, whose gradient comes through
  /// each rank's features of the experts. Of an expert's adapters: over the ranks that split it.
  bool heads_partial = false;
  /// Of one expert: other ranks of the expert-parallel group have others, and slices are those of as many ranks as
  /// split experts (RankRoles, Weights::Experts).
  bool of_expert = false;

  std::vector<std::int64_t> local_shape() const;
  std::int64_t local_size() const;  ///< elements of the slice
  std::int64_t size() const;        ///< elements of the full tensor
  bool replicated() const { return split_dim < 0; }
  /// A linear layer's weight within the stack of layers: no embedding, head, bias, norm or adapter.
  bool is_layer_matrix() const {
    return shape.size() == 2 && name.find(".layers.") != std::string::npos && name.find(".lora_") == std::string::npos;
  }
  /// The word embedding, or the matrix of an output layer of its own.
  bool is_word_matrix() const { return name == kWordEmbedding || name == kOutputMatrix; }
  /// First index along split_dim of a slice in one piece; 0 where it is whole.
  std::int64_t begin() const { return pieces.empty() ? 0 : pieces.front().offset; }
  /// Whether other ranks of the tensor-parallel group hold some of the slice too, though it is split.
  bool has_copies() const;
};

/// What follows the last layer: an output layer that gives tokens, or the head of a task. Classes: one number a class,
/// of a sample; Options: one number, of each of a question's options; Span: two of each token, of an answer's first and
/// last.
enum class Head : std::uint8_t { Tokens, Classes, Options, Span };

/// Low-rank adapters of linear layers (adapters.h), which are trained while the weights stay as they are.
struct Lora {
  std::int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool rslora = false, dora = false;      ///< dora: each output has a magnitude besides
  std::vector<std::string> targets = {};  ///< names of parts (ProjectionSlice), or "all-linear"

  double scale() const;                        ///< what adapters count
  bool adapts(const std::string& part) const;  ///< whether a part of that name has an adapter
};

/// The sizes that decide the parameters of a model, and what it is besides its layers.
struct ModelShape {
  std::int64_t num_layers = 0, hidden = 0, num_heads = 0, ffn_hidden = 0;  ///< layers of a T5: of both stacks
  std::int64_t vocab = 0;                                                  ///< tokens of the vocabulary
  std::int64_t padded_vocab = 0;  ///< rows of the embedding; those past `vocab` never take part
  std::int64_t max_positions = 0;
  bool tied_output = true;            ///< the output layer is the word embedding
  double init_std = 0.02;             ///< output layers of attention and MLP: init_std / sqrt(2 num_layers)
  double words_init_std = 0;          ///< of embeddings; 0: init_std
  double output_matrix_init_std = 0;  ///< of an output layer of its own; 0: init_std
  bool xavier = false;                ///< matrices are drawn as model.init_method_xavier_uniform says
  bool words_xavier = false;          ///< embeddings too
  // What the layers are; at first GPT-2's.
  std::int64_t num_groups = 0;  ///< key and value heads, each for num_heads / num_groups queries'; 0: num_heads
  std::int64_t head_size = 0;   ///< 0: hidden / num_heads
  bool rms_norm = false;        ///< else LayerNorm
  bool norm_bias = true;        ///< of a LayerNorm; an RMSNorm has none
  bool wide_stream = false;     ///< the residual stream is float32 or wider whatever the parameters are
  bool gated = false;           ///< linear_fc1 is [gate; up], 2 ffn_hidden rows
  bool linear_bias = true;      ///< of every linear layer of the blocks
  config::AttentionVariant attention = {};
  bool residual_after_norm = false;  ///< the order of Devlin et al. 2018 (LayerSpec)
  bool embedding_norm = false;       ///< embeddings pass the first layer's first norm, before the stream begins
  // As of a LayerSpec.
  NormPlaces norms = {};
  bool norm_1p = false, parallel = false;
  bool shared_norm = false;                     ///< branches in parallel read one norm
  bool attention_bias = true, mlp_bias = true;  ///< where linear_bias: of attention's, of the MLPs'
  bool learned_positions = true;                ///< position_embeddings
  std::int64_t position_offset = 0;             ///< rows of these before that of the first position
  // What a kind of model has besides (model_kind.h).
  bool causal = true;            ///< of one stack: tokens see those before them alone (a decoder), or all (an encoder)
  std::int64_t token_types = 0;  ///< rows of tokentype_embeddings; 0: none
  bool sentence_head = false;    ///< pooler and binary_head, for the order of two segments
  /// A dense layer and a norm come before the output layer, which has a bias; the loss is of masked tokens alone
  /// (Devlin et al. 2018).
  bool masked_lm_head = false;
  bool masked_lm_bias = true;  ///< of that dense layer
  bool pooled_tasks = false;   ///< heads of tasks have biases and read the pooled first token; else the last token

  // Of a model for a task.
  Head task_head = Head::Tokens;
  std::int64_t num_classes = 0;  ///< Head::Classes

  bool predicts_tokens() const { return task_head == Head::Tokens; }
  /// Rows of the task's matrix.
  std::int64_t head_rows() const {
    return task_head == Head::Classes ? num_classes : task_head == Head::Options ? 1 : 2;
  }
  /// Layers of the encoder that a decoder reads (Raffel et al. 2020); 0: there is one stack. Layers are counted through
  /// both: the decoder's first is number encoder_layers.
  std::int64_t encoder_layers = 0;
  std::int64_t position_buckets = 0;       ///< of relative positions: rows of each stack's table of biases; 0: none
  std::int64_t position_max_distance = 0;  ///< from which on all share the last bucket

  std::int64_t wide_first = 0, wide_last = 0;  ///< layers of each stack that are LayerSpec::wide
  /// Whether layer number `layer` of all stacks is one of these; never a depth of multi-token prediction.
  bool wide(std::int64_t layer) const;
  std::optional<Lora> lora = {};        ///< adapters that are trained: parameters besides model_parameters()
  std::optional<Experts> experts = {};  ///< in place of an MLP, in every layer whose number moe_layer_freq divides
  std::int64_t moe_layer_freq = 1;
  std::int64_t dense_layers = 0;  ///< but for so many at the beginning
  /// Whether layer `number` has experts, where `layers` do not say it.
  bool has_experts(std::int64_t number) const {
    return experts && number % moe_layer_freq == 0 && number >= dense_layers;
  }
  std::optional<Latents> latents = {};  ///< attention by way of latents; then num_groups and head_size follow
  /// Depths of multi-token prediction, on the stage with the output. Their layers are like the model's last, and are
  /// counted behind it: layer(num_layers + k) is that of depth k.
  std::int64_t mtp_depths = 0;

  PredictionDepth prediction_depth(std::int64_t depth) const;
  /// The numbers of the layers that have experts, those of depths too.
  std::vector<std::int64_t> expert_layers() const;

  double attention_scale = 0;      ///< of scores; 0: 1/sqrt(head())
  double output_scale = 1;         ///< of what the output layer reads
  double logit_soft_cap = 0;       ///< logits x are c tanh(x / c); 0: x
  double embedding_scale = 1;      ///< of what the first layer reads
  bool root_scaled_words = false;  ///< which is also multiplied by the root of hidden, rounded to the model's dtype
  bool inner_dropout = false;      ///< dropout also inside of MLPs and behind the last norm of a stack

  bool encoder_decoder() const { return encoder_layers > 0; }
  /// What the names of the stack that ends in the output begin with.
  std::string stack() const { return causal ? "decoder." : "encoder."; }
  bool in_encoder(std::int64_t layer) const { return !causal || layer < encoder_layers; }
  /// What the names of a layer's parameters begin with: "decoder.layers.3.".
  std::string layer_prefix(std::int64_t layer) const;
  /// Layers where they are not all as the fields say: as many as num_layers. Empty: they are.
  std::vector<LayerSpec> layers = {};
  /// What layer number `number` is made of.
  LayerSpec layer(std::int64_t number) const;
  /// A T5's table of biases [position_buckets, num_heads] of a stack, shared by its layers.
  static std::string position_table(bool encoder) {
    return std::string(encoder ? "encoder" : "decoder") + "_relative_pos_emb.relative_attention_bias.weight";
  }
  bool norms_have_bias() const { return !rms_norm && norm_bias; }
  std::int64_t groups() const { return num_groups > 0 ? num_groups : num_heads; }
  std::int64_t head() const { return head_size > 0 ? head_size : hidden / num_heads; }
  std::int64_t query_rows() const { return num_heads * head(); }  ///< width of the attention's output
  double words_std() const { return words_init_std > 0 ? words_init_std : init_std; }
  double output_matrix_std() const { return output_matrix_init_std > 0 ? output_matrix_init_std : init_std; }
  std::int64_t qkv_rows() const {
    return (attention.attention_output_gate ? 2 : 1) * query_rows() + 2 * groups() * head();
  }
};

/// ParameterSpec::depth of depth k of multi-token prediction.
inline std::int64_t depth_of_prediction(const ModelShape& shape, std::int64_t k) { return 2 + shape.num_layers + k; }

/// Whether the decoder of an encoder-decoder begins in this stage: then it has the word embedding too.
bool begins_decoder(const ModelShape& shape, const StageSpec& part);

/// Smallest multiple of `divisible_by` (and of tp) that is >= vocab. The model's results do not depend on it.
std::int64_t pad_vocab(std::int64_t vocab, std::int64_t divisible_by, int tp);

/// Which experts of each layer a rank holds: equal shares, in order; and of each which slice.
struct ExpertShare {
  int ep = 1, rank = 0;
  int etp = 0, etp_rank = 0;  ///< ranks that split each expert, and this one; 0: the tensor-parallel ones

  /// Ranks that split `linear`, where `tp` split what is of no expert.
  int slices_of(const Linear& linear, int tp) const { return linear.expert >= 0 && etp > 0 ? etp : tp; }
  bool has(std::int64_t expert, std::int64_t count) const { return expert < 0 || expert / (count / ep) == rank; }
};

/// The parameters of a model that one rank holds, in forward order: those of `parts`, its stages in model order, sliced
/// for `tp_rank` of `tp`; of experts its share. Names, shapes and the order of rows in linear_qkv (per group: its
/// queries, key, value) are Megatron-Core's. Where tp is a multiple of the groups, tp / groups ranks share each: they
/// have queries of their own and copies of its key and value. Throws ConfigError where tp or etp does not fit a size.
std::vector<ParameterSpec> model_parameters(const ModelShape& shape, int tp, int tp_rank,
                                            const std::vector<StageSpec>& parts, const ExpertShare& experts = {});

/// Those of the whole model, as one stage.
std::vector<ParameterSpec> model_parameters(const ModelShape& shape, int tp, int tp_rank);

/// A parameter that several pipeline ranks use, and these, ascending.
struct SharedCopies {
  std::string name;
  std::vector<int> pipeline_ranks;
};

/// Those of a model whose stages `parts` are placed so: the word embedding, of the first stage, of the one in which a
/// T5's decoder begins and, where it is tied or tokens ahead are predicted, of the output layer; a T5's tables of
/// biases, each on every rank that has layers of its stack. Only what more than one rank has.
std::vector<SharedCopies> shared_copies(const ModelShape& shape, const std::vector<StageSpec>& parts,
                                        const schedule::Placement& placement);

}  // namespace megatron::plan
