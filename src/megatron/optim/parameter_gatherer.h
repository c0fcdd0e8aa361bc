#pragma once
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/optim/unit_gatherer.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/schedule/program.h"

namespace megatron::optim {

/// Makes the parameters whole after each data-parallel rank has updated its shards: one all-gather a bucket, in place,
/// in the order in which the next forward pass needs them. Nothing where this rank owns whole buckets. Where values
/// take turns (ZeRO stage 3) they are gathered as they are read, in each pass anew (UnitGatherer); so are those of
/// weights that are not trained, whose adapters are the parameters (ParameterStore::frozen()).
class ParameterGatherer {
 public:
  /// `owned`, `experts`: see GradientReducer. `overlap`: start() returns at once, and each parameter is there when its
  /// reader asks for it (parallel::Parameter::arrived).
  ParameterGatherer(const parallel::ParameterStore& parameters, comm::Group dp, std::vector<plan::Shard> owned,
                    bool overlap, comm::Group experts = {});

  /// After the update. Collective over dp.
  void start() const;
  /// Shards were filled from outside, and the parameters with them where these are whole.
  void forget() const;

  /// This rank computes operations one after the other: `op`, and then `next`, null for the last. Where values take
  /// turns that says what is gathered ahead.
  void begin(const schedule::Op& op, const schedule::Op* next) const;
  /// After the last of them: waits for what was gathered ahead.
  void end() const;

 private:
  const parallel::ParameterStore& parameters_;
  comm::Group dp_, experts_;
  std::vector<plan::Shard> owned_;
  bool overlap_;
  std::unique_ptr<UnitGatherer> units_;   ///< where values take turns
  std::unique_ptr<UnitGatherer> frozen_;  ///< where those of weights that are not trained do
};

}  // namespace megatron::optim
