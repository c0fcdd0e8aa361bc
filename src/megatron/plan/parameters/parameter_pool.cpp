#include "megatron/plan/parameters/parameter_pool.h"

#include <algorithm>
#include <set>
#include <utility>

#include "megatron/plan/parameters/turns.h"

namespace megatron::plan {
namespace {

/// By stage and depth, ascending; what the rank owns whole is in none.
std::vector<ParameterUnit> units_of(const BufferLayout& layout, const std::vector<ParameterSpec>& specs,
                                    const Owners& owners) {
  std::map<std::pair<int, std::int64_t>, ParameterUnit> units;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const BufferLayout::Bucket& bucket = layout.buckets[b];
    if (owners.of(bucket).ranks == 1) continue;
    const ParameterSpec& first = specs.at(static_cast<std::size_t>(bucket.parameters.front()));
    ParameterUnit& unit = units[{first.stage, first.depth}];
    unit.stage = first.stage;
    unit.depth = first.depth;
    unit.buckets.push_back(static_cast<int>(b));
  }
  std::vector<ParameterUnit> list;
  for (auto& [place, unit] : units) list.push_back(std::move(unit));
  return list;
}

class Orders {
 public:
  Orders(const BufferLayout& layout, const std::vector<ParameterSpec>& specs, const std::vector<ParameterUnit>& units)
      : units_(units) {
    for (std::size_t u = 0; u < units.size(); ++u)
      for (const int bucket : units[u].buckets)
        for (const int parameter : layout.buckets[static_cast<std::size_t>(bucket)].parameters) {
          const ParameterSpec& spec = specs.at(static_cast<std::size_t>(parameter));
          if (spec.name != kWordEmbedding) continue;
          looked_up_ = static_cast<int>(u);
          if (spec.in_forward) words_ = static_cast<int>(u);
        }
  }

  UnitOrders of(const StageReads& stage) const {
    UnitOrders orders;
    std::vector<int> behind;  // the layers
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].stage != stage.stage) continue;
      // Tokens ahead are looked up between the last norm and the depths that predict by them.
      const bool ahead = stage.output && units_[u].depth > 1 + stage.first_layer + stage.num_layers;
      if (ahead && behind.size() == 1) add(orders.forward, looked_up_);
      add(orders.forward, static_cast<int>(u));
      if (units_[u].depth > stage.first_layer + stage.num_layers) behind.push_back(static_cast<int>(u));
    }
    if (stage.output && words_ >= 0) add(orders.forward, words_);
    std::reverse(behind.begin(), behind.end());
    orders.backward = backward(stage, stage.groups, behind);
    orders.partial_backward = backward(stage, stage.partial_groups, behind);
    return orders;
  }
  int words() const { return words_; }

 private:
  static void add(std::vector<int>& order, int unit) {
    if (unit >= 0 && (order.empty() || order.back() != unit)) order.push_back(unit);
  }
  /// Of a layer of the stage; -1: none.
  int layer(const StageReads& stage, std::int64_t number) const {
    const std::int64_t depth = 1 + stage.first_layer + number;
    const auto found = std::ranges::find_if(
        units_, [&](const ParameterUnit& unit) { return unit.stage == stage.stage && unit.depth == depth; });
    return found == units_.end() ? -1 : static_cast<int>(found - units_.begin());
  }
  std::vector<int> backward(const StageReads& stage, const std::vector<LayerGroup>& groups,
                            std::vector<int> order) const {
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
      for (std::int64_t l = group->first; group->again && l < group->last; ++l) add(order, layer(stage, l));
      for (std::int64_t l = group->last; l-- > group->first;) add(order, layer(stage, l));
    }
    return order;
  }

  const std::vector<ParameterUnit>& units_;
  int words_ = -1;      ///< the unit of the word embedding that is the output layer's matrix too
  int looked_up_ = -1;  ///< that of the word embedding
};

}  // namespace

std::set<std::pair<int, int>> neighbours(const ParameterPool& pool) {
  std::set<std::pair<int, int>> pairs;
  const auto add = [&](int a, int b) {
    if (a != b) pairs.emplace(std::min(a, b), std::max(a, b));
  };
  for (const auto& [stage, orders] : pool.orders)
    for (const auto* order : {&orders.forward, &orders.backward, &orders.partial_backward})
      for (std::size_t i = 0; i + 1 < order->size(); ++i) add((*order)[i], (*order)[i + 1]);
  return pairs;
}

ParameterPool parameter_pool(const BufferLayout& layout, const std::vector<ParameterSpec>& specs, const Owners& owners,
                             const std::vector<StageReads>& stages) {
  ParameterPool pool;
  pool.begin.assign(layout.buckets.size(), ParameterPool::kOwned);
  pool.units = units_of(layout, specs, owners);
  const Orders orders(layout, specs, pool.units);
  for (const StageReads& stage : stages) pool.orders[stage.stage] = orders.of(stage);
  std::set<std::pair<int, int>> together = neighbours(pool);
  for (const StageReads& stage : stages) {  // the matrix may come while the last layer is still read
    const std::vector<int>& read = pool.orders[stage.stage].forward;
    if (!stage.output || read.size() < 3 || read.back() != orders.words()) continue;
    const int last = read[read.size() - 3];
    if (last != read.back()) together.emplace(std::min(last, read.back()), std::max(last, read.back()));
  }
  const auto size_of = [&](int bucket) {
    const auto& planned = layout.buckets[static_cast<std::size_t>(bucket)];
    return planned.end - planned.begin;
  };
  std::vector<std::int64_t> sizes;
  for (const ParameterUnit& unit : pool.units) {
    sizes.push_back(0);
    for (const int bucket : unit.buckets) sizes.back() += size_of(bucket);
  }
  const Turns turns = take_turns(sizes, std::vector<bool>(sizes.size()), [&](std::size_t a, std::size_t b) {
    return together.contains({static_cast<int>(std::min(a, b)), static_cast<int>(std::max(a, b))});
  });
  pool.size = turns.size;
  for (std::size_t u = 0; u < pool.units.size(); ++u) {
    std::int64_t begin = turns.begin[u];
    pool.units[u].memory = {begin, begin + sizes[u]};
    for (const int bucket : pool.units[u].buckets) {
      pool.begin[static_cast<std::size_t>(bucket)] = begin;
      begin += size_of(bucket);
    }
  }
  return pool;
}

std::int64_t gathered_elements(const ParameterPool& pool, const std::vector<int>& order) {
  std::vector<bool> there(pool.units.size());
  std::int64_t gathered = 0;
  for (const int read : order) {
    const auto own = static_cast<std::size_t>(read);
    if (there[own]) continue;
    for (std::size_t u = 0; u < pool.units.size(); ++u)
      if (!intersection(pool.units[u].memory, pool.units[own].memory).empty()) there[u] = false;
    there[own] = true;
    gathered += pool.units[own].memory.size();
  }
  return gathered;
}

}  // namespace megatron::plan
