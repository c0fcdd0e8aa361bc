#include "megatron/model/transformer_stage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/model/attention.h"
#include "megatron/model/operators.h"
#include "megatron/model/stage_modules.h"
#include "megatron/parallel/backward.h"
#include "megatron/parallel/sequence_rows.h"

// s sequence, b microbatch, h hidden, n heads of this rank, d head size.
namespace megatron::model {
namespace {

/// The dropout of one site in one pass over a microbatch.
kernels::Dropout site(double p, std::uint64_t seed, const std::string& name, const at::Tensor& sample_ids) {
  if (p == 0) return {};
  kernels::Dropout dropout;
  dropout.p = p;
  dropout.key = stream_key(seed, "dropout/" + name);
  dropout.sample_ids = sample_ids;
  return dropout;
}

bool has_router(const Block& block) { return block.branches().back().experts.has_value(); }

}  // namespace

/// What the blocks need to know of a microbatch and of the pass over it: little, as what is computed again keeps it.
struct Pass {
  at::Tensor sample_ids, first_key_bs, position_ids_bs, key_lengths_b;
  bool training;
  bool partial = false;                    ///< the microbatch recomputes in part
  RelativeBias::Distances distances = {};  ///< of a T5's stack under way
  RouterSite router = {};
};

struct TransformerStage::Impl {
  TransformerOptions options;
  plan::StageSpec part;
  comm::Group tp;
  at::TensorOptions precise;  ///< of losses: float32, or float64 where the parameters are
  StageModules modules;
  bool has_routers = false;                              ///< some layer of the stage is a mixture of experts
  std::vector<plan::LayerGroup> groups, partial_groups;  ///< the second of microbatches with partial_recomputation

  Impl(TransformerOptions o, const plan::StageSpec& p, const parallel::ParameterStore& parameters, comm::Group group);

  void need_whole_model() const {
    if (part != plan::whole_model(options.shape.num_layers))
      throw std::logic_error("only the whole model gives logits, not a pipeline stage");
  }

  /// What is the same in all passes over the microbatch.
  Pass pass_of(const Batch& batch, bool training) const;
  /// The embedding of the microbatch, before its dropout and after it.
  at::Tensor looked_up(const Batch& batch) const;
  at::Tensor embed(const Batch& batch, const Pass& pass) const;
  /// Embeddings, as a stream begins with them: those that are not trained begin no graph, in which layers could go back
  /// to their adapters.
  at::Tensor beginning(at::Tensor x, const Pass& pass) const;
  /// embed() of what a T5's decoder reads.
  at::Tensor embed_decoder(const Batch& batch, const Pass& pass) const;
  /// What follows the norm behind the last layer of a stack: of a T5 after dropout.
  at::Tensor end_of_stack(const at::Tensor& y, const Pass& pass, const char* name) const;

  /// The stage without its output layer: x, undefined with embedding, -> what follows the last layer, and the final
  /// norm where that is this stage's.
  at::Tensor hidden(at::Tensor x, const Batch& batch, Pass pass) const;
  /// hidden() as the output layer takes it.
  at::Tensor hidden(at::Tensor x, const Batch& batch, bool training) const {
    const at::Tensor y = hidden(std::move(x), batch, pass_of(batch, training));
    return part.output ? modules.for_output(y) : y;
  }

  /// Of each depth of multi-token prediction its states behind its norm, from those of the model, and what it predicts.
  struct Predictions {
    std::vector<at::Tensor> states;
    std::vector<Batch> batches;
  };
  Predictions predictions(const at::Tensor& states, const Batch& batch, const Pass& pass) const;
  at::Tensor depth_states(std::size_t depth, const at::Tensor& states, const at::Tensor& embeddings,
                          const Pass& pass) const;
  /// Adds to `loss` the gradients of theirs.
  void add_predictions(LossSum& loss, const Predictions& ahead, double gradient_scale) const;

  /// Of the tokens that the rows `x_sbh` are of, in the stack of layer `layer` of the stage.
  RelativeBias::Distances distances(const at::Tensor& x_sbh, std::int64_t layer) const;
  AttentionForm attention_form(const Pass& pass, const BranchModules& branch, std::int64_t number,
                               kernels::AttentionOptions asked) const;
  Attend attention(const Pass& pass, std::int64_t number, const Block& block) const;
  EncoderOutput encoder_output(const Pass& pass, std::int64_t number, const BranchModules& branch,
                               const at::Tensor& states) const;
  /// The dropouts of a block on rows `rows` of the stream.
  Block::Sites sites(const Pass& pass, std::int64_t number, const Block& block, const at::Tensor& rows) const;
  /// What the routers of every layer are asked.
  RouterSite router_site(const Batch& batch) const;
  /// The dropout of one site on rows `x_sbh` of the stream.
  kernels::Dropout stream_site(const Pass& pass, const std::string& name, const at::Tensor& x_sbh) const;

  /// Whether the embedding's dropout is that of its norm, which belongs to the first layer.
  bool drops_after_norm(const Pass& pass) const {
    // In the original order it follows the norm, which is the first layer's; so does that of normalized embeddings.
    const bool after = options.shape.residual_after_norm || options.shape.embedding_norm;
    return after && pass.training && options.hidden_dropout > 0;
  }
  /// Whether each rank keeps its part of the inputs of layers that are recomputed.
  bool splits_inputs() const {
    return options.recompute.distribute_inputs && !options.sequence_parallel && tp.size() > 1;
  }

  /// The sum over tokens of what follows the last layer, and over samples.
  LossSum loss_of(const at::Tensor& hidden, const Batch& batch, double gradient_scale, double sentence_weight) const;

  /// loss_of() with the head of a task.
  LossSum task_loss(const at::Tensor& hidden, const Batch& batch, bool training, double gradient_scale) const;

  /// Layers [first, last) of the stage.
  /// `value`: whether the stream after the last of them is read.
  /// `states`: the encoder's, of layers with cross attention.
  Normed run_blocks(at::Tensor x_sbh, const at::Tensor& states, const plan::LayerGroup& group, const Norm* next,
                    const Pass& pass, parallel::Value value = parallel::Value::Needed) const;
  /// run_blocks(), computed again in the backward pass where the group is; `next`, which may be null, of the stream or,
  /// of null, the stream.
  at::Tensor run_group(at::Tensor x_sbh, const at::Tensor& states, const plan::LayerGroup& group, const Norm* next,
                       const Pass& pass) const;
};

TransformerStage::Impl::Impl(TransformerOptions o, const plan::StageSpec& p, const parallel::ParameterStore& parameters,
                             comm::Group group)
    : options(o),
      part(p),
      tp(std::move(group)),
      precise(parameters.options().dtype(parameters.dtype() == at::kDouble ? at::kDouble : at::kFloat)),
      modules(options, part, parameters, tp),
      has_routers(std::ranges::any_of(modules.blocks, has_router) ||
                  std::ranges::any_of(modules.depths, has_router, &PredictionModules::block)),
      groups(plan::layer_groups(options.recompute.whole_layers(), p, options.shape.encoder_layers)),
      partial_groups(plan::layer_groups(options.recompute.whole_layers(), p, options.shape.encoder_layers, true)) {}

kernels::Dropout TransformerStage::Impl::stream_site(const Pass& pass, const std::string& name,
                                                     const at::Tensor& x_sbh) const {
  auto dropout = site(pass.training ? options.hidden_dropout : 0, options.seed, name, pass.sample_ids);
  if (options.sequence_parallel) dropout.position_offset = tp.rank() * x_sbh.size(0);
  parallel::place_rows(dropout, options.sequence.share(), x_sbh.size(0) * (options.sequence_parallel ? tp.size() : 1));
  return dropout;
}

RelativeBias::Distances TransformerStage::Impl::distances(const at::Tensor& x_sbh, std::int64_t layer) const {
  const std::int64_t s = x_sbh.size(0) * (options.sequence_parallel ? tp.size() : 1) * options.sequence.ranks.size();
  const bool encoder = options.shape.in_encoder(part.first_layer + layer);
  return (encoder ? modules.encoder_bias : modules.decoder_bias)->between(s, s);
}

AttentionForm TransformerStage::Impl::attention_form(const Pass& pass, const BranchModules& branch, std::int64_t number,
                                                     kernels::AttentionOptions asked) const {
  AttentionForm form{.groups = branch.groups,
                     .head_size = branch.head_size,
                     .rotary = {},
                     .options = std::move(asked),
                     .again = options.recompute.attention_core && !pass.partial};
  form.options.dropout = site(pass.training ? options.attention_dropout : 0, options.seed,
                              concat("layer ", number, "/", branch.spec.site()), pass.sample_ids);
  form.options.head_offset = tp.rank() * branch.heads;
  return form;
}

Attend TransformerStage::Impl::attention(const Pass& pass, std::int64_t number, const Block& block) const {
  return [this, &pass, number, &branch = block.attention()](const at::Tensor& qkv) {
    const auto& spec = std::get<plan::SelfAttention>(branch.spec.inner);
    AttentionForm form = attention_form(pass, branch, number,
                                        attention_options(spec, {.s = qkv.size(0) * options.sequence.ranks.size(),
                                                                 .b = qkv.size(1),
                                                                 .first_key_bs = pass.first_key_bs,
                                                                 .device = qkv.device()}));
    form.sequence = options.sequence;
    form.sinks = branch.sinks;
    form.options.sinks = branch.zero_sinks;
    form.rotary = {modules.rope_of(spec), pass.position_ids_bs};
    // What pads a T5's decoder comes after all that counts.
    if (!spec.causal || !options.shape.encoder_decoder()) form.options.key_lengths = pass.key_lengths_b;
    if (spec.distance_bias) {
      form.options.bias = pass.distances.values;
      form.bias_gradient = [bias = *(spec.causal ? modules.decoder_bias : modules.encoder_bias),
                            buckets = pass.distances.buckets](const at::Tensor& dvalues) {
        bias.add_gradient(dvalues, buckets);
      };
    }
    return self_attention(qkv, form);
  };
}

EncoderOutput TransformerStage::Impl::encoder_output(const Pass& pass, std::int64_t number, const BranchModules& branch,
                                                     const at::Tensor& states) const {
  AttentionForm form =
      attention_form(pass, branch, number, attention_options(std::get<plan::CrossAttention>(branch.spec.inner)));
  form.options.key_lengths = pass.key_lengths_b;
  form.sequence = options.sequence;
  return {states, [form](const at::Tensor& q, const at::Tensor& kv) { return cross_attention(q, kv, form); }};
}

Block::Sites TransformerStage::Impl::sites(const Pass& pass, std::int64_t number, const Block& block,
                                           const at::Tensor& rows) const {
  Block::Sites sites;
  sites.router = pass.router;
  if (pass.training && options.shape.lora && options.shape.lora->dropout > 0)
    sites.adapted_samples = sites.router.adapted_samples = pass.sample_ids;
  for (const BranchModules& branch : block.branches()) {
    const std::string name = concat("layer ", number, "/", branch.spec.site());
    sites.outputs.push_back(stream_site(pass, name + " output", rows));
    if (const auto* experts = std::get_if<plan::Experts>(&branch.spec.inner)) {
      sites.router.jitter = site(experts->router.jitter, options.seed, name + " router", pass.sample_ids);
      sites.router.logits = site(experts->router.drawn ? 1 : 0, options.seed, name + " logits", pass.sample_ids);
      for (kernels::Dropout* const drawn : {&sites.router.jitter, &sites.router.logits})
        parallel::place_rows(*drawn, options.sequence.share(),
                             rows.size(0) * (options.sequence_parallel ? tp.size() : 1));
    }
    const auto* mlp = std::get_if<plan::Mlp>(&branch.spec.inner);
    if (mlp == nullptr || !mlp->inner_dropout) continue;
    sites.mlp_inner = site(pass.training ? options.hidden_dropout : 0, options.seed, name + " inner", pass.sample_ids);
    sites.mlp_inner.features = mlp->width;
    sites.mlp_inner.feature_offset = mlp->width / tp.size() * tp.rank();
    parallel::place_rows(sites.mlp_inner, options.sequence.share(),
                         rows.size(0) * (options.sequence_parallel ? tp.size() : 1));
  }
  return sites;
}

Normed TransformerStage::Impl::run_blocks(at::Tensor x_sbh, const at::Tensor& states, const plan::LayerGroup& group,
                                          const Norm* next, const Pass& pass, parallel::Value value) const {
  const auto rows = x_sbh.detach();  // of the stream, whose size the dropout sites need
  const auto block = [&](std::int64_t l) -> const Block& { return modules.blocks[static_cast<std::size_t>(l)]; };
  auto stream = normalized(std::exchange(x_sbh, {}), block(group.first).input_norm());
  if (drops_after_norm(pass) && part.first_layer + group.first == 0) {
    stream.y = dropout(stream.y, stream_site(pass, "embedding", rows));
    stream.recompute_fn = {};
  }
  for (std::int64_t l = group.first; l < group.last; ++l) {
    const bool last = l + 1 == group.last;
    const std::int64_t number = part.first_layer + l;
    EncoderOutput across;
    for (const BranchModules& branch : block(l).branches())
      if (std::holds_alternative<plan::CrossAttention>(branch.spec.inner))
        across = encoder_output(pass, number, branch, states);
    stream = block(l).forward(std::move(stream), attention(pass, number, block(l)), sites(pass, number, block(l), rows),
                              last ? next : &block(l + 1).input_norm(), last ? value : parallel::Value::Needed, &across,
                              pass.partial);
  }
  return stream;
}

namespace {

/// What modules.embed() checks, where the ids themselves are on another device.
HostIds host_ids(const Batch& batch) {
  if (!batch.host) return {};
  const auto turned = [](const at::Tensor& x) { return x.defined() ? x.t().contiguous() : x; };
  HostIds host{.tokens_sb = turned(batch.host->tokens_bs),
               .positions_sb = turned(batch.host->position_ids_bs),
               .types_sb = turned(batch.host->token_types_bs)};
  const std::int64_t s = host.tokens_sb.size(0), b = host.tokens_sb.size(1);
  if (!host.positions_sb.defined()) host.positions_sb = counted_positions(s, b, at::kCPU);
  if (!host.types_sb.defined()) host.types_sb = at::zeros_like(host.tokens_sb);
  return host;
}

parallel::VocabParallelOutput::Labels host_labels(const Batch& batch, at::ScalarType precise) {
  if (!batch.host) return {};
  const at::Tensor labels_sb = batch.host->labels_bs.t().contiguous();
  return {labels_sb, batch.host->loss_mask_bs.defined() ? batch.host->loss_mask_bs.t().contiguous()
                                                        : at::ones_like(labels_sb, precise)};
}

}  // namespace

RouterSite TransformerStage::Impl::router_site(const Batch& batch) const {
  const at::Tensor& mask = batch.loss_mask_bs;
  const auto tokens = mask.defined() ? mask.sum(1, false, at::kDouble)
                                     : at::full({batch.tokens_bs.size(0)}, static_cast<double>(batch.tokens_bs.size(1)),
                                                batch.tokens_bs.options().dtype(at::kDouble));
  options.sequence.ranks.all_reduce(tokens);
  // What the loss is a sum over: tokens, or pairs of texts.
  const at::Tensor shares = batch.reference_b.defined() ? tokens.gt(0).to(at::kDouble) / 2 : tokens;
  return {.sequence_weights_b = shares * batch.auxiliary_scale,
          .sequence = options.sequence.ranks,
          .loss_scale = batch.auxiliary_scale};
}

at::Tensor TransformerStage::Impl::looked_up(const Batch& batch) const {
  const auto tokens_sb = batch.tokens_bs.t().contiguous();
  const auto positions_sb = batch.position_ids_bs.defined()
                                ? batch.position_ids_bs.t().contiguous()
                                : counted_positions(tokens_sb.size(0), tokens_sb.size(1), tokens_sb.device());
  const auto types_sb = batch.token_types_bs.defined() ? batch.token_types_bs.t().contiguous() : at::Tensor();
  return modules.embed(tokens_sb, positions_sb, types_sb, host_ids(batch));
}

at::Tensor TransformerStage::Impl::embed(const Batch& batch, const Pass& pass) const {
  const auto x = looked_up(batch);
  return drops_after_norm(pass) ? x : dropout(x, stream_site(pass, "embedding", x));
}

at::Tensor TransformerStage::Impl::embed_decoder(const Batch& batch, const Pass& pass) const {
  if (!batch.decoder_tokens_bs.defined()) throw std::logic_error("a T5 needs tokens of its decoder");
  const auto tokens_sb = batch.decoder_tokens_bs.t().contiguous();
  const plan::SequenceShare share = options.sequence.share();
  const auto positions_of = [&share](const at::Tensor& ids_sb) {
    const auto whole = counted_positions(ids_sb.size(0) * share.ranks, ids_sb.size(1), ids_sb.device());
    std::vector<at::Tensor> own;
    for (const plan::Positions& piece : share.pieces(whole.size(0)))
      own.push_back(whole.narrow(0, piece.begin, piece.size()));
    return at::cat(own);
  };
  HostIds host;
  if (batch.host) {
    host.tokens_sb = batch.host->decoder_tokens_bs.t().contiguous();
    host.positions_sb = positions_of(host.tokens_sb);
    host.types_sb = at::zeros_like(host.tokens_sb);
  }
  const auto x = modules.embed(tokens_sb, positions_of(tokens_sb), {}, host);
  return dropout(x, stream_site(pass, "decoder embedding", x));
}

at::Tensor TransformerStage::Impl::beginning(at::Tensor x, const Pass& pass) const {
  const bool begins = pass.training && options.shape.lora && c10::GradMode::is_enabled();
  return begins ? parallel::GraphLeaf(x).take() : x;
}

at::Tensor TransformerStage::Impl::end_of_stack(const at::Tensor& y, const Pass& pass, const char* name) const {
  return options.shape.inner_dropout ? dropout(y, stream_site(pass, name, y)) : y;
}

at::Tensor TransformerStage::Impl::run_group(at::Tensor x_sbh, const at::Tensor& states, const plan::LayerGroup& group,
                                             const Norm* next, const Pass& pass) const {
  if (!group.again) {
    const auto end = run_blocks(std::move(x_sbh), states, group, next, pass);
    return next == nullptr ? end.residual : end.y;
  }
  const auto compute = [this, group, pass](at::Tensor in, const at::Tensor& beside, parallel::Value value) {
    return run_blocks(std::move(in), beside, group, nullptr, pass, value).residual;
  };
  const auto x = recomputed(x_sbh, compute, splits_inputs() ? tp : comm::Group(), states);
  return next == nullptr ? x : normalized(x, *next).y;
}

TransformerStage::Impl::Predictions TransformerStage::Impl::predictions(const at::Tensor& states, const Batch& batch,
                                                                        const Pass& pass) const {
  Predictions all;
  std::vector<at::Tensor> embeddings;  // all of them first: their matrix is read once
  const bool shared = options.sequence.ranks.size() > 1;
  const Batch* given = &batch;
  for (std::size_t k = 0; k < modules.depths.size(); ++k) {
    if (shared) given = given->ahead.get();
    if (given == nullptr) throw std::logic_error("ranks that share sequences need what they have of the tokens ahead");
    all.batches.push_back(
        shared ? *given : batch_ahead(batch, static_cast<std::int64_t>(k) + 1, precise.dtype().toScalarType()));
    const at::Tensor x = looked_up(all.batches[k]);
    embeddings.push_back(dropout(x, stream_site(pass, concat("depth ", k, "/embedding"), x)));
  }
  for (std::size_t k = 0; k < modules.depths.size(); ++k)
    all.states.push_back(depth_states(k, k == 0 ? states : all.states[k - 1], std::exchange(embeddings[k], {}), pass));
  return all;
}

at::Tensor TransformerStage::Impl::depth_states(std::size_t depth, const at::Tensor& states,
                                                const at::Tensor& embeddings, const Pass& pass) const {
  const PredictionModules& own = modules.depths[depth];
  const std::int64_t number = options.shape.num_layers + static_cast<std::int64_t>(depth);
  const auto compute = [this, &own, number, pass](const at::Tensor& before, const at::Tensor& tokens, const Norm* next,
                                                  parallel::Value value) {
    auto x = own.input(before, tokens);
    const auto rows = x.detach();
    auto stream = normalized(std::exchange(x, {}), own.block.input_norm());
    return own.block.forward(std::move(stream), attention(pass, number, own.block),
                             sites(pass, number, own.block, rows), next, value, nullptr, pass.partial);
  };
  if (!plan::depths_again(options.recompute.whole_layers(), pass.partial))
    return compute(states, embeddings, &own.final_norm, parallel::Value::Needed).y;
  const auto x = recomputed(
      states,
      [compute](const at::Tensor& before, const at::Tensor& tokens, parallel::Value value) {
        return compute(before, tokens, nullptr, value).residual;
      },
      splits_inputs() ? tp : comm::Group(), embeddings);
  return normalized(x, own.final_norm).y;
}

void TransformerStage::Impl::add_predictions(LossSum& loss, const Predictions& ahead, double gradient_scale) const {
  const double share = options.mtp_loss_scaling_factor / static_cast<double>(ahead.states.size());
  for (std::size_t k = 0; k < ahead.states.size(); ++k) {
    const LossSum own =
        loss_of(modules.for_output(ahead.states[k]), ahead.batches[k], gradient_scale * share, /*sentence_weight=*/0);
    loss.depth_sums.push_back(own.sum.detach());
    loss.depth_counts.push_back(own.count);
    loss.sum = loss.sum + (own.sum - own.sum.detach());  // its gradient alone
  }
}

Pass TransformerStage::Impl::pass_of(const Batch& batch, bool training) const {
  Pass pass{.sample_ids = batch.sample_ids,
            .first_key_bs = batch.first_key_bs,
            .position_ids_bs = batch.position_ids_bs,
            .key_lengths_b = batch.key_lengths_b,
            .training = training,
            .partial = batch.partial_recomputation};
  if (has_routers && training && options.shape.predicts_tokens()) pass.router = router_site(batch);
  pass.router.training = training;
  return pass;
}

at::Tensor TransformerStage::Impl::hidden(at::Tensor x, const Batch& batch, Pass pass) const {
  if (x.defined() == part.embedding)
    throw std::logic_error("a stage takes the output of the one before it, and only the first finds its own input");
  modules.check_positions(batch.host ? batch.host->position_ids_bs : batch.position_ids_bs, batch.tokens_bs.size(1));
  if (part.embedding) x = beginning(embed(batch, pass), pass);
  const std::int64_t cut = options.shape.encoder_layers - part.first_layer;  // where a T5's decoder begins
  at::Tensor states;
  if (options.shape.encoder_decoder() && cut < 0) {
    const std::int64_t rows = batch.tokens_bs.size(1) / (options.sequence_parallel ? tp.size() : 1);
    states = x.narrow(0, 0, rows);
    if (splits_inputs()) states = states.clone();  // which is kept, and would keep all of x
    x = x.narrow(0, rows, x.size(0) - rows);
  }
  for (const plan::LayerGroup& group : batch.partial_recomputation ? partial_groups : groups) {
    if (options.shape.encoder_decoder() && group.first == cut) {
      states = std::exchange(x, {});
      x = beginning(embed_decoder(batch, pass), pass);
    }
    if (options.shape.position_buckets > 0 && (group.first == cut || group.first == 0))
      pass.distances = distances(x, group.first);
    const bool ends_encoder = group.last == cut, ends = part.output && group.last == part.num_layers;
    x = run_group(std::exchange(x, {}), states, group,
                  ends_encoder ? &*modules.encoder_norm
                  : ends       ? &*modules.final_norm
                               : nullptr,
                  pass);
    if (ends_encoder) x = end_of_stack(x, pass, "encoder");
  }
  if (part.output) {
    if (groups.empty()) x = normalized(x, *modules.final_norm).y;
    return end_of_stack(x, pass, "decoder");
  }
  return states.defined() ? at::cat({states, x}) : x;
}

LossSum TransformerStage::Impl::loss_of(const at::Tensor& hidden, const Batch& batch, double gradient_scale,
                                        double sentence_weight) const {
  const auto labels_sb = batch.labels_bs.t().contiguous();
  const auto mask_sb =
      batch.loss_mask_bs.defined() ? batch.loss_mask_bs.t().contiguous() : at::ones_like(labels_sb, precise);
  const auto states = modules.heads ? modules.heads->token_states(hidden) : hidden;
  const parallel::VocabParallelOutput::Labels host = host_labels(batch, mask_sb.scalar_type());
  LossSum loss{modules.output->loss_sum(states, labels_sb, mask_sb, gradient_scale, host),
               (host.mask.defined() ? host.mask : mask_sb).sum(at::kDouble).item<double>()};
  if (!options.shape.sentence_head) return loss;
  if (!batch.sentence_labels_b.defined()) throw std::logic_error("a model with a sentence head needs sentence labels");
  const auto logits = modules.heads->sentence_logits(modules.heads->pooled(hidden));
  const auto sum = class_loss_sum(logits, batch.sentence_labels_b, gradient_scale);
  loss.sentence_sum = sum.detach();
  const Batch& counted = batch.host ? *batch.host : batch;
  loss.sentences = static_cast<double>(counted.sentence_labels_b.ge(0).sum().item<std::int64_t>());
  loss.sum = loss.sum + sum * sentence_weight;
  return loss;
}

LossSum TransformerStage::Impl::task_loss(const at::Tensor& hidden, const Batch& batch, bool training,
                                          double gradient_scale) const {
  if (!batch.targets.defined()) throw std::logic_error("a model with the head of a task needs targets");
  const TaskHead& head = *modules.task_head;
  const auto logits =
      head.logits(hidden, batch.key_lengths_b, batch.targets,
                  site(training ? options.hidden_dropout : 0, options.seed, "task head", batch.sample_ids));
  LossSum loss{.sum = head.loss_sum(logits, batch.targets, gradient_scale),
               .count = head.count(batch.host ? batch.host->targets : batch.targets)};
  loss.task_logits = logits.detach();
  return loss;
}

TransformerStage::TransformerStage(TransformerOptions options, const plan::StageSpec& part,
                                   const parallel::ParameterStore& parameters, comm::Group tp)
    : impl_(std::make_unique<Impl>(options, part, parameters, std::move(tp))) {}
TransformerStage::TransformerStage(TransformerOptions options, const parallel::ParameterStore& parameters,
                                   comm::Group tp)
    : TransformerStage(options, plan::whole_model(options.shape.num_layers), parameters, std::move(tp)) {}
TransformerStage::~TransformerStage() = default;
TransformerStage::TransformerStage(TransformerStage&&) noexcept = default;

const TransformerOptions& TransformerStage::options() const { return impl_->options; }

at::Tensor TransformerStage::forward(at::Tensor x, const Batch& batch, bool training) const {
  if (impl_->part.output) throw std::logic_error("the last stage gives a loss");
  const auto compute = [&] { return impl_->hidden(std::move(x), batch, training); };
  return training ? compute() : parallel::without_autograd(compute);
}

LossSum TransformerStage::loss(at::Tensor x, const Batch& batch, bool training, double gradient_scale,
                               double sentence_weight) const {
  if (!impl_->part.output) throw std::logic_error("only the last stage gives a loss");
  const auto compute = [&] {
    const Pass pass = impl_->pass_of(batch, training);
    const auto states = impl_->hidden(std::move(x), batch, pass);
    const auto hidden = impl_->modules.for_output(states);
    if (impl_->modules.task_head) return impl_->task_loss(hidden, batch, training, gradient_scale);
    Impl::Predictions ahead;
    if (training) ahead = impl_->predictions(states, batch, pass);
    LossSum loss = impl_->loss_of(hidden, batch, gradient_scale, sentence_weight);
    impl_->add_predictions(loss, ahead, gradient_scale);
    return loss;
  };
  return training ? compute() : parallel::without_autograd(compute);
}

at::Tensor TransformerStage::logits(const Batch& batch) const {
  impl_->need_whole_model();
  if (!impl_->modules.output) throw std::logic_error("a model with the head of a task has no output layer");
  return parallel::without_autograd([&] {
    auto states = impl_->hidden({}, batch, false);
    if (impl_->modules.heads) states = impl_->modules.heads->token_states(states);
    return impl_->modules.output->logits(states).transpose(0, 1).contiguous();
  });
}

at::Tensor TransformerStage::logits(at::Tensor x, const Batch& batch, bool training) const {
  if (!impl_->part.output) throw std::logic_error("only the last stage gives logits");
  if (!impl_->modules.output) throw std::logic_error("a model with the head of a task has no output layer");
  const auto compute = [&] {
    auto states = impl_->hidden(std::move(x), batch, training);
    if (impl_->modules.heads) states = impl_->modules.heads->token_states(states);
    return impl_->modules.output->differentiable_logits(states);
  };
  return training ? compute() : parallel::without_autograd(compute);
}

at::Tensor TransformerStage::states(at::Tensor x, const Batch& batch, bool training) const {
  if (!impl_->part.output) throw std::logic_error("only the last stage gives final states");
  const auto compute = [&] { return impl_->hidden(std::move(x), batch, training); };
  return training ? compute() : parallel::without_autograd(compute);
}

std::vector<LayerRouterCounts> TransformerStage::take_router_counts() const {
  std::vector<LayerRouterCounts> all;
  const std::vector<Block>& blocks = impl_->modules.blocks;
  for (std::size_t l = 0; l < blocks.size(); ++l)
    if (const auto& experts = blocks[l].branches().back().experts)
      all.push_back({impl_->part.first_layer + static_cast<std::int64_t>(l), experts->take_counts()});
  const std::vector<PredictionModules>& depths = impl_->modules.depths;
  for (std::size_t k = 0; k < depths.size(); ++k)
    if (const auto& experts = depths[k].block.branches().back().experts)
      all.push_back({impl_->options.shape.num_layers + static_cast<std::int64_t>(k), experts->take_counts()});
  return all;
}

const BertHeads& TransformerStage::heads() const { return impl_->modules.heads.value(); }

}  // namespace megatron::model
