#include "megatron/plan/cost/update_cost.h"

#include <algorithm>
#include <vector>

#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/ranks/rank_roles.h"

namespace megatron::plan {
namespace {

double number_of(std::int64_t value) { return static_cast<double>(value); }

/// What is left of a collective of `buckets` parts that overlaps with `window` seconds of computation: its last part
/// overlaps with nothing.
double exposed_s(const Hardware& hardware, double collective, double buckets, double window) {
  const double hidden = std::min(collective - collective / buckets, window);
  return collective - hidden + hardware.software.overlap_slowdown * hidden;
}

/// The passes of a microbatch go through all stages of the rank and back, again and again.
GatheredElements gathered_of(const ParameterPool& pool, const BufferLayout& layout) {
  std::vector<int> there, back;
  for (const auto& [stage, orders] : pool.orders) {
    there.insert(there.end(), orders.forward.begin(), orders.forward.end());
    back.insert(back.begin(), orders.backward.begin(), orders.backward.end());
  }
  std::vector<int> order = there;
  order.insert(order.end(), back.begin(), back.end());
  const std::int64_t first = gathered_elements(pool, order);
  order.insert(order.end(), there.begin(), there.end());
  const std::int64_t second = gathered_elements(pool, order);
  order.insert(order.end(), back.begin(), back.end());
  double all = 0, experts = 0;  // of buckets that are gathered at all
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    if (pool.begin[b] == ParameterPool::kOwned) continue;
    const double size = number_of(layout.buckets[b].end - layout.buckets[b].begin);
    all += size;
    if (layout.buckets[b].experts) experts += size;
  }
  return {.forward = number_of(second - first),
          .backward = number_of(gathered_elements(pool, order) - second),
          .units = static_cast<double>(pool.units.size()),
          .experts_share = all > 0 ? experts / all : 0};
}

/// The ranks that reduce these weights' gradients.
Span reducing_span(const ResolvedRun& run, const Hardware& hardware, Weights weights) {
  return span_of(run.grid, roles_of(run).gradients(0, weights).ranks, hardware.ranks_per_node);
}

/// Where what a rank exchanges goes: of all weights but experts', and of these.
struct UpdateSpans {
  Span dense, experts;
};

/// A pass around each of both rings, and the latencies of `dense` and `experts` passes more.
double passes_s(const Hardware& hardware, const UpdateSpans& spans, double dense_bytes, double expert_bytes,
                double dense_more, double experts_more) {
  return ring_pass_s(hardware, spans.dense, dense_bytes) + ring_pass_s(hardware, spans.dense, 0) * dense_more +
         (expert_bytes > 0 ? ring_pass_s(hardware, spans.experts, expert_bytes) +
                                 ring_pass_s(hardware, spans.experts, 0) * experts_more
                           : 0);
}

/// What is left of gathering parameters that take turns while one microbatch is computed, in `seconds`.
double gather_in_turn_s(const ResolvedRun& run, const Hardware& hardware, const UpdateSpans& spans,
                        const GatheredElements& gathered, double elements, double seconds) {
  const double bytes = elements * number_of(element_bytes_of(run.config).value), more = gathered.units - 1;
  const double gather =
      passes_s(hardware, spans, bytes * (1 - gathered.experts_share), bytes * gathered.experts_share, more, more);
  return run.config.optimizer.overlap_param_gather ? exposed_s(hardware, gather, gathered.units, seconds) : gather;
}

}  // namespace

UpdatedBuffers updated_buffers(const ResolvedRun& run, int pp_rank) {
  const auto specs = rank_parameters(run, 0, pp_rank);
  const BufferLayout layout = rank_layout(run, specs);
  UpdatedBuffers buffers{.owned = number_of(owned_elements(layout, owners_of(run))),
                         .reduces_microbatches = rank_gradient_pool(run, specs, layout).has_value()};
  for (const BufferLayout::Bucket& bucket : layout.buckets) {
    HeldElements& held = bucket.experts ? buffers.experts : buffers.dense;
    held.elements += number_of(bucket.end - bucket.begin);
    ++held.buckets;
  }
  const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
  if (const auto pool = rank_parameter_pool(run, specs, layout, parts)) buffers.gathered = gathered_of(*pool, layout);
  const auto frozen = frozen_weights(run, 0, parts);
  if (frozen && frozen->pool) buffers.frozen = gathered_of(*frozen->pool, frozen->layout);
  return buffers;
}

StepParts update_cost(const ResolvedRun& run, const Hardware& hardware, const UpdatedBuffers& buffers, double forward,
                      double backward) {
  const ElementBytes element = element_bytes_of(run.config);
  const config::OptimizerConfig& optimizer = run.config.optimizer;
  const UpdateSpans spans{reducing_span(run, hardware, Weights::Dense), reducing_span(run, hardware, Weights::Experts)};
  const auto& [dense, experts, owned, reduces_microbatches, gathered, frozen] = buffers;
  const double microbatches = number_of(run.microbatches_per_step), buckets = dense.buckets + experts.buckets;
  const bool shared = shares_state(run);
  const double gradient = number_of(element.gradient), value = number_of(element.value);
  StepParts parts;
  const double reduce =
      (shared ? 1 : 2) * passes_s(hardware, spans, dense.elements * gradient, experts.elements * gradient,
                                  dense.buckets - 1, experts.buckets - 1);
  parts.data = optimizer.overlap_grad_reduce ? exposed_s(hardware, reduce, buckets, backward) : reduce;
  if (reduces_microbatches) parts.data *= microbatches;
  for (const std::optional<GatheredElements>& in_turn : {gathered, frozen})
    if (in_turn)
      parts.data += microbatches * (gather_in_turn_s(run, hardware, spans, *in_turn, in_turn->forward, forward) +
                                    gather_in_turn_s(run, hardware, spans, *in_turn, in_turn->backward, backward));
  if (shared && !gathered) {
    const double gather = passes_s(hardware, spans, dense.elements * value, experts.elements * value, 0, 0);
    parts.data += optimizer.overlap_param_gather ? exposed_s(hardware, gather, buckets, forward) : gather;
  }
  parts.optimizer = memory_s(hardware, hardware.software.optimizer_bytes * owned);
  return parts;
}

}  // namespace megatron::plan
