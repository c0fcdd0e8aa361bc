#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/plan/stages.h"

// Parameters with ZeRO stage 3 (Rajbhandari et al. 2020; Zhao et al. 2023): a rank holds its shards of them, and
// gathers those of a layer before it is computed, in each pass anew.
namespace megatron::plan {

/// Parameters that are gathered together: of a stage those of one depth (ParameterSpec::depth), which are a layer, what
/// comes before the layers, or what follows them.
struct ParameterUnit {
  int stage = 0;
  std::int64_t depth = 0;
  std::vector<int> buckets;  ///< of the layout, in its order; those that the rank owns whole are in no unit
  Range memory;              ///< in the pool
};

/// The units that the passes of a stage read, in order. Which come after a unit follows from it: they are gathered
/// while that is computed.
struct UnitOrders {
  std::vector<int> forward, backward;
  std::vector<int> partial_backward;  ///< of a microbatch that recomputes in part (schedule::Op::partial)
};

/// Memory in which gathered units take turns. Elements.
struct ParameterPool {
  static constexpr std::int64_t kOwned = -1;

  std::int64_t size = 0;
  std::vector<std::int64_t> begin;  ///< where each bucket lies while it is there; kOwned: among the rank's shards
  std::vector<ParameterUnit> units;
  std::map<int, UnitOrders> orders;  ///< by stage
};

/// A stage of this rank (StageSpec), and its layers in the groups that backward passes go through, the second of
/// partial microbatches (layer_groups()).
struct StageReads {
  int stage = 0;
  std::int64_t first_layer = 0, num_layers = 0;
  bool output = true;
  std::vector<LayerGroup> groups = {}, partial_groups = {};
};

/// Units that follow one another in an order are there together and lie apart: one is computed, the other on its way.
/// So do a tied output layer's matrix and the last layer. `layout`: no bucket has parameters of two depths.
ParameterPool parameter_pool(const BufferLayout& layout, const std::vector<ParameterSpec>& specs, const Owners& owners,
                             const std::vector<StageReads>& stages);

/// Pairs of units that follow one another in some order, so are there together; the lower number first.
std::set<std::pair<int, int>> neighbours(const ParameterPool& pool);

/// Elements that a rank gathers, with its own, while its passes read units in this order, from an empty pool on.
std::int64_t gathered_elements(const ParameterPool& pool, const std::vector<int>& order);

}  // namespace megatron::plan
