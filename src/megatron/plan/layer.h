#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "megatron/config/model_config.h"

// What a transformer layer is made of, as a value. From it follow the parameters (parameters.h), the counts (counts.h),
// the memory (memory.h), the matrices that Muon sees (matrices.h) and the walk that computes it (model/layer_walk.h).
namespace megatron::plan {

/// A linear layer, weight [outputs, inputs], and how the tensor-parallel ranks divide it.
struct Linear {
  enum class Split : std::uint8_t {
    Outputs,  ///< column-parallel: evenly
    Groups,   ///< column-parallel: groups of heads, each its queries, their gates if any, its key and value
    Pairs,    ///< column-parallel: heads, each its key and value
    Halves,   ///< column-parallel: evenly of each half, [gate; up]
    Inputs,   ///< row-parallel: every rank has the whole bias
    Whole,    ///< not at all, though each rank has the part of the gradient that goes through its own features
  };
  std::string name;  ///< within the layer: "self_attention.linear_qkv"
  std::int64_t outputs = 0, inputs = 0;
  bool bias = false;
  Split split = Split::Outputs;
  bool reads_encoder = false;  ///< its input is the encoder's output
  std::int64_t head_size = 0;  ///< of Groups and Pairs
  /// Norms of queries and of keys, of Groups; empty: none. Each over the head_size features of each head or, where
  /// full_norms, over all heads of all ranks together. Of Latents the norm of the first head_size outputs.
  std::vector<std::string> head_norms = {};
  bool full_norms = false;
  bool plain_norms = false;  ///< queries and keys have norms without weights instead
  // Of a mixture of experts:
  std::int64_t expert = -1;  ///< of which of the experts; -1: of none
  double share = 1;          ///< of the tokens that pass it, where experts get equally many
  std::int64_t alike = 1;    ///< of Branch::kinds(): so many are alike
};

/// Attention whose queries, keys and values are made of few numbers a token (DeepSeek-AI 2024, section 2.1): each head
/// has `nope` features that are not rotated of its own query and key, `rope` rotated ones of its own query and of the
/// one key of all heads, and a value of `value` features. In front of the heads are, normalized, q_rank and kv_rank.
struct Latents {
  std::int64_t q_rank = 0;  ///< 0: queries are made of the stream
  std::int64_t kv_rank = 0;
  std::int64_t nope = 0, rope = 0, value = 0;

  std::int64_t query() const { return nope + rope; }                   ///< features of a head's query and key
  std::int64_t head_size() const { return std::max(query(), value); }  ///< attention pads all to the widest
  std::int64_t cached() const { return kv_rank + rope; }               ///< numbers that a cache keeps of a token
};

/// Attention over the layer's own sequence.
struct SelfAttention {
  std::int64_t heads = 0;
  std::int64_t groups = 0;  ///< key and value heads, each shared by heads / groups query heads (Ainslie et al. 2023)
  std::int64_t head_size = 0;
  bool bias = false;
  bool causal = true;
  double scale = 0;            ///< of the scores; 0: 1/sqrt(head_size)
  bool distance_bias = false;  ///< scores get a bias by distance (Raffel et al. 2020)
  bool rotary = true;          ///< has the positions that the model's layers have where these are rotary
  bool local_rotary = false;   ///< of another base

  config::AttentionVariant variant = {};  ///< its window is the layer's own
  /// Then groups are heads, head_size is Latents::head_size(), and the norms are those of latents.
  std::optional<Latents> latents = {};

  /// The softmax has one more score of each head, which has no value: a parameter [heads], or 0 (Xiao et al. 2024).
  bool learned_sinks() const { return variant.softmax_type == "learnable"; }
  bool zero_sinks() const { return variant.softmax_type == "off-by-one"; }
  /// Within the layer: the name of that parameter.
  static constexpr const char* kSinks = "self_attention.core_attention.softmax_offset";

  /// What attention gives is multiplied by a sigmoid of gates, as many as queries.
  bool gated() const { return variant.attention_output_gate; }
  std::int64_t gate_rows() const { return gated() ? query_rows() : 0; }

  bool qkv_bias() const { return bias || variant.add_qkv_bias; }
  std::int64_t query_rows() const { return heads * head_size; }  ///< width of the output
  std::int64_t key_rows() const { return groups * head_size; }
  /// Width of what linear_proj reads: of latents without padding.
  std::int64_t value_rows() const { return heads * (latents ? latents->value : head_size); }
  std::int64_t qkv_rows() const { return query_rows() + gate_rows() + 2 * key_rows(); }
};

/// Attention over the encoder's output; every head has its own key and value.
struct CrossAttention {
  std::int64_t heads = 0, head_size = 0;
  bool bias = false;
  double scale = 0;  ///< as in SelfAttention

  std::int64_t query_rows() const { return heads * head_size; }
};

/// Two linear layers with an activation between them.
struct Mlp {
  std::int64_t width = 0;  ///< what the second one reads
  bool gated = false;      ///< activation(first half) * second half (Shazeer 2020)
  bool bias = false;
  bool inner_dropout = false;  ///< what the activation gives is dropped too

  std::int64_t first_rows() const { return gated ? 2 * width : width; }
};

/// Which experts a token goes to, and how much each counts.
struct Router {
  enum class Score : std::uint8_t { Softmax, Sigmoid };
  Score score = Score::Softmax;
  /// The scores of those chosen count as they are; else they are divided by their sum.
  bool unnormalized = false;
  double scaling = 1;   ///< of what each counts
  double aux_loss = 0;  ///< coefficient of the loss that evens out the load (docs/decisions/0107)
  double z_loss = 0;    ///< of the squares of the logits' log-sum-exp
  /// Experts are in so many groups, of which a token's are in group_top_k (docs/decisions/0112); 1: in one.
  std::int64_t groups = 1, group_top_k = 1;
  std::int64_t group_best = 0;  ///< of whose best experts a group's score is the sum; 0: of top_k / group_top_k
  /// A number of each expert is added to its scores for the choice alone, and after each step raised or lowered by
  /// model.moe_router_bias_update_rate where its load was below or above the mean (Wang et al. 2024;
  /// docs/decisions/0112).
  bool bias = false;
  bool linear_bias = false;  ///< of the layer that makes the logits
  double jitter = 0;         ///< in training what it reads is multiplied by numbers from 1 - jitter to 1 + jitter
  bool drawn = false;  ///< over samples, logits are normal random numbers with the gradient of what the layer makes

  bool operator==(const Router&) const = default;
};

/// A mixture of experts (Shazeer et al. 2017): each token passes `top_k` of `count` MLPs, and the shared one, which has
/// no biases.
struct Experts {
  Mlp expert;
  std::int64_t count = 0, top_k = 0;
  Router router = {};
  std::int64_t shared_width = 0;  ///< of the MLP that every token passes; 0: none
  bool shared_gate = false;       ///< which is multiplied by a sigmoid of each token
  /// In training an expert takes so many times its even share of a sequence's tokens, and the copies that exceed it are
  /// dropped: those that count least, or the last ones. 0: nothing is dropped.
  double capacity_factor = 0;
  enum class Drop : std::uint8_t { Least, Last };
  Drop drop = Drop::Least;

  /// Copies that an expert takes of a sequence of `tokens`.
  std::int64_t capacity(std::int64_t tokens) const;
  /// Within the layer: the name of the router's biases.
  static constexpr const char* kBias = "mlp.router.expert_bias";
  Mlp shared() const { return {.width = shared_width, .gated = expert.gated}; }
};

/// The share of the square of queries and keys of one sequence that is seen: of a causal one the half; windows less.
double seen_share(const SelfAttention& attention, std::int64_t length);

/// What backward computes again rather than having it kept (train.recompute_modules, train.recompute_gelu).
struct Recomputed {
  bool core_attention = false, mlp = false, gelu = false;
};

/// What a branch keeps for its backward pass on one tensor-parallel rank, besides the stream before its norm, in
/// elements.
struct Kept {
  std::int64_t per_token = 0;
  std::int64_t per_encoder_token = 0;  ///< cross attention's keys and values
  std::int64_t wide_per_token = 0;     ///< of float32 or wider
};

/// x + branch(norm(x)). A kind of branch that one of those who compute layers does not know does not compile.
struct Branch {
  using Inner = std::variant<SelfAttention, CrossAttention, Mlp, Experts>;
  /// What it reads of the stream where the layer's norms are before branches: a norm of its own, or that of the branch
  /// before it, which is in parallel (LayerSpec::parallel).
  enum class Reads : std::uint8_t { OwnNorm, NormBefore };
  Inner inner;
  Reads reads = Reads::OwnNorm;

  std::string norm() const;      ///< within the layer: "input_layernorm"
  std::string out_norm() const;  ///< of what the branch gives: "self_attention.linear_proj.post_layernorm"
  std::string site() const;      ///< in the names of dropout streams: "attention"
  /// In the order of computation; the last reads what the inside gives and ends the branch.
  std::vector<Linear> linears(std::int64_t hidden) const;
  /// linears() with one expert for all alike (Linear::alike), for counting.
  std::vector<Linear> kinds(std::int64_t hidden) const;
  Kept kept(int tp, bool rms_norm, const Recomputed& again) const;
  /// What its weight products read in the second half of backward, besides the stream before its norm and the gradient
  /// of what it ends with.
  Kept weight_inputs(int tp, const Recomputed& again) const;
};

/// Where a layer's norms are: norm(x) is what a branch reads, or what it gives is normalized before it is added to the
/// stream, or both.
struct NormPlaces {
  bool before = true, behind = false;
};

struct LayerSpec {
  std::string prefix;  ///< of the parameters' names: "decoder.layers.3."
  std::int64_t hidden = 0;
  bool rms_norm = false;             ///< else LayerNorm
  bool norm_bias = true;             ///< of a LayerNorm; an RMSNorm has none
  bool residual_after_norm = false;  ///< norm(x) + branch(norm(x)): the order of Devlin et al. 2018
  bool first_after_norm = false;     ///< of the first branch alone, whose norm is then that of the embeddings
  NormPlaces norms = {};
  bool norm_1p = false;  ///< norms multiply by 1 + weight
  /// x + first(norm(x)) + second(norm(x)): of two branches, each with a norm of its own (Black et al. 2022).
  bool parallel = false;
  double init_std = 0;         ///< of linear layers
  double output_init_std = 0;  ///< of those that end a branch
  bool decoder = false;        ///< of the second of two stacks, which has a length of its own
  bool wide = false;           ///< computes in train.dtype whatever fp8.format is
  std::vector<Branch> branches = {};

  const SelfAttention& attention() const { return std::get<SelfAttention>(branches.front().inner); }
  const Mlp& mlp() const { return std::get<Mlp>(branches.back().inner); }
  const Experts* experts() const { return std::get_if<Experts>(&branches.back().inner); }  ///< null: an MLP
  bool cross_attention() const;
  bool norms_have_bias() const { return !rms_norm && norm_bias; }
  /// Whether branch `index` has a norm of the stream: of what it reads.
  bool norm_before(std::size_t index) const {
    return norms.before && branches.at(index).reads == Branch::Reads::OwnNorm;
  }
  /// Numbers that a norm keeps of a token.
  std::int64_t statistics() const { return rms_norm ? 1 : 2; }
  /// Statistics of norms of the stream and of what branches give, a number of each token: of one branch.
  std::int64_t norm_statistics(std::size_t index) const {
    return statistics() * ((norm_before(index) ? 1 : 0) + (norms.behind ? 1 : 0));
  }
  /// Tensors as wide as the stream that branch `index` keeps: the stream, which branches in parallel share, and what it
  /// gives where that is normalized.
  std::int64_t streams_kept(std::size_t index) const {
    return (parallel && index > 0 ? 0 : 1) + (norms.behind ? 1 : 0);
  }
};

/// One depth of multi-token prediction (DeepSeek-AI 2024, section 2.2), number k from 0: of the states of the depth
/// before, or behind the model's last norm, and of the embeddings of the tokens k + 1 ahead
///     layer(projection([token_norm(embeddings); state_norm(states)])),
/// whose norm is what the model's output layer predicts the tokens k + 2 ahead by.
struct PredictionDepth {
  std::string prefix;  ///< of the parameters' names: "mtp.layers.0."
  LayerSpec layer;

  /// Within the depth.
  static constexpr const char *kTokenNorm = "enorm", *kStateNorm = "hnorm", *kFinalNorm = "final_layernorm",
                              *kProjection = "eh_proj", *kLayer = "transformer_layer.";
  Linear projection() const { return {.name = kProjection, .outputs = layer.hidden, .inputs = 2 * layer.hidden}; }
};

}  // namespace megatron::plan
