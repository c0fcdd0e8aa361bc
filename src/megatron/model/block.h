#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/dropout.h"
#include "megatron/model/experts/expert_layer.h"
#include "megatron/model/operators.h"
#include "megatron/parallel/kept_adapters.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/layer.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/ranks/sequence_share.h"

namespace megatron::parallel {
class Fp8Scaling;  // fp8.h
}

namespace megatron::model {

/// Low-rank adapters that a stage keeps beside its weights, where nothing is trained, and which of them each sequence
/// of a batch has.
struct StageAdapters {
  /// One of them: its matrices on this rank, by the names of plan::adapter_parameters().
  struct One {
    plan::Lora lora;
    std::map<std::string, parallel::ParameterPtr> matrices;
    parallel::ParameterPtr find(const std::string& name) const {
      const auto found = matrices.find(name);
      return found == matrices.end() ? nullptr : found->second;
    }
  };
  std::vector<One> all;  ///< number i + 1 of parallel::AdapterChoice at i
  std::shared_ptr<parallel::AdapterChoice> choice = std::make_shared<parallel::AdapterChoice>();
};

/// What latent attention (latent_attention.h) is made of, of s rows of b sequences and n heads of this rank.
struct LatentInput {
  at::Tensor q;                                   ///< [s, b, n * (nope + rope)] queries, not yet rotated
  at::Tensor latent;                              ///< [s, b, kv_rank] of keys and values, normalized
  parallel::RecomputeFunction latent_again = {};  ///< latent again
  at::Tensor key;                                 ///< [s, b, rope] of all heads, not yet rotated
};

/// How a block's attention is computed from its fused projection: over the sequence itself, or over a cache; for all
/// rows or, without gradients, for the last ones alone.
struct Attend {
  std::function<Recomputable(const at::Tensor& qkv)> heads;
  /// Of a layer with latents over a cache of these, [s, b, n * value]; null: of heads made of them.
  std::function<Recomputable(const LatentInput& in)> latents = {};

  template <class Heads>
  requires std::is_invocable_r_v<Recomputable, Heads, const at::Tensor&> Attend(Heads of_heads)
      : heads(std::move(of_heads)) {}
};

/// What cross attention reads: the encoder's states [k, b, h] (with sequence_parallel this rank's part), and how it is
/// computed from the projection of queries and that of keys and values.
struct EncoderOutput {
  at::Tensor states;
  std::function<Recomputable(const at::Tensor& q, const at::Tensor& kv)> attend;
};

/// A branch of a layer on its parameters.
struct BranchModules {
  plan::Branch spec;
  Norm norm;                                       ///< of the stream: what the branch reads
  std::vector<parallel::ColumnParallelLinear> in;  ///< spec.linears() but the last
  parallel::RowParallelLinear out;                 ///< the last
  std::optional<ExpertLayer> experts = {};         ///< of plan::Experts: all of its layers, `in` and `out` have none
  std::vector<Norm> head_norms = {};               ///< of queries and keys, or of latents; or none
  std::optional<Norm> out_norm = {};               ///< of what the branch gives
  parallel::ParameterPtr sinks = nullptr;          ///< of self attention: [heads] scores without values, or null
  at::Tensor zero_sinks = {};                      ///< instead where they are all 0; undefined: there are none
  // Of attention, on this rank.
  std::int64_t heads = 0, groups = 0, head_size = 0;
};

/// One transformer layer, split by heads and by feed-forward features over `tp`, as its description has it: of each
/// branch x + out(inside(in(norm(x)))), pre-norm (Radford et al. 2019; Shoeybi et al. 2019, figure 7 (b)). Or, with
/// residual_after_norm, norm(x) + …: the order of Devlin et al. 2018, where each layer ends with the norm that is here
/// the next one's first. Or x + norm(out(…)), with or without the first norm; or both branches of the same x. The norm
/// that begins the next block (or ends the model) belongs to the pass that ends this
/// one. Communication: an all-reduce per branch forward, and one backward; cross attention two backward; with
/// sequence_parallel see parallel/linear.h.
class Block {
 public:
  /// How the layers of a model are computed, besides what they are.
  struct Options {
    double epsilon = 1e-5;
    kernels::Activation activation = kernels::Activation::GeluTanh;
    bool sequence_parallel = false;                  ///< the stream is this rank's part of the sequence, [s/t, b, h]
    bool keep_activation = false;                    ///< the activation's output is kept rather than computed again
    bool recompute_mlp = false;                      ///< both are, from the stream
    comm::Group experts = {};                        ///< the ranks that share a layer's experts
    int expert_slices = 0;                           ///< ExpertLayer::Options::slices
    std::optional<plan::Lora> lora = {};             ///< adapters of its linear layers, among the parameters
    std::shared_ptr<const StageAdapters> kept = {};  ///< TransformerOptions::kept
    std::uint64_t seed = 0;                          ///< of their dropout
    plan::SequenceShare sequence = {};               ///< the tokens of each sequence that the stream has
    comm::Group sequence_ranks = {};                 ///< who have the others
    std::shared_ptr<parallel::Fp8Scaling> fp8 = {};  ///< of linear layers that compute in 8 bits; null: none does
  };

  Block(const parallel::ParameterStore& parameters, const plan::LayerSpec& layer, const Options& options,
        const comm::Group& tp);

  const std::vector<BranchModules>& branches() const { return branches_; }
  const BranchModules& attention() const { return branches_.front(); }
  const Norm& input_norm() const { return branches_.front().norm; }
  const comm::Group& tp() const { return tp_; }
  const Options& options() const { return options_; }
  /// Whether what branch `index` gives is added to the norm that it read, rather than to the stream.
  bool residual_after_norm(std::size_t index) const {
    return residual_after_norm_ || (first_after_norm_ && index == 0);
  }
  /// Whether the branch that follows number `index` reads the stream as it was before that one.
  bool reads_same_stream(std::size_t index) const { return parallel_ && index + 1 < branches_.size(); }
  /// Whether it reads the same norm of it too.
  bool shares_norm(std::size_t index) const {
    return reads_same_stream(index) && branches_[index + 1].spec.reads == plan::Branch::Reads::NormBefore;
  }

  /// The projection of what cross attention reads, for who keeps it: then EncoderOutput::states may be undefined, and
  /// EncoderOutput::attend gets no kv.
  at::Tensor cross_keys_and_values(const at::Tensor& states) const;

  struct Sites {
    std::vector<kernels::Dropout> outputs = {};  ///< of each branch; empty: none
    kernels::Dropout mlp_inner = {};             ///< on this rank's features
    RouterSite router = {};
    at::Tensor adapted_samples = {};  ///< [b] int64: of a pass that drops what adapters read; undefined: none does
  };
  /// `in`: the stream and input_norm() of it -> the stream after the block and, where not null, `next` of it.
  /// `value`: whether the stream after the block is read; where it is not, `next` is null. `encoder_output`: of a block
  /// with cross attention. An attention that gives the last rows alone leaves only these to what follows. `partial`: of
  /// a microbatch that recomputes in part, which keeps what others do not (recompute_mlp).
  Normed forward(Normed in, const Attend& attend, const Sites& dropout, const Norm* next,
                 parallel::Value value = parallel::Value::Needed, const EncoderOutput* encoder_output = nullptr,
                 bool partial = false) const;

 private:
  std::vector<BranchModules> branches_;
  Options options_;
  comm::Group tp_;
  bool residual_after_norm_, first_after_norm_, parallel_;
};

/// What the norms of a model have in common: of a plan::LayerSpec, or of a plan::ModelShape.
struct NormKind {
  double epsilon = 1e-5;
  bool rms = false, bias = true, one_plus = false;  ///< bias: of a layer normalization

  NormKind(double added, const plan::LayerSpec& layer)
      : epsilon(added), rms(layer.rms_norm), bias(layer.norm_bias), one_plus(layer.norm_1p) {}
  NormKind(double added, const plan::ModelShape& shape)
      : epsilon(added), rms(shape.rms_norm), bias(shape.norm_bias), one_plus(shape.norm_1p) {}
};

/// The norm whose parameters are `prefix`weight and, where it has a bias, `prefix`bias.
Norm norm_of(const parallel::ParameterStore& parameters, const std::string& prefix, const NormKind& kind);

/// The projection with its queries and keys normalized as the branch has it; in qkv's memory. Collective over `tp`
/// where that is over all heads.
at::Tensor normalized_queries_and_keys(const at::Tensor& qkv, const BranchModules& branch, const comm::Group& tp);

}  // namespace megatron::model
