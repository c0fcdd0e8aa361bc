#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/dropout.h"
#include "megatron/model/operators.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"

namespace megatron::model {

/// How a block's attention is computed from its fused projection: over the sequence itself, or over a cache; for all
/// rows or, without gradients, for the last ones alone.
using Attend = std::function<Remakeable(const at::Tensor& qkv)>;

/// What cross attention reads: the encoder's states [k, b, h] (with sequence_parallel this rank's part), and how it is
/// computed from the projection of queries and that of keys and values.
struct Memory {
  at::Tensor states;
  std::function<Remakeable(const at::Tensor& q, const at::Tensor& kv)> attend;
};

/// One transformer block split by heads and by feed-forward features over `tp`: x + proj(attention(norm(x))), then the
/// same with fc2(activation(fc1(norm(x)))): pre-norm (Radford et al. 2019; Shoeybi et al. 2019, figure 7 (b)). Or, with
/// residual_after_norm, norm(x) + … both times: the order of Devlin et al. 2018, where each block ends with the norm
/// that is here the next one's first. The norm that begins the next block (or ends the model) belongs to the pass that
/// ends this one. Communication: two all-reduces forward, two backward;
/// with sequence_parallel see parallel/linear.h. A T5's decoder has cross attention between the two, x + proj(attention
/// (q of norm(x), k and v of the encoder's states)): one all-reduce more forward, two backward.
class Block {
 public:
  struct Options {
    double epsilon = 1e-5;
    MlpActivation activation = {};
    bool residual_after_norm = false;
    bool rms_norm = false;           ///< norms without bias: RMSNorm
    bool linear_bias = true;         ///< of the linear layers
    bool qkv_bias = true;            ///< of the fused projection
    bool sequence_parallel = false;  ///< the stream is this rank's part of the sequence, [s/t, b, h]
    bool keep_activation = false;    ///< the activation's output is kept rather than computed again
    bool recompute_mlp = false;      ///< and its input is computed again too, from the stream
    bool cross_attention = false;
  };

  /// `prefix`: "decoder.layers.3."
  Block(const parallel::ParameterStore& parameters, const std::string& prefix, const Options& options,
        const comm::Group& tp);

  const Norm& input_norm() const { return input_norm_; }
  // The rest of what it is made of, for who computes that in another way (token_step.h).
  const Norm& mlp_norm() const { return mlp_norm_; }
  const parallel::ColumnParallelLinear& qkv() const { return qkv_; }
  const parallel::RowParallelLinear& proj() const { return proj_; }
  const parallel::ColumnParallelLinear& fc1() const { return fc1_; }
  const parallel::RowParallelLinear& fc2() const { return fc2_; }
  const Options& options() const { return options_; }

  /// The projection of what cross attention reads, for who keeps it: then Memory::states may be undefined, and
  /// Memory::attend gets no kv.
  at::Tensor cross_keys_and_values(const at::Tensor& states) const { return cross_->kv.forward(states); }

  struct Sites {
    kernels::Dropout attention_output, mlp_output;
    kernels::Dropout cross_output = {}, mlp_inner = {};  ///< a T5's: the latter on this rank's features
  };
  /// `in`: the stream and input_norm() of it -> the stream after the block and, where not null, `next` of it.
  /// `value`: whether the stream after the block is read; where it is not, `next` is null. `memory`: of a block with
  /// cross attention.
  Normed forward(Normed in, const Attend& attend, const Sites& dropout, const Norm* next,
                 parallel::Value value = parallel::Value::Needed, const Memory* memory = nullptr) const;

 private:
  const at::Tensor& residual_of(const Normed& in) const { return options_.residual_after_norm ? in.y : in.residual; }

  struct Cross {
    Norm norm;
    parallel::ColumnParallelLinear q, kv;
    parallel::RowParallelLinear proj;
  };
  /// The stream and its norm before cross attention -> the same before the MLP.
  Normed across(Normed in, const Memory& memory, const kernels::Dropout& dropout) const;

  Norm input_norm_, mlp_norm_;
  parallel::ColumnParallelLinear qkv_, fc1_;
  parallel::RowParallelLinear proj_, fc2_;
  std::optional<Cross> cross_;
  Options options_;
};

/// The norm whose parameters are `prefix`weight and, but for RMSNorm, `prefix`bias.
Norm norm_of(const parallel::ParameterStore& parameters, const std::string& prefix, double epsilon, bool rms);

}  // namespace megatron::model
