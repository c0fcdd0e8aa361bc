#pragma once
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::optim {

/// Makes the parameters whole after each data-parallel rank has updated its shards: one all-gather a bucket, in place,
/// in the order in which the next forward pass needs them. Nothing where this rank owns whole buckets.
class ParameterGatherer {
 public:
  /// `owned`, `experts`: see GradientReducer. `overlap`: start() returns at once, and each parameter is there when its
  /// reader asks for it (parallel::Parameter::arrived).
  ParameterGatherer(const parallel::ParameterStore& parameters, comm::Group dp, std::vector<plan::Shard> owned,
                    bool overlap, comm::Group experts = {});

  /// After the update. Collective over dp.
  void start() const;

 private:
  const parallel::ParameterStore& parameters_;
  comm::Group dp_, experts_;
  std::vector<plan::Shard> owned_;
  bool overlap_;
};

}  // namespace megatron::optim
