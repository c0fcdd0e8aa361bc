#pragma once
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

namespace megatron::optim {

/// Gathers the units of a plan::ParameterPool when their values are read (ZeRO stage 3): one all-gather a bucket, from
/// the ranks' shards into the unit's place in the pool, where other units were. With `overlap` the unit that the order
/// of the pass says comes next is on its way while one is computed; what is still there is not gathered again. Copies
/// of weights that products have made (kernels::PackedWeight) are those of the last two units alone.
///
/// Every rank of a group reads the units in the same order: the same program, whose operations each read the same
/// layers. So their collectives meet.
class UnitGatherer {
 public:
  /// `experts`: the ranks that share buckets of experts. From now on the parameters of `store`, whose values take
  /// turns, ask it; both must outlive their use. Not collective.
  UnitGatherer(const parallel::ParameterStore& store, comm::Group dp, bool overlap, comm::Group experts);
  UnitGatherer(const UnitGatherer&) = delete;
  UnitGatherer& operator=(const UnitGatherer&) = delete;
  ~UnitGatherer();

  /// A pass begins that reads units in this order; `next`: the first one of the pass after it, below 0 where there is
  /// none. The order says what is gathered ahead; whatever is read is gathered.
  void begin(const std::vector<int>& order, int next);
  /// A pass is over: waits for what is on its way. Then, until values are read again, shards may change.
  void settle();
  /// Shards have changed: nothing that was gathered is there any more. Settled.
  void forget();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::optim
