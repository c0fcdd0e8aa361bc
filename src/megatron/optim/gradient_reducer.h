#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::optim {

/// What the gradients of one pass over a step's microbatches are for.
struct GradientPass {
  bool reduces = true;  ///< else they stay this rank's own, and are lost: a pass that is only looked at
  /// Called with each parameter once a collective may take its gradient, which it may change: the whole gradient or,
  /// where gradients are pooled, what round `round` (from 0) adds to it. Empty: nobody looks.
  std::function<void(const parallel::Parameter& parameter, std::int64_t round)> look = {};
};

/// Sums the gradient buckets over the data-parallel group: one collective a bucket, started as soon as backward has
/// written its last gradient of the step's last microbatch, so that it overlaps the rest of backward. A gradient is
/// complete after spec.gradient_uses contributions a microbatch, whenever a schedule has them computed.
///
/// The collective is an all-reduce where this rank owns the whole bucket, else a reduce-scatter: then the gradients of
/// the owned slice are whole afterwards, where they lie in the buffer, and those of the rest mean nothing.
///
/// Where the store pools its gradients (ZeRO stages 2 and 3) a bucket is reduced once a microbatch, its slice added to
/// this rank's sum (ParameterStore::summed_gradients), and its memory left to other buckets; also without overlap,
/// which then waits for each.
///
/// Every rank of `dp` goes through a step in the same order: the same program, whose operations each write the same
/// parameters' gradients. Then every rank starts the buckets in the same order (gradient_reducer.cpp says why).
class GradientReducer {
 public:
  /// `owned`: this rank's part of each bucket (plan/parameters/shards.h).
  /// `experts`: the ranks that sum buckets of experts, where these are apart (plan::BufferPadding::experts_apart).
  GradientReducer(const parallel::ParameterStore& parameters, comm::Group dp, const std::vector<plan::Shard>& owned,
                  bool overlap, comm::Group experts = {});
  /// Before the first backward of a step of `num_microbatches`, or of another pass over them. Marks gradients as
  /// empty.
  void begin_step(int num_microbatches, GradientPass pass = {});
  /// After the last backward of a pipeline stage: starts those of its buckets that have not started by themselves.
  /// Nothing without `overlap`. (With a pool they all have, unless a gradient got no contribution.)
  void start_stage(int stage);
  /// After the last backward: asks no more of it, starts what has not started, waits for all. Gradients that got no
  /// contribution in the step are zero. Again: nothing.
  void finish();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  ~GradientReducer();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::optim
