#include "megatron/optim/gradient_reducer.h"

#include <ATen/ops/zero.h>

#include <utility>

namespace megatron::optim {

// Every rank of the group must start the same buckets in the same order, or their collectives meet the wrong partners.
//
// Within a stage buckets start in the order of the buffer alone: what has started is the longest run of complete
// buckets, whatever the order in which a backward pass wrote their gradients. So it depends on the set of contributions
// written so far. Across stages: an operation of the program (a forward or backward pass of one microbatch through one
// stage, or its put-off weight gradients) completes gradients of one stage, and the ranks run the same operations in
// the same order. After each operation the set of contributions is the same on every rank, hence so is the run of each
// stage, and the buckets started during the operation are the end of one stage's run. start_stage() and finish() are at
// the same places of every rank's program.
//
// The one parameter that two stages write, a tied embedding with both ends on this rank, keeps to this: the last
// stage's forward pass writes it and nothing else.
struct GradientReducer::Impl {
  struct Bucket {
    at::Tensor gradients;  // the bucket's part of the flat buffer
    at::Tensor owned;      // this rank's slice of it, a view; undefined where it is all
    std::vector<parallel::ParameterPtr> parameters;
    std::size_t stage = 0;  // index into `stages`
    std::size_t incomplete = 0;
    comm::WorkHandle work;
  };
  /// Neighbours in the buffer: buckets [next, end) of the stage have not started.
  struct Stage {
    int stage = 0;
    std::size_t begin = 0, next = 0, end = 0;
  };

  comm::Group dp;
  bool overlap;
  std::vector<Bucket> buckets;
  std::vector<Stage> stages;

  void add(const plan::BufferLayout::Bucket& planned, const plan::Range& owned,
           const parallel::ParameterStore& parameters) {
    if (stages.empty() || stages.back().stage != planned.stage)
      stages.push_back({planned.stage, buckets.size(), buckets.size(), buckets.size()});
    ++stages.back().end;
    Bucket bucket;
    bucket.stage = stages.size() - 1;
    bucket.gradients = parameters.gradients().narrow(0, planned.begin, planned.end - planned.begin);
    if (owned != plan::Range{planned.begin, planned.end})
      bucket.owned = parameters.gradients().narrow(0, owned.begin, owned.size());
    for (const int index : planned.parameters)
      bucket.parameters.push_back(parameters.all().at(static_cast<std::size_t>(index)));
    buckets.push_back(std::move(bucket));
  }

  void parameter_complete(Bucket& bucket) {
    --bucket.incomplete;
    Stage& stage = stages[bucket.stage];
    while (overlap && stage.next < stage.end && buckets[stage.next].incomplete == 0) start_next(stage);
  }

  // A backward pass outside of a step concerns nobody here.
  void disarm() const {
    for (const auto& bucket : buckets)
      for (const auto& parameter : bucket.parameters) parameter->on_complete(0, [] {});
  }

  void start_next(Stage& stage) {
    Bucket& bucket = buckets[stage.next++];
    for (const auto& parameter : bucket.parameters)
      if (parameter->contributions() == 0) parameter->grad.zero_();  // what is left of the step before
    bucket.work = bucket.owned.defined() ? dp.reduce_scatter_async(bucket.owned, bucket.gradients)
                                         : dp.all_reduce_async(bucket.gradients);
  }

  void start_all(Stage& stage) {
    while (stage.next < stage.end) start_next(stage);
  }
};

GradientReducer::GradientReducer(const parallel::ParameterStore& parameters, comm::Group dp,
                                 const std::vector<plan::Shard>& owned, bool overlap)
    : impl_(std::make_unique<Impl>()) {
  impl_->dp = std::move(dp);
  impl_->overlap = overlap;
  const auto& buckets = parameters.layout().buckets;
  for (std::size_t b = 0; b < buckets.size(); ++b) impl_->add(buckets[b], owned.at(b).world, parameters);
}

GradientReducer::~GradientReducer() { impl_->disarm(); }

void GradientReducer::begin_step(int num_microbatches) {
  for (auto& stage : impl_->stages) stage.next = stage.begin;
  for (auto& bucket : impl_->buckets) {
    bucket.incomplete = bucket.parameters.size();
    bucket.work.reset();
    for (const auto& parameter : bucket.parameters) {
      parameter->clear_gradient();
      parameter->on_complete(parameter->spec.gradient_uses * num_microbatches,
                             [impl = impl_.get(), &bucket] { impl->parameter_complete(bucket); });
    }
  }
}

void GradientReducer::start_stage(int stage) {
  for (auto& candidate : impl_->stages)
    if (impl_->overlap && candidate.stage == stage) impl_->start_all(candidate);
}

void GradientReducer::finish() {
  impl_->disarm();
  for (auto& stage : impl_->stages) impl_->start_all(stage);
  for (auto& bucket : impl_->buckets) {
    bucket.work->wait();
    bucket.work.reset();
  }
}

}  // namespace megatron::optim
