#include "megatron/plan/cost/links/step_traffic.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/layer_kinds.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/plan/cost/update_cost.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/ranks/rank_roles.h"

namespace megatron::plan {
namespace {

double count_of(std::int64_t value) { return static_cast<double>(value); }

/// Of the whole bytes of a tensor, those that a rank sends in one pass around a ring of so many.
double ring_share(int ranks) { return (ranks - 1.0) / ranks; }

/// Bytes that a rank sends, by kind.
using Sent = std::array<double, kTrafficNames.size()>;

double& of(Sent& sent, TrafficKind kind) { return sent[static_cast<std::size_t>(kind)]; }

void add(Sent& sent, const Sent& other, double times) {
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += times * other[i];
}

struct SentInPasses {
  Sent forward{}, backward{};
};

/// What a rank sends in a microbatch's passes of a layer, a depth, the embedding and the output.
class LayerTraffic {
 public:
  explicit LayerTraffic(const ResolvedRun& run)
      : run_(run),
        tp_(run.grid.size(Axis::Tp)),
        etp_(expert_layout(run.config.parallel).etp),
        cp_(run.grid.sequence_shares()),
        exchange_ranks_((etp_ == tp_ ? roles_of(run).experts(0) : roles_of(run).expert_copy(0)).size()),
        tokens_(count_of(run.config.train.micro_batch_size * run.config.data.seq_length) / cp_),
        element_(count_of(element_bytes(run.config))) {
    if (cp_ > 1) exchange_ = sequence_exchange(run.config, run.shape);
  }

  /// Of the whole stream, before sp splits it.
  double stream() const { return tokens_ * count_of(run_.shape.hidden) * element_; }
  /// Of the stream as it goes to the next stage.
  double message() const { return tokens_ * count_of(run_.shape.hidden) * count_of(stream_element_bytes(run_.config)); }
  /// What one rank sends of it around the ring of tensor-parallel ranks.
  double stream_pass() const { return ring_share(tp_) * stream(); }
  bool exchanges_heads() const { return exchange_ == SequenceExchange::AllToAll; }

  SentInPasses layer(const LayerSpec& spec) const {
    const auto [sums, rows, gathered] = work_of(spec);
    const double sent = ring_share(exchange_ranks_) * rows * count_of(run_.shape.hidden) * element_;
    const double exchanged = cp_ > 1 ? count_of(exchanged_elements(run_.config, spec, exchange_)) * element_ : 0;
    const bool sp = run_.config.parallel.sp;
    const TrafficKind kind = sp ? TrafficKind::Sequence : TrafficKind::Tensor;
    SentInPasses passes;
    of(passes.forward, kind) = sums * 2 * stream_pass() + ring_share(tp_) * gathered;
    of(passes.forward, TrafficKind::Experts) = 2 * sent;
    of(passes.forward, TrafficKind::Context) = exchanged;
    of(passes.backward, kind) = sums * (sp ? 3 : 2) * stream_pass();
    of(passes.backward, TrafficKind::Experts) = 3 * sent;
    of(passes.backward, TrafficKind::Context) = context_passes_back() * exchanged;
    const config::TrainConfig& train = run_.config.train;
    if (train.recompute != "selective") return passes;
    for (const std::string& module : train.recompute_modules) {
      if (module == "core_attn") of(passes.backward, TrafficKind::Context) += exchanged;
      if (module == "mlp") of(passes.backward, TrafficKind::Experts) += sent;
    }
    return passes;
  }

  SentInPasses depth(const PredictionDepth& depth) const {
    SentInPasses passes = layer(depth.layer);
    of(passes.forward, TrafficKind::Tensor) += stream_pass();
    of(passes.backward, TrafficKind::Tensor) += 4 * stream_pass();
    return passes;
  }

  SentInPasses embedding() const {
    SentInPasses passes;
    of(passes.forward, TrafficKind::Tensor) = 2 * stream_pass();
    return passes;
  }

  /// The input's gradient; maximum, sum and the target's logit of each token.
  SentInPasses output() const {
    SentInPasses passes;
    of(passes.forward, TrafficKind::Tensor) = 2 * stream_pass() + 3 * 2 * ring_share(tp_) * 4 * tokens_;
    return passes;
  }

 private:
  struct Work {
    double sums = 2;      ///< of the stream over tensor-parallel ranks
    double rows = 0;      ///< of tokens that go to other ranks' experts
    double gathered = 0;  ///< bytes over tensor-parallel ranks
  };

  Work work_of(const LayerSpec& layer) const {
    const config::RunConfig& config = run_.config;
    const LayerTokens tokens =
        tokens_of(layer, config.train.micro_batch_size, config.data.seq_length, config.data.decoder_seq_length);
    const double here = count_of(tokens.sequences * tokens.length) / cp_;
    Work work;
    for (const Branch& branch : layer.branches) {
      const auto* const experts = std::get_if<Experts>(&branch.inner);
      if (experts == nullptr) continue;
      const bool apart = etp_ != tp_ && tp_ > 1, sp = config.parallel.sp;
      // Ranks of tp that hold all experts between them, and all tokens each, send none (model/experts/expert_layer.h).
      const bool at_hand = apart && !sp && tp_ % exchange_ranks_ == 0;
      if (exchange_ranks_ > 1 && !at_hand) work.rows += here * count_of(experts->top_k) * etp_ / tp_;
      if (!apart || !sp) continue;
      if (experts->shared_width == 0) --work.sums;
      work.gathered += here * count_of(experts->count) * std::max(element_, 4.0);
    }
    return work;
  }

  /// In passes forward. A ring sends keys and values once more, and their gradients, in float32 or wider, to one rank
  /// more.
  double context_passes_back() const {
    if (cp_ == 1 || exchange_ != SequenceExchange::Ring) return 2;
    return 1 + cp_ / (cp_ - 1.0) * std::max(element_, 4.0) / element_;
  }

  const ResolvedRun& run_;
  int tp_, etp_, cp_, exchange_ranks_;
  double tokens_, element_;
  SequenceExchange exchange_ = SequenceExchange::AllGather;
};

/// What a rank of each stage sends in a step within the stage.
std::vector<Sent> sent_by_stage(const ResolvedRun& run, const LayerTraffic& pieces, const schedule::Program& program) {
  std::vector<double> partial(static_cast<std::size_t>(program.placement.num_stages()), 0);
  for (const std::vector<schedule::Op>& ops : program.ranks)
    for (const schedule::Op& op : ops)
      if (op.kind == schedule::Kind::Forward && op.partial) ++partial[static_cast<std::size_t>(op.stage)];
  const LayerRecomputation recomputation = layer_recomputation(run.config.train, run.shape.num_layers);
  ByLayerKind<SentInPasses> layers(run.shape);
  const double microbatches = count_of(run.microbatches_per_step);
  std::vector<Sent> stages;
  for (const StageSpec& part : run.parts) {
    Sent sent{};
    const auto take = [&](const SentInPasses& passes, bool again, bool again_in_part) {
      const double in_part = partial[stages.size()], whole = microbatches - in_part;
      add(sent, passes.forward, microbatches + (again ? whole : 0) + (again_in_part ? in_part : 0));
      add(sent, passes.backward, microbatches);
    };
    const std::vector<bool> again = layers_again(run.config.train, run.shape, part, false),
                            again_in_part = layers_again(run.config.train, run.shape, part, true);
    for (std::int64_t l = 0; l < part.num_layers; ++l)
      take(layers.of(part.first_layer + l, [&](const LayerSpec& spec) { return pieces.layer(spec); }),
           again[static_cast<std::size_t>(l)], again_in_part[static_cast<std::size_t>(l)]);
    if (part.embedding) take(pieces.embedding(), false, false);
    if (part.output) take(pieces.output(), false, false);
    for (std::int64_t k = 0; part.output && k < run.shape.mtp_depths; ++k) {
      take(pieces.depth(run.shape.prediction_depth(k)), depths_again(recomputation, false),
           depths_again(recomputation, true));
      take(pieces.embedding(), false, false);
      take(pieces.output(), false, false);
    }
    stages.push_back(sent);
  }
  return stages;
}

/// Whole bytes of what goes around the rings that end a step, of other weights than experts' and of these.
struct UpdateBytes {
  double gradients = 0, gradients_of_experts = 0, parameters = 0, parameters_of_experts = 0;
};

UpdateBytes update_bytes(const ResolvedRun& run, int pp_rank) {
  const ElementBytes element = element_bytes_of(run.config);
  const UpdatedBuffers buffers = updated_buffers(run, pp_rank);
  const bool shared = shares_state(run);
  const double microbatches = count_of(run.microbatches_per_step), value = count_of(element.value),
               gradient =
                   count_of(element.gradient) * (shared ? 1 : 2) * (buffers.reduces_microbatches ? microbatches : 1);
  UpdateBytes bytes{.gradients = buffers.dense.elements * gradient,
                    .gradients_of_experts = buffers.experts.elements * gradient};
  if (buffers.gathered) {
    const double all = microbatches * (buffers.gathered->forward + buffers.gathered->backward) * value;
    bytes.parameters = all * (1 - buffers.gathered->experts_share);
    bytes.parameters_of_experts = all * buffers.gathered->experts_share;
  } else if (shared) {
    bytes.parameters = buffers.dense.elements * value;
    bytes.parameters_of_experts = buffers.experts.elements * value;
  }
  return bytes;
}

/// Bytes of what the first and the last stage both have; 0 where that is nothing, or one rank has both.
double tied_bytes(const ResolvedRun& run) {
  const int first = run.placement.rank_of(0), last = run.placement.rank_of(run.placement.num_stages() - 1);
  if ((!run.shape.tied_output && run.shape.mtp_depths == 0) || first == last) return 0;
  double elements = count_of(run.shape.padded_vocab * run.shape.hidden) / run.grid.size(Axis::Tp);
  if (run.shape.learned_positions && run.shape.mtp_depths > 0)
    elements += count_of((run.shape.position_offset + run.shape.max_positions) * run.shape.hidden);
  return elements * count_of(element_bytes_of(run.config).gradient);
}

class Sender {
 public:
  explicit Sender(int rank) : rank_(rank) {}

  void send(int to, TrafficKind kind, double bytes) {
    if (bytes > 0 && to != rank_) bytes_[{to, kind}] += bytes;
  }
  /// To the next of a ring.
  void pass_on(const Peers& ring, TrafficKind kind, double bytes) {
    send(ring.ranks[static_cast<std::size_t>((ring.index + 1) % ring.size())], kind, bytes);
  }
  /// A part to each other rank.
  void scatter(const Peers& group, TrafficKind kind, double bytes) {
    for (const int to : group.ranks) send(to, kind, bytes / std::max(1, group.size() - 1));
  }
  void append_to(std::vector<Traffic>& all) const {
    for (const auto& [where, bytes] : bytes_) all.push_back({rank_, where.first, where.second, bytes});
  }

 private:
  int rank_;
  std::map<std::pair<int, TrafficKind>, double> bytes_;
};

}  // namespace

std::vector<Traffic> step_traffic(const ResolvedRun& run) {
  const schedule::Program program = pipeline_program(run, run.microbatches_per_step);
  const LayerTraffic pieces(run);
  const RankRoles roles = roles_of(run);
  const std::vector<Sent> by_stage = sent_by_stage(run, pieces, program);
  const schedule::Placement& placement = run.placement;
  std::vector<UpdateBytes> updates;
  for (int pp_rank = 0; pp_rank < placement.num_ranks(); ++pp_rank) updates.push_back(update_bytes(run, pp_rank));
  const config::ParallelConfig& parallel = run.config.parallel;
  const bool gathers = parallel.scatter_gather && !parallel.sp;
  const double message =
      pieces.message() * count_of(run.microbatches_per_step) / (gathers || parallel.sp ? run.grid.size(Axis::Tp) : 1);
  const int last = placement.rank_of(placement.num_stages() - 1), first = placement.rank_of(0);
  std::vector<Traffic> all;
  for (int rank = 0; rank < run.grid.world_size(); ++rank) {
    Sender sender(rank);
    const Peers tensor = roles.tensor(rank), sequence = roles.sequence(rank), pipeline = roles.pipeline(rank),
                experts = roles.split_otherwise() ? roles.expert_copy(rank) : roles.experts(rank);
    for (const int stage : placement.stages_of(pipeline.index)) {
      Sent sent = by_stage[static_cast<std::size_t>(stage)];
      for (const TrafficKind kind : {TrafficKind::Tensor, TrafficKind::Sequence})
        sender.pass_on(tensor, kind, of(sent, kind));
      sender.scatter(experts, TrafficKind::Experts, of(sent, TrafficKind::Experts));
      if (pieces.exchanges_heads())
        sender.scatter(sequence, TrafficKind::Context, of(sent, TrafficKind::Context));
      else
        sender.pass_on(sequence, TrafficKind::Context, of(sent, TrafficKind::Context));
      for (const int other : {stage - 1, stage + 1}) {  // gradients back, activations on
        if (other < 0 || other >= placement.num_stages() || placement.rank_of(other) == pipeline.index) continue;
        sender.send(pipeline.ranks[static_cast<std::size_t>(placement.rank_of(other))], TrafficKind::Pipeline, message);
        // As much comes from there, in parts.
        if (gathers)
          sender.pass_on(tensor, TrafficKind::Tensor,
                         ring_share(run.grid.size(Axis::Tp)) * pieces.message() * count_of(run.microbatches_per_step));
      }
    }
    const UpdateBytes& update = updates[static_cast<std::size_t>(pipeline.index)];
    for (const bool of_experts : {false, true}) {
      const Peers ring = roles.gradients(rank, of_experts ? Weights::Experts : Weights::Dense);
      const double share = ring_share(ring.size());
      sender.pass_on(ring, TrafficKind::Gradients,
                     share * (of_experts ? update.gradients_of_experts : update.gradients));
      sender.pass_on(ring, TrafficKind::Parameters,
                     share * (of_experts ? update.parameters_of_experts : update.parameters));
    }
    if (pipeline.index == first || pipeline.index == last)
      sender.send(pipeline.ranks[static_cast<std::size_t>(pipeline.index == first ? last : first)],
                  TrafficKind::Gradients, tied_bytes(run));
    sender.append_to(all);
  }
  return all;
}

}  // namespace megatron::plan
