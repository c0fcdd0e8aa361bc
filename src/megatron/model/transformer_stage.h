#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/rope.h"
#include "megatron/model/bert_heads.h"
#include "megatron/model/experts/expert_layer.h"
#include "megatron/model/recompute.h"
#include "megatron/model/sequence/shared_attention.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/stages.h"

namespace megatron::parallel {
class Fp8Scaling;  // fp8.h
}

// s sequence, b microbatch, h hidden, n heads, d head size, f feed-forward, v vocabulary.
namespace megatron::model {

struct StageAdapters;  // block.h

/// What a model computes on: one microbatch. A stage with embedding reads the tokens, the last one labels and mask,
/// each the rest; every stage may be given all. Of ranks that share sequences (TransformerOptions::sequence) s is what
/// a rank has of them (train::sequence_part): then position_ids_bs say where in the sequence.
struct Batch {
  at::Tensor tokens_bs;        ///< [b, s] int64
  at::Tensor labels_bs;        ///< [b, s] int64; undefined for generation
  at::Tensor loss_mask_bs;     ///< [b, s] float32 (float64 for a float64 model); undefined: all ones
  at::Tensor position_ids_bs;  ///< [b, s] int64; undefined: 0, 1, 2, …
  /// [b, s] int32, see kernels::AttentionOptions, of ranks that share sequences for all tokens; undefined: 0
  at::Tensor first_key_bs;
  at::Tensor sample_ids;  ///< [b] int64 on the CPU: which training samples these are, for dropout
  // A BERT's.
  at::Tensor token_types_bs = {};     ///< [b, s] int64; undefined: 0
  at::Tensor key_lengths_b = {};      ///< [b] int32: tokens before the padding; undefined: s
  at::Tensor sentence_labels_b = {};  ///< [b] int64: 1 where the segments are swapped, 0 not; below 0: does not count
  at::Tensor targets = {};            ///< of a model with the head of a task: task_head.h
  /// A T5's: what its decoder reads [b, s_decoder] int64; labels and mask are shaped as these, tokens_bs is the
  /// encoder's, and key_lengths_b are those of the encoder.
  at::Tensor decoder_tokens_bs = {};
  at::Tensor reference_b = {};  ///< [b] float64: of preferences, each text's log-probability under the reference
  at::Tensor prepared = {};     ///< what train::ForwardStep::prepare has made of it; undefined: nothing
  /// Backward recomputes of it what Recompute says of partial microbatches. Changes no result.
  bool partial_recomputation = false;
  double auxiliary_scale = 1;  ///< of the gradients of routers' auxiliary losses: loss()'s gradient_scale
  /// Where the tensors above are on another device: the same on the CPU, where ids are checked and what counts is
  /// counted without waiting for the device. Null: they are looked at where they are.
  std::shared_ptr<const Batch> host = {};
  /// Of ranks that share sequences: what they have of the same samples one token further on (batch_ahead()), whose own
  /// is two further on, as far as depths of prediction read. Null: tokens ahead are looked up in the batch.
  std::shared_ptr<const Batch> ahead = {};
};

/// The loss before any averaging: summed over tokens with mask, and their number. Averaging happens once, over the
/// whole global batch, whatever the layout.
struct LossSum {
  at::Tensor sum;    ///< scalar, differentiable; with the sentence head `sentence_weight` times its sum included
  double count = 0;  ///< sum of the loss mask
  at::Tensor sentence_sum = {};  ///< scalar without graph: the sentence head's loss over samples; undefined: none
  double sentences = 0;          ///< samples that it is a sum over
  /// Of multi-token prediction, in training: of each depth its loss over tokens, a scalar without graph, and their
  /// number. `sum` has their gradients, and not their values.
  std::vector<at::Tensor> depth_sums = {};
  std::vector<double> depth_counts = {};
  at::Tensor task_logits = {};  ///< without graph, of a model with the head of a task (task_head.h); undefined: none
  at::Tensor non_loss = {};     ///< what a function of train::ForwardStep has collected besides; undefined: nothing
  at::Tensor figures = {};      ///< [n] without graph: sums, as `sum`, of train::ForwardStep::figures; undefined: none
};

struct LayerRouterCounts {
  std::int64_t layer = 0;  ///< its number in the model
  RouterCounts counts;
};

struct TransformerOptions {
  plan::ModelShape shape;
  kernels::Activation activation = kernels::Activation::GeluTanh;
  kernels::RopeOptions rope;        ///< rotary_dim 0: no rotary positions
  kernels::RopeOptions local_rope;  ///< of layers whose attention is local_rotary; rotary_dim 0: there are none
  /// Positions that the table of rotations is made for, as many as sequences have; 0: shape.max_positions.
  std::int64_t rope_positions = 0;
  double layernorm_epsilon = 1e-5;
  double hidden_dropout = 0, attention_dropout = 0;
  double label_smoothing = 0;
  double mtp_loss_scaling_factor = 0.1;  ///< multiplies the mean of the losses of multi-token prediction
  std::int64_t loss_chunk_tokens = 1024;
  /// Between the layers each rank has its part of the sequence, which must divide by the ranks of tp
  /// (parallel/linear.h).
  bool sequence_parallel = false;
  Recompute recompute;
  comm::Group experts = {};  ///< the ranks that share the experts of each layer
  int expert_slices = 0;     ///< of these, neighbours that have a slice each of the same ones (ExpertLayer); 0: none
  SharedSequence sequence = {};
  std::uint64_t seed = 1234;  ///< of dropout
  /// Adapters beside the weights of a model that only computes forward (block.h); null: there are none.
  std::shared_ptr<const StageAdapters> kept = {};
  /// Of linear layers that compute in 8 bits (plan::fp8_layers), which pass after pass writes; null: none does.
  std::shared_ptr<parallel::Fp8Scaling> fp8 = {};
};

/// One pipeline stage of a transformer, or the whole model as the only one, tensor-parallel over `tp`. What it is made
/// of the shape says: a stack of decoder layers (GPT-2, Llama, …); encoder layers with the heads of a BERT; or both,
/// the second with cross attention (T5). Results do not depend on how layers are split into stages. Stores only the
/// group and its parameters; must outlive the graphs that it records.
class TransformerStage {
 public:
  /// `parameters`: at least those of `part`. A tied output layer finds its weight in them by the embedding's name.
  TransformerStage(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
                   comm::Group tp);
  /// The whole model.
  TransformerStage(TransformerOptions options, const parallel::ParameterStore& parameters, comm::Group tp);

  /// Forward pass of a stage that is not the last: x [s, b, h] (sequence_parallel: [s/t, b, h]) from the stage before,
  /// undefined on the first -> the same for the next. Where a T5's decoder has begun, what goes from stage to stage is
  /// two tensors, the encoder's states and the decoder's stream, one after the other along the sequence: so the
  /// gradient of the states comes back with that of the stream, each stage's added to it. The result's memory is the
  /// caller's: nothing recorded keeps it. Go backward with parallel::GraphLeaf and GraphRoot. Communication and
  /// `training` as for loss().
  at::Tensor forward(at::Tensor x, const Batch& batch, bool training) const;

  /// Forward pass of the last stage, with loss: of ranks that share sequences of their own tokens. Collective over
  /// these, which exchange keys and values or heads (sequence/shared_attention.h), and over tp: 2 all-reduces a layer
  /// forward, 2 backward, one for the embedding forward, one for the gradient of the last hidden state, and two
  /// [tokens]-sized ones a chunk of the loss; what is computed again in the backward pass is sent again. `training`
  /// turns dropout on and records for backward (where autograd is on): go backward from loss.sum once, as the sum is;
  /// gradients arrive in the parameters' buffers times `gradient_scale`, the output layer's already in this call
  /// (parallel/output_layer.h). Without `training` nothing is kept and nothing written. Throws ConfigError for a token,
  /// position or counted label outside the model's. With the head of a task the sum and the count are those of its
  /// targets (task_head.h). A BERT's sentence head adds `sentence_weight` times its sum over samples: with tokens that
  /// count / samples, of the whole global batch, the mean over tokens is that of the tokens plus that of the samples.
  /// With `training` depths of multi-token prediction add their losses times mtp_loss_scaling_factor / depths to the
  /// gradients: each as communication of one layer and one loss more, an embedding and PredictionModules::input().
  LossSum loss(at::Tensor x, const Batch& batch, bool training, double gradient_scale = 1,
               double sentence_weight = 1) const;

  /// loss() of the whole model.
  LossSum loss(const Batch& batch, bool training) const { return loss({}, batch, training); }

  /// Logits [b, s, vocab] of the whole model (full vocabulary gathered, padding cut), no dropout. Collective over tp.
  /// One token at a time: decode.h.
  at::Tensor logits(const Batch& batch) const;

  /// Logits [s, b, vocab] of the last stage for a loss of one's own (train::ForwardStep): whole on every rank of tp,
  /// which must all compute the same loss of them, and differentiable where `training`. x, `training` as for loss();
  /// unlike there, all logits exist at once. Collective over tp.
  at::Tensor logits(at::Tensor x, const Batch& batch, bool training) const;

  /// Forward pass of the last stage without its heads: the states behind the last norm [s, b, h] (sequence_parallel:
  /// [s/t, b, h]), which another head takes. x, communication and `training` as for loss().
  at::Tensor states(at::Tensor x, const Batch& batch, bool training) const;

  /// What the routers of the stage's layers counted since they were asked last.
  std::vector<LayerRouterCounts> take_router_counts() const;

  /// Of the last stage of a BERT.
  const BertHeads& heads() const;

  const TransformerOptions& options() const;
  ~TransformerStage();
  TransformerStage(TransformerStage&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::model
