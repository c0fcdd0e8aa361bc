#include "megatron/supervise/expert_loads.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "megatron/charts/heat_map.h"

namespace megatron::supervise {

ExpertLoads expert_loads_of(const nlohmann::json& value) {
  ExpertLoads loads;
  if (!value.is_array()) return {};
  for (const nlohmann::json& row : value) {
    if (!row.is_array() || row.empty()) return {};
    std::vector<double>& to = loads.emplace_back();
    for (const nlohmann::json& load : row) {
      if (!load.is_number() || !(load.get<double>() >= 0) || !std::isfinite(load.get<double>())) return {};
      to.push_back(load.get<double>());
    }
    if (to.size() != loads.front().size()) return {};
  }
  return loads;
}

ExpertLoads relative_loads(ExpertLoads copies) {
  for (std::vector<double>& layer : copies) {
    const double mean = std::accumulate(layer.begin(), layer.end(), 0.0) / static_cast<double>(layer.size());
    for (double& load : layer) load = mean > 0 ? load / mean : 0;
  }
  return copies;
}

std::string draw_expert_loads(const ExpertLoads& relative, const std::string& title) {
  charts::HeatMapNames names{.title = title.empty() ? "load of experts, 1: the mean of their layer" : title,
                             .rows = "layer",
                             .columns = "expert",
                             .labels = {}};
  for (std::size_t layer = 0; layer < relative.size(); ++layer) names.labels.push_back(std::to_string(layer));
  return charts::draw_heat_map(names, relative);
}

}  // namespace megatron::supervise
