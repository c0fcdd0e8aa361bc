#include "megatron/optim/gradient_reducer.h"

#include <ATen/ops/zero.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace megatron::optim {

// Every rank of the group must start the same buckets in the same order, or their collectives meet the wrong partners.
//
// Within a stage buckets start in the order of the buffer alone, round after round: what has started is the longest run
// of complete buckets, whatever the order in which a backward pass wrote their gradients. So it depends on the set of
// contributions written so far. Across stages: an operation of the program (a forward or backward pass of one
// microbatch through one stage, or its put-off weight gradients) completes gradients of one stage, and the ranks run
// the same operations in the same order. After each operation the set of contributions is the same on every rank, hence
// so is the run of each stage, and the buckets started during the operation are the end of one stage's run.
// start_stage() and finish() are at the same places of every rank's program.
//
// The one parameter that two stages write, a tied embedding with both ends on this rank, keeps to this: the last
// stage's forward pass writes it and nothing else.
//
// Without a pool a step is one round. With one every microbatch is a round, in which each parameter has got as many
// contributions as a microbatch has for it. It does not matter of which microbatches, or whether some of the next are
// there too: a reduction takes what is there, and sums are added up. What a round has to do is end, before another
// bucket needs the memory.
struct GradientReducer::Impl {
  struct Counted {
    parallel::ParameterPtr parameter;
    std::int64_t written = 0;  // contributions in this step
  };
  struct Bucket {
    at::Tensor gradients;          // whole
    at::Tensor owned;              // this rank's slice of it, a view; undefined where it is all
    at::Tensor sum;                // where a pooled bucket's slice is added up; else undefined
    std::vector<at::Tensor> gaps;  // of a pooled bucket: what no parameter writes
    plan::Range memory;            // in the pool
    std::vector<Counted> parameters;
    bool experts = false;        // summed over `experts`
    std::size_t stage = 0;       // index into `stages`
    std::int64_t rounds = 0;     // that have started
    std::size_t incomplete = 0;  // parameters that lack contributions of the next round
    bool open = false;           // of a pooled bucket: it holds contributions that no reduction has taken
    comm::WorkHandle work;
  };
  /// Neighbours in the buffer.
  struct Stage {
    int stage = 0;
    std::size_t begin = 0, next = 0, end = 0;  // buckets [begin, end); `next` starts next
  };

  comm::Group dp, experts;
  bool overlap;
  bool pooled;
  GradientPass pass;
  std::int64_t rounds = 1, microbatches = 1;  // of a step; of a round
  std::vector<Bucket> buckets;
  std::vector<Stage> stages;
  std::vector<Bucket*> in_pool;  // open, or under way

  void add(std::size_t index, const plan::Range& owned, const parallel::ParameterStore& parameters) {
    const plan::BufferLayout::Bucket& planned = parameters.layout().buckets[index];
    if (stages.empty() || stages.back().stage != planned.stage)
      stages.push_back({planned.stage, buckets.size(), buckets.size(), buckets.size()});
    ++stages.back().end;
    Bucket bucket;
    bucket.experts = planned.experts;
    bucket.stage = stages.size() - 1;
    bucket.gradients = parameters.bucket_gradients(index);
    if (owned != plan::Range{planned.begin, planned.end})
      bucket.owned = bucket.gradients.narrow(0, owned.begin - planned.begin, owned.size());
    for (const int parameter : planned.parameters)
      bucket.parameters.push_back({parameters.all().at(static_cast<std::size_t>(parameter))});
    if (pooled) {
      bucket.sum = parameters.summed_gradients(owned);
      const std::int64_t begin = parameters.pooled()->pool.begin[index];
      bucket.memory = {begin, begin + bucket.gradients.numel()};
      add_gaps(bucket, planned, parameters.layout());
    }
    buckets.push_back(std::move(bucket));
  }

  static void add_gaps(Bucket& bucket, const plan::BufferLayout::Bucket& planned, const plan::BufferLayout& layout) {
    std::int64_t at = planned.begin;
    const auto until = [&](std::int64_t end) {
      if (end > at) bucket.gaps.push_back(bucket.gradients.narrow(0, at - planned.begin, end - at));
    };
    for (const int parameter : planned.parameters) {
      const auto& slot = layout.slot_of(parameter);
      until(slot.begin);
      at = slot.end;
    }
    until(planned.end);
  }

  /// Contributions of a parameter that the bucket's next round waits for, with those before it.
  std::int64_t needed(const Bucket& bucket, const Counted& counted) const {
    return (bucket.rounds + 1) * microbatches * counted.parameter->spec.gradient_uses;
  }
  void count_incomplete(Bucket& bucket) const {
    bucket.incomplete = static_cast<std::size_t>(
        std::count_if(bucket.parameters.begin(), bucket.parameters.end(),
                      [&](const Counted& counted) { return counted.written < needed(bucket, counted); }));
  }

  void written(Bucket& bucket, Counted& counted) {
    if (++counted.written != needed(bucket, counted)) return;
    --bucket.incomplete;
    Stage& stage = stages[bucket.stage];
    const auto due = [&] { return buckets[stage.next].incomplete == 0 && buckets[stage.next].rounds < rounds; };
    while ((overlap || pooled) && due()) {
      start(buckets[stage.next]);
      if (++stage.next == stage.end) stage.next = stage.begin;
    }
  }

  /// Ends the reduction of a bucket that is under way, and with a pool its stay there.
  void settle(Bucket& bucket) {
    if (!bucket.work) return;
    std::exchange(bucket.work, nullptr)->wait();
    if (!pooled) return;
    const at::Tensor& own = bucket.owned.defined() ? bucket.owned : bucket.gradients;  // of experts on one rank: all
    if (bucket.rounds == 1)
      bucket.sum.copy_(own);
    else
      bucket.sum.add_(own);
    std::erase(in_pool, &bucket);
  }

  /// Before the first contribution of a round: the bucket's memory is its own from here on.
  void open(Bucket& bucket) {
    if (!pooled || bucket.open) return;
    settle(bucket);
    const std::vector<Bucket*> others = in_pool;
    for (Bucket* other : others) {
      if (plan::intersection(other->memory, bucket.memory).empty()) continue;
      if (other->open) throw std::logic_error("the plan of the gradient pool has put two buckets in one place");
      settle(*other);
    }
    for (at::Tensor& gap : bucket.gaps) gap.zero_();
    bucket.open = true;
    in_pool.push_back(&bucket);
  }

  // A backward pass outside of a step concerns nobody here.
  void disarm() const {
    for (const auto& bucket : buckets)
      for (const auto& counted : bucket.parameters) counted.parameter->watch(nullptr, nullptr);
  }

  void start(Bucket& bucket) {
    open(bucket);
    for (const auto& [parameter, written] : bucket.parameters)
      if (parameter->contributions() == 0) parameter->grad.zero_();  // what is left of the step before
    if (pass.look)
      for (const auto& counted : bucket.parameters) pass.look(*counted.parameter, bucket.rounds);
    const comm::Group& ranks = bucket.experts ? experts : dp;
    if (pass.reduces)
      bucket.work = bucket.owned.defined() ? ranks.reduce_scatter_async(bucket.owned, bucket.gradients)
                                           : ranks.all_reduce_async(bucket.gradients);
    ++bucket.rounds;
    if (!pooled) return;
    bucket.open = false;
    for (const auto& counted : bucket.parameters) counted.parameter->clear_gradient();
    count_incomplete(bucket);
    if (!pass.reduces)
      std::erase(in_pool, &bucket);
    else if (!overlap)
      settle(bucket);
  }

  /// What has been written and not reduced; without a pool all that has not been.
  void start_rest(const Stage& stage) {
    for (std::size_t b = stage.begin; b < stage.end; ++b)
      if (pooled ? buckets[b].open : buckets[b].rounds == 0) start(buckets[b]);
  }
};

GradientReducer::GradientReducer(const parallel::ParameterStore& parameters, comm::Group dp,
                                 const std::vector<plan::Shard>& owned, bool overlap, comm::Group experts)
    : impl_(std::make_unique<Impl>()) {
  impl_->dp = std::move(dp);
  impl_->experts = std::move(experts);
  impl_->overlap = overlap;
  impl_->pooled = parameters.pooled().has_value();
  for (std::size_t b = 0; b < parameters.layout().buckets.size(); ++b) impl_->add(b, owned.at(b).world, parameters);
}

GradientReducer::~GradientReducer() { impl_->disarm(); }

void GradientReducer::begin_step(int num_microbatches, GradientPass pass) {
  impl_->pass = std::move(pass);
  impl_->rounds = impl_->pooled ? num_microbatches : 1;
  impl_->microbatches = impl_->pooled ? 1 : num_microbatches;
  impl_->in_pool.clear();
  for (auto& stage : impl_->stages) stage.next = stage.begin;
  for (auto& bucket : impl_->buckets) {
    bucket.rounds = 0;
    bucket.open = false;
    bucket.work.reset();
    for (auto& counted : bucket.parameters) {
      counted.written = 0;
      counted.parameter->clear_gradient();
      counted.parameter->watch([impl = impl_.get(), &bucket] { impl->open(bucket); },
                               [impl = impl_.get(), &bucket, &counted] { impl->written(bucket, counted); });
    }
    impl_->count_incomplete(bucket);
  }
}

void GradientReducer::start_stage(int stage) {
  for (auto& candidate : impl_->stages)
    if (impl_->overlap && candidate.stage == stage) impl_->start_rest(candidate);
}

void GradientReducer::finish() {
  impl_->disarm();
  for (auto& stage : impl_->stages) impl_->start_rest(stage);
  for (auto& bucket : impl_->buckets) {
    impl_->settle(bucket);
    if (impl_->pooled && bucket.rounds == 0) bucket.sum.zero_();
  }
  impl_->pass = {};
}

}  // namespace megatron::optim
