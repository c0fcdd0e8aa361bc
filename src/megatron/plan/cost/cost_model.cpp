#include "megatron/plan/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/layer_kinds.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/products/linear_products.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/plan/cost/update_cost.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/ranks/rank_roles.h"

namespace megatron::plan {
namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

/// What one microbatch costs: forward, backward of inputs, backward of weights. And what a step does once.
struct Passes {
  StepParts forward, backward_input, backward_weight, of_step;

  double backward() const { return backward_input.sum() + backward_weight.sum(); }
  void add(const Passes& other, double times) {
    forward.add(other.forward, times);
    backward_input.add(other.backward_input, times);
    backward_weight.add(other.backward_weight, times);
    of_step.add(other.of_step, times);
  }
};

/// What attention multiplies on one rank.
struct AttentionCore {
  Product scores, context;
  double share = 1;  ///< of the square of queries and keys that is seen
  bool causal = false;
};

/// The products of one layer's forward pass on one tensor-parallel rank, and the widths of what is between them.
struct LayerWork {
  std::vector<Product> weights = {};
  std::vector<AttentionCore> cores = {};
  std::vector<Product> again_of_mlp = {};     ///< what recompute_modules mlp computes again
  double tokens = 0, queries = 0, inner = 0;  ///< widths, summed over branches
  double sent = 0;                            ///< copies of tokens that go to ranks with other experts
  double sums = 2;                            ///< of the stream over tensor-parallel ranks
  double gathered_bytes = 0;                  ///< over them, besides
  bool wide = false;                          ///< LayerSpec::wide
};

/// Costs of one tensor-parallel rank's share of the model's pieces.
class Pieces {
 public:
  Pieces(const ResolvedRun& run, const Hardware& hardware)
      : run_(run),
        hardware_(hardware),
        in_8_bits_(run, hardware, true),
        wide_(run, hardware, false),
        tp_(run.grid.size(Axis::Tp)),
        etp_(expert_layout(run.config.parallel).etp),
        cp_(run.grid.sequence_shares()),
        tokens_(as_double(run.config.train.micro_batch_size * run.config.data.seq_length) / cp_),
        element_(as_double(element_bytes(run.config))),
        hidden_(as_double(run.shape.hidden)),
        tp_span_(span_of(run.grid, run.grid.peers(0, Axis::Tp), hardware.ranks_per_node)),
        exchange_span_(span_of(run.grid, (etp_ == tp_ ? roles_of(run).experts(0) : roles_of(run).expert_copy(0)).ranks,
                               hardware.ranks_per_node)),
        cp_span_(span_of(run.grid, roles_of(run).sequence(0).ranks, hardware.ranks_per_node)) {
    if (cp_ > 1) exchange_ = sequence_exchange(run.config, run.shape);
  }

  LayerWork work_of(const LayerSpec& layer) const {
    const config::RunConfig& config = run_.config;
    const LayerTokens tokens =
        tokens_of(layer, config.train.micro_batch_size, config.data.seq_length, config.data.decoder_seq_length);
    LayerWork work{.wide = layer.wide};
    work.tokens = as_double(tokens.sequences * tokens.length) / cp_;
    for (const Branch& branch : layer.branches) {
      const bool mlp = std::holds_alternative<Mlp>(branch.inner) || std::holds_alternative<Experts>(branch.inner);
      for (const Linear& linear : branch.kinds(layer.hidden)) {
        work.weights.push_back(product_of(linear, layer, tokens));
        if (mlp && linear.split != Linear::Split::Inputs) work.again_of_mlp.push_back(work.weights.back());
      }
      std::visit([&](const auto& inner) { add_inside(work, inner, tokens); }, branch.inner);
    }
    return work;
  }

  Passes layer(const LayerSpec& spec, bool partial) const {
    const SoftwareCosts& software = hardware_.software;
    const LayerWork work = work_of(spec);
    Passes passes;
    passes.forward = layer_forward(work);
    passes.forward.tensor += sequence_exchange_s(spec, 1, passes.forward.attention);
    const MovedBytes moved = cp_ > 1 ? moved_bytes(run_.config, spec, exchange_) : MovedBytes();
    passes.forward.elementwise += memory_s(hardware_, moved.forward);
    StepParts& back = passes.backward_input;
    for (const Product& p : work.weights) {
      add(back, linears_of(work).input_gradient(p));
      add(passes.backward_weight, linears_of(work).weight_gradient(p));
      add(passes.of_step, linears_of(work).of_step(p));
    }
    back.attention += attention_backward(work);
    back.elementwise += elementwise(work, software.stream_backward_passes, software.query_backward_passes,
                                    software.inner_backward_passes) +
                        memory_s(hardware_, moved.backward);
    back.launches += software.backward_launches * software.launch_us * 1e-6;
    back.tensor = work.sums * all_reduce_s(hardware_, tp_span_, stream_bytes()) + 3 * exchange_s(work) +
                  sequence_exchange_s(spec, backward_passes(), back.attention);
    if (run_.config.parallel.sp) back.tensor += work.sums * ring_pass_s(hardware_, tp_span_, stream_bytes());
    back.tensor += scales_s(as_double(std::ssize(work.weights)) - work.sums, work);
    passes.of_step.tensor += scales_s(as_double(std::ssize(work.weights)), {.wide = work.wide});
    if (!partial) add_recomputed_modules(spec, work, back);
    return passes;
  }

  StepParts layer_forward(const LayerWork& work) const {
    const SoftwareCosts& software = hardware_.software;
    StepParts parts;
    for (const Product& p : work.weights) add(parts, linears_of(work).forward(p));
    parts.attention = attention_forward(work);
    parts.elementwise +=
        elementwise(work, software.stream_forward_passes, software.query_forward_passes, software.inner_forward_passes);
    parts.launches += software.forward_launches * software.launch_us * 1e-6;
    parts.tensor = work.sums * all_reduce_s(hardware_, tp_span_, stream_bytes()) + 2 * exchange_s(work);
    if (work.gathered_bytes > 0) parts.tensor += ring_pass_s(hardware_, tp_span_, work.gathered_bytes);
    parts.tensor += scales_s(work.sums, work);
    return parts;
  }

  /// Ranks agree on scales in 8 bits: on those of `split` operands of linear layers over tp, on that of each layer's
  /// operand over the ranks that share sequences.
  double scales_s(double split, const LayerWork& work) const {
    if (!linears_of(work).agrees_on_scales()) return 0;
    return split * all_reduce_s(hardware_, tp_span_, 4) +
           as_double(std::ssize(work.weights)) * all_reduce_s(hardware_, cp_span_, 4);
  }

  /// A depth of multi-token prediction: its projection, whose output all ranks get, its layer, the embeddings that it
  /// reads and the logits that it ends in.
  Passes depth(const PredictionDepth& depth, bool partial) const {
    const Linear projection = depth.projection();
    const Product product{1, tokens_, as_double(projection.outputs) / tp_, as_double(projection.inputs)};
    Passes passes = layer(depth.layer, partial);
    passes.forward.matrices += seconds(product);
    passes.backward_input.matrices += seconds({1, product.m, product.k, product.n});
    passes.backward_weight.matrices += seconds({1, product.n, product.k, product.m});
    passes.forward.tensor += ring_pass_s(hardware_, tp_span_, stream_bytes());
    passes.backward_input.tensor += all_reduce_s(hardware_, tp_span_, 2 * stream_bytes());
    return passes;
  }
  double depth_flops_of(const PredictionDepth& depth) const {
    const Linear projection = depth.projection();
    return layer_flops_of(depth.layer) +
           2 * tokens_ * as_double(projection.outputs) * as_double(projection.inputs) / tp_;
  }

  /// Rows looked up, and their gradients added (plan/cost/memory.cpp counts alike).
  Passes embedding() const {
    Passes passes;
    passes.forward.elementwise = memory_s(hardware_, 3 * stream_bytes());
    passes.backward_input.elementwise = memory_s(hardware_, 5 * stream_bytes());
    passes.forward.tensor = all_reduce_s(hardware_, tp_span_, stream_bytes());
    return passes;
  }

  /// Logits, loss, and both gradients, which the forward pass computes (parallel/output_layer.h).
  Passes output() const {
    const double rows = as_double(run_.shape.padded_vocab) / tp_;
    Passes passes;
    passes.forward.output = seconds({1, tokens_, rows, hidden_}) + seconds({1, tokens_, hidden_, rows}) +
                            seconds({1, rows, hidden_, tokens_}) +
                            memory_s(hardware_, hardware_.software.logit_bytes * tokens_ * rows);
    // The input's gradient; maximum, sum and the target's logit of each token.
    passes.forward.tensor =
        all_reduce_s(hardware_, tp_span_, stream_bytes()) + 3 * all_reduce_s(hardware_, tp_span_, 4 * tokens_);
    return passes;
  }

  /// Of the whole stream, before sp splits it, as ranks of tp sum it and as it goes to the next stage.
  double stream_bytes() const { return tokens_ * hidden_ * element_; }
  double message_bytes() const { return tokens_ * hidden_ * as_double(stream_element_bytes(run_.config)); }

  /// Operations of a layer's forward products on this rank.
  double layer_flops_of(const LayerSpec& spec) const {
    const LayerWork work = work_of(spec);
    double flops = 0;
    for (const Product& p : work.weights) flops += p.flops();
    for (const AttentionCore& core : work.cores) flops += seen(core) * (core.scores.flops() + core.context.flops());
    return flops;
  }
  double peak() const { return in_8_bits_.peak(); }
  double output_flops() const { return 2 * tokens_ * hidden_ * as_double(run_.shape.padded_vocab) / tp_; }

 private:
  const LinearProducts& linears_of(const LayerWork& work) const { return work.wide ? wide_ : in_8_bits_; }
  double seconds(const Product& product) const { return product_s(hardware_, run_.config.train.dtype, product); }
  void add(StepParts& parts, const LinearCost& cost) const {
    parts.matrices += cost.products_s;
    parts.elementwise += memory_s(hardware_, cost.moved_bytes);
    parts.launches += cost.launches * hardware_.software.launch_us * 1e-6;
  }
  double seen(const AttentionCore& core) const {
    return hardware_.software.whole_square ? computed_square(core) : core.share;
  }
  /// Of the square of queries and keys, what is not left out piece by piece: of 2n pieces, the queries of each meet the
  /// keys of those up to their own, where attention is causal.
  double computed_square(const AttentionCore& core) const {
    const bool by_piece = cp_ > 1 && exchange_ != SequenceExchange::AllToAll && core.causal;
    return by_piece ? (2 * cp_ + 1) / (4 * cp_) : 1;
  }

  Product product_of(const Linear& linear, const LayerSpec& layer, const LayerTokens& tokens) const {
    double rows = as_double(tokens.sequences * (linear.reads_encoder ? tokens.encoder_length : tokens.length)) / cp_;
    double count = as_double(linear.alike);
    if (linear.expert >= 0) {  // this rank's experts get tokens of all ranks that share experts with it
      rows *= linear.share * run_.config.parallel.ep * etp_ / tp_;
      count /= run_.config.parallel.ep;
    }
    const double slices = linear.expert >= 0 ? etp_ : tp_;
    const auto outputs = as_double(linear.outputs), inputs = as_double(linear.inputs);
    if (linear.split == Linear::Split::Inputs) return {count, rows, outputs, inputs / slices};
    if (linear.split == Linear::Split::Whole) return {count, rows, outputs, inputs};
    if (linear.split != Linear::Split::Groups) return {count, rows, outputs / slices, inputs};
    const SelfAttention& attention = layer.attention();  // ranks that share a group have its key and value each
    const double groups = std::max(1.0, as_double(attention.groups) / tp_);
    const std::int64_t queries = attention.query_rows() + attention.gate_rows();
    return {1, rows, as_double(queries) / tp_ + 2 * groups * as_double(attention.head_size), inputs};
  }
  /// Of ranks that share sequences each has all queries of a share of the heads, or of its two pieces of queries at a
  /// time one, with all keys up to its end, or in a ring with one of all pieces of keys.
  AttentionCore core_of(std::int64_t heads, std::int64_t size, const LayerTokens& tokens, std::int64_t of_keys) const {
    double count = as_double(tokens.sequences * heads) / tp_, length = as_double(tokens.length) / cp_,
           keys = as_double(of_keys);
    if (cp_ > 1 && exchange_ == SequenceExchange::AllToAll) {
      count /= cp_;
      length *= cp_;
    }
    if (cp_ > 1 && exchange_ == SequenceExchange::AllGather) {
      count *= 2;
      length /= 2;
    }
    if (cp_ > 1 && exchange_ == SequenceExchange::Ring) {
      count *= 4 * cp_;
      length /= 2;
      keys /= 2 * cp_;
    }
    return {{count, length, keys, as_double(size)}, {count, length, as_double(size), keys}};
  }
  void add_inside(LayerWork& work, const SelfAttention& attention, const LayerTokens& tokens) const {
    AttentionCore core = core_of(attention.heads, attention.head_size, tokens, tokens.length);
    core.share = seen_share(attention, tokens.length);
    core.causal = attention.causal;
    work.cores.push_back(core);
    work.queries += as_double(attention.query_rows() + attention.gate_rows()) / tp_;
  }
  void add_inside(LayerWork& work, const CrossAttention& attention, const LayerTokens& tokens) const {
    work.cores.push_back(core_of(attention.heads, attention.head_size, tokens, tokens.encoder_length));
    work.queries += as_double(attention.query_rows()) / tp_;
  }
  void add_inside(LayerWork& work, const Mlp& mlp, const LayerTokens& /*tokens*/) const {
    work.inner += as_double(mlp.first_rows()) / tp_;
  }
  void add_inside(LayerWork& work, const Experts& experts, const LayerTokens& tokens) const {
    const double top_k = as_double(experts.top_k), here = as_double(tokens.sequences * tokens.length) / cp_;
    const bool apart = etp_ != tp_ && tp_ > 1, sp = run_.config.parallel.sp;
    // Ranks of tp that hold all experts between them, and all tokens each, send none (model/experts/expert_layer.h).
    const bool at_hand = apart && !sp && run_.grid.size(Axis::Tp) % exchange_span_.ranks == 0;
    if (exchange_span_.ranks > 1 && !at_hand)
      work.sent += here * top_k * etp_ / tp_;  // each copy to every slice of its expert
    if (apart && sp) {                         // each rank sends its own tokens, whose logits all of them see
      if (experts.shared_width == 0) --work.sums;
      work.gathered_bytes += here * as_double(experts.count) * std::max(element_, 4.0);
    }
    work.inner += (top_k * as_double(experts.expert.first_rows()) + as_double(experts.shared().first_rows())) / tp_;
  }

  double passes_over(const AttentionCore& core, bool forward) const {
    const SoftwareCosts& software = hardware_.software;
    const double passes = forward ? software.score_forward_passes : software.score_backward_passes;
    return memory_s(hardware_,
                    passes * computed_square(core) * core.scores.count * core.scores.m * core.scores.n * element_);
  }

  /// The products of attention, `scores` with features inside and `contexts` with keys.
  double products_of(const AttentionCore& core, double scores, double contexts, double fused_efficiency) const {
    if (fused_efficiency == 0) return seen(core) * (scores * seconds(core.scores) + contexts * seconds(core.context));
    return seen(core) * (scores * core.scores.flops() + contexts * core.context.flops()) /
           (fused_efficiency * peak_flops(hardware_, run_.config.train.dtype));
  }
  double attention_forward(const LayerWork& work) const {
    double sum = 0;
    for (const AttentionCore& core : work.cores)
      sum += products_of(core, 1, 1, hardware_.compute.attention_forward_efficiency) + passes_over(core, true);
    return sum;
  }
  /// dP = dY V^T, dV = P^T dY, dQ = dS K, dK = dS^T Q; scores that were not kept once more.
  double attention_backward(const LayerWork& work) const {
    const double scores = hardware_.software.score_forward_passes == 0 ? 2 : 1;
    double sum = 0;
    for (const AttentionCore& core : work.cores)
      sum += products_of(core, scores, 3, hardware_.compute.attention_backward_efficiency) + passes_over(core, false);
    return sum;
  }

  /// Rows of the stream's width to the experts of other ranks, or back from them (model/experts/expert_layer.h).
  double exchange_s(const LayerWork& work) const {
    return work.sent == 0 ? 0 : ring_pass_s(hardware_, exchange_span_, work.sent * hidden_ * element_);
  }

  /// What ranks that share a sequence send one another in `passes` passes of a layer. In a ring it goes while attention
  /// computes, which takes `attention` seconds.
  double sequence_exchange_s(const LayerSpec& layer, double passes, double attention) const {
    if (cp_ == 1) return 0;
    const double sent = as_double(exchanged_elements(run_.config, layer, exchange_)) * element_;
    // A pass of a ring carries (n - 1) / n of the bytes that it is given.
    const double all = passes * ring_pass_s(hardware_, cp_span_, sent * cp_ / (cp_ - 1));
    return exchange_ == SequenceExchange::Ring ? std::max(all / cp_, all - attention) : all;
  }

  /// What attention's backward pass sends between ranks of a sequence, in passes forward. A ring sends keys and values
  /// once more, and their gradients, in float32 or wider, to one rank more.
  double backward_passes() const {
    if (cp_ == 1 || exchange_ != SequenceExchange::Ring) return 2;
    return 1 + cp_ / (cp_ - 1) * std::max(element_, 4.0) / element_;
  }

  double elementwise(const LayerWork& work, double stream, double query, double inner) const {
    const double split = run_.config.parallel.sp ? tp_ : 1;
    return memory_s(hardware_,
                    work.tokens * element_ * (stream * hidden_ / split + query * work.queries + inner * work.inner));
  }

  /// train.recompute selective.
  void add_recomputed_modules(const LayerSpec& spec, const LayerWork& work, StepParts& back) const {
    const config::TrainConfig& train = run_.config.train;
    if (train.recompute != "selective") return;
    for (const std::string& module : train.recompute_modules) {
      if (module == "core_attn") {
        const double again = attention_forward(work);
        back.attention += again;
        back.tensor += sequence_exchange_s(spec, 1, again);
        if (cp_ > 1) back.elementwise += memory_s(hardware_, moved_bytes(run_.config, spec, exchange_).forward);
      }
      if (module == "mlp") {
        for (const Product& product : work.again_of_mlp) add(back, linears_of(work).forward(product));
        back.tensor += exchange_s(work);
      }
    }
  }

  const ResolvedRun& run_;
  const Hardware& hardware_;
  LinearProducts in_8_bits_, wide_;  ///< of layers that compute so, where fp8.format asks for it
  double tp_, etp_, cp_, tokens_, element_, hidden_;
  Span tp_span_, exchange_span_, cp_span_;
  SequenceExchange exchange_ = SequenceExchange::AllGather;
};

/// By stage. `partial`: of microbatches that recompute in part (schedule::Op::partial).
std::vector<Passes> stage_passes(const ResolvedRun& run, const Pieces& pieces, bool partial) {
  const Passes embedding = pieces.embedding(), output = pieces.output();
  const LayerRecomputation recomputation = layer_recomputation(run.config.train, run.shape.num_layers);
  ByLayerKind<Passes> layers(run.shape);
  std::vector<Passes> stages;
  for (const StageSpec& part : run.parts) {
    Passes stage;
    const std::vector<bool> again = layers_again(run.config.train, run.shape, part, partial);
    for (std::int64_t l = 0; l < part.num_layers; ++l) {
      const Passes& layer =
          layers.of(part.first_layer + l, [&](const LayerSpec& spec) { return pieces.layer(spec, partial); });
      stage.add(layer, 1);
      if (again[static_cast<std::size_t>(l)]) stage.backward_input.add(layer.forward, 1);
    }
    if (part.embedding) stage.add(embedding, 1);
    if (part.output) stage.add(output, 1);
    for (std::int64_t k = 0; part.output && k < run.shape.mtp_depths; ++k) {
      const Passes depth = pieces.depth(run.shape.prediction_depth(k), partial);
      for (const Passes* passes : {&depth, &embedding, &output}) stage.add(*passes, 1);
      if (depths_again(recomputation, partial)) stage.backward_input.add(depth.forward, 1);
    }
    stages.push_back(stage);
  }
  return stages;
}

/// What a message between neighbouring pipeline ranks costs.
void set_messages(schedule::Costs& costs, const ResolvedRun& run, const Hardware& hardware, const Pieces& pieces) {
  const Span span = span_of(run.grid, run.grid.peers(0, Axis::Pp), hardware.ranks_per_node);
  const double tp = run.grid.size(Axis::Tp);
  const bool gathers = run.config.parallel.scatter_gather && !run.config.parallel.sp;
  costs.message_bytes = pieces.message_bytes() / (gathers || run.config.parallel.sp ? tp : 1);
  costs.bandwidth = span.nodes > 1
                        ? std::min(hardware.node.bytes_per_s(), hardware.cluster.bytes_per_s() / span.sharing)
                        : hardware.node.bytes_per_s();
  costs.latency = (span.nodes > 1 ? hardware.cluster : hardware.node).latency_s();
  if (gathers)
    costs.latency += ring_pass_s(hardware, span_of(run.grid, run.grid.peers(0, Axis::Tp), hardware.ranks_per_node),
                                 pieces.message_bytes());
}

/// The sums of the two copies of what the first and the last stage share.
double tied_embedding_s(const ResolvedRun& run, const Hardware& hardware) {
  const int first = run.placement.rank_of(0), last = run.placement.rank_of(run.placement.num_stages() - 1);
  if ((!run.shape.tied_output && run.shape.mtp_depths == 0) || first == last) return 0;
  Span span = span_of(run.grid, run.grid.peers(0, Axis::Pp), hardware.ranks_per_node);
  span.ranks = 2;
  double elements = as_double(run.shape.padded_vocab * run.shape.hidden) / run.grid.size(Axis::Tp);
  if (run.shape.learned_positions && run.shape.mtp_depths > 0)
    elements += as_double((run.shape.position_offset + run.shape.max_positions) * run.shape.hidden);
  return all_reduce_s(hardware, span, elements * as_double(element_bytes_of(run.config).gradient));
}

/// By stage: the share of a step's microbatches that recompute in part.
std::vector<double> partial_shares(const schedule::Program& program) {
  std::vector<double> shares(static_cast<std::size_t>(program.placement.num_stages()), 0);
  for (const std::vector<schedule::Op>& ops : program.ranks)
    for (const schedule::Op& op : ops)
      if (op.kind == schedule::Kind::Forward && op.partial)
        shares[static_cast<std::size_t>(op.stage)] += 1.0 / program.num_microbatches;
  return shares;
}

double computed_flops(const ResolvedRun& run, const Pieces& pieces, const std::vector<double>& partial_shares) {
  const LayerRecomputation recomputation = layer_recomputation(run.config.train, run.shape.num_layers);
  double microbatch = 3 * as_double(1 + run.shape.mtp_depths) * pieces.output_flops();
  for (std::int64_t k = 0; k < run.shape.mtp_depths; ++k) {
    const double share = partial_shares.back();
    const double times =
        3 + (depths_again(recomputation, false) ? 1 - share : 0) + (depths_again(recomputation, true) ? share : 0);
    microbatch += times * pieces.depth_flops_of(run.shape.prediction_depth(k));
  }
  ByLayerKind<double> flops(run.shape);
  for (std::size_t stage = 0; stage < run.parts.size(); ++stage) {
    const StageSpec& part = run.parts[stage];
    const std::vector<bool> whole = layers_again(run.config.train, run.shape, part, false),
                            partial = layers_again(run.config.train, run.shape, part, true);
    for (std::int64_t l = 0; l < part.num_layers; ++l) {
      const double share = partial_shares[stage];
      const auto layer = static_cast<std::size_t>(l);
      const double times = 3 + (whole[layer] ? 1 - share : 0) + (partial[layer] ? share : 0);
      microbatch +=
          times * flops.of(part.first_layer + l, [&](const LayerSpec& spec) { return pieces.layer_flops_of(spec); });
    }
  }
  const double ranks = run.grid.size(Axis::Tp) * run.grid.sequence_shares();  // that share a microbatch
  return microbatch * as_double(run.microbatches_per_step) * run.grid.sample_shares() * ranks;
}

}  // namespace

double product_s(const Hardware& hardware, const std::string& dtype, const Product& product, double result_bytes) {
  if (product.flops() == 0) return 0;
  const double half = hardware.compute.product_half_size;
  const auto reached = [half](double size) { return size / (size + half); };
  const double rate = peak_flops(hardware, dtype) * hardware.compute.product_efficiency * reached(product.m) *
                      reached(product.n) * reached(product.k);
  const double element = dtype == "fp64" ? 8 : dtype == "fp32" ? 4 : dtype == kFp8 ? 1 : 2;
  const double operands = (product.m * product.k + product.n * product.k) * element;
  const double result = product.m * product.n * (result_bytes > 0 ? result_bytes : element);
  return std::max(product.flops() / rate, memory_s(hardware, product.count * (operands + result)));
}

double memory_s(const Hardware& hardware, double bytes) {
  return bytes / (hardware.memory.bandwidth_gb_s * 1e9 * hardware.memory.efficiency);
}

Span span_of(const RankGrid& grid, const std::vector<int>& first, std::int64_t ranks_per_node) {
  std::set<std::int64_t> nodes;
  for (const int rank : first) nodes.insert(rank / ranks_per_node);
  Span span{.ranks = static_cast<int>(first.size()), .nodes = static_cast<int>(nodes.size())};
  if (span.nodes == 1) return span;
  // Groups are alike: each has as many members on a node as the first has on its own.
  const auto here =
      static_cast<int>(std::count_if(first.begin(), first.end(), [&](int rank) { return rank / ranks_per_node == 0; }));
  span.sharing = std::max(1, static_cast<int>(std::min<std::int64_t>(ranks_per_node, grid.world_size())) / here);
  return span;
}

double ring_pass_s(const Hardware& hardware, const Span& span, double bytes) {
  if (span.ranks == 1) return 0;
  const double n = span.ranks;
  const bool leaves = span.nodes > 1;
  const double rate = leaves ? std::min(hardware.node.bytes_per_s(), hardware.cluster.bytes_per_s() / span.sharing)
                             : hardware.node.bytes_per_s();
  const double latency = (leaves ? hardware.cluster : hardware.node).latency_s();
  return (n - 1) * (bytes / n / rate + latency);
}

double all_reduce_s(const Hardware& hardware, const Span& span, double bytes) {
  return 2 * ring_pass_s(hardware, span, bytes);
}

double mean_of_largest(int n) {
  // The integral of [x > 0] - Phi(x)^n, by the trapezoidal rule, which is exact to rounding for such functions but for
  // the jump at 0, where the mean of both sides counts.
  constexpr double kStep = 1.0 / 64;
  constexpr int kSteps = 9 * 64;
  double sum = 0;
  for (int i = -kSteps; i <= kSteps; ++i) {
    const double x = i * kStep, below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    sum += (i > 0 ? 1 : i == 0 ? 0.5 : 0) - std::pow(below, n);
  }
  return n > 1 ? sum * kStep : 0;
}

std::vector<std::pair<const char*, double>> StepParts::named() const {
  return {{"matrices", matrices},   {"attention", attention}, {"elementwise", elementwise}, {"launches", launches},
          {"output", output},       {"tensor", tensor},       {"pipeline", pipeline},       {"data", data},
          {"optimizer", optimizer}, {"waiting", waiting}};
}

double StepParts::sum() const {
  double total = 0;
  for (const auto& [name, seconds] : named()) total += seconds;
  return total;
}

StepParts& StepParts::add(const StepParts& other, double times) {
  matrices += times * other.matrices;
  attention += times * other.attention;
  elementwise += times * other.elementwise;
  launches += times * other.launches;
  output += times * other.output;
  tensor += times * other.tensor;
  pipeline += times * other.pipeline;
  data += times * other.data;
  optimizer += times * other.optimizer;
  waiting += times * other.waiting;
  return *this;
}

MicrobatchCost microbatch_cost(const ResolvedRun& run, const Hardware& hardware) {
  MicrobatchCost cost;
  for (const Passes& stage : stage_passes(run, Pieces(run, hardware), /*partial=*/false)) {
    cost.forward.add(stage.forward);
    cost.backward.add(stage.backward_input);
    cost.backward.add(stage.backward_weight);
  }
  return cost;
}

StepCost step_cost(const ResolvedRun& run, const Hardware& hardware) {
  const Pieces pieces(run, hardware);
  const schedule::Program program = pipeline_program(run, run.microbatches_per_step);
  const std::vector<double> shares = partial_shares(program);
  const bool some_partial = std::ranges::any_of(shares, [](double share) { return share > 0; });
  const std::vector<Passes> whole = stage_passes(run, pieces, false),
                            partial = some_partial ? stage_passes(run, pieces, true) : whole;
  std::vector<Passes> stages(whole.size());  // means over microbatches
  schedule::Costs costs;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    costs.forward.push_back(whole[stage].forward.sum());
    costs.backward_input.push_back(whole[stage].backward_input.sum());
    costs.partial_backward_input.push_back(partial[stage].backward_input.sum());
    costs.backward_weight.push_back(whole[stage].backward_weight.sum());
    stages[stage].add(whole[stage], 1 - shares[stage]);
    stages[stage].add(partial[stage], shares[stage]);
  }
  set_messages(costs, run, hardware, pieces);
  const double makespan = schedule::simulate(program, costs).makespan;
  StepParts busiest, of_step, slowest_update;
  std::vector<std::pair<int, UpdatedBuffers>> known;  // ranks, each unlike the others
  for (int rank = 0; rank < run.placement.num_ranks(); ++rank) {
    Passes once;
    for (const int stage : run.placement.stages_of(rank)) once.add(stages[static_cast<std::size_t>(stage)], 1);
    auto alike = std::ranges::find_if(known, [&](const auto& other) { return same_sizes(run, other.first, rank); });
    if (alike == known.end()) alike = known.insert(known.end(), {rank, updated_buffers(run, rank)});
    const StepParts update = update_cost(run, hardware, alike->second, once.forward.sum(), once.backward());
    if (update.sum() > slowest_update.sum()) slowest_update = update;
    StepParts all;
    for (const StepParts* parts : {&once.forward, &once.backward_input, &once.backward_weight})
      all.add(*parts, as_double(run.microbatches_per_step));
    if (all.sum() > busiest.sum()) {
      busiest = all;
      of_step = once.of_step;
    }
  }
  StepCost cost;
  cost.parts = busiest;
  cost.parts.pipeline = std::max(0.0, makespan - busiest.sum());
  cost.parts.add(of_step).add(slowest_update);
  cost.parts.data += tied_embedding_s(run, hardware);
  cost.parts.waiting = hardware.software.speed_spread * mean_of_largest(run.grid.world_size()) * cost.parts.sum();
  cost.step_s = cost.parts.sum();
  const double ranks = run.grid.world_size();
  cost.computed_flops = computed_flops(run, pieces, shares);
  cost.model_flops = training_flops(run.shape, run.config.train.global_batch_size, run.config.data.seq_length,
                                    run.config.data.decoder_seq_length);
  cost.rank_tflops = cost.computed_flops / cost.step_s / ranks / 1e12;
  cost.utilization = cost.model_flops / cost.step_s / ranks / pieces.peak();
  return cost;
}

}  // namespace megatron::plan
