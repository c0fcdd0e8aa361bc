#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// How often the experts of a run were chosen, as metrics.jsonl has it with log.moe_per_layer.
namespace megatron::supervise {

/// Numbers by layer that has experts, in order, and by expert: rows of one length. Which layers of the model these are
/// the file does not say.
using ExpertLoads = std::vector<std::vector<double>>;

/// The copies of tokens that a step's `expert_loads` says. Empty where the value is no such table: rows of one length,
/// of finite numbers >= 0.
ExpertLoads expert_loads_of(const nlohmann::json& value);

/// Copies as multiples of the mean of their layer; 0 in a layer that has none.
ExpertLoads relative_loads(ExpertLoads copies);

/// Relative loads as a heat map, one SVG file. `title`: "" for what the numbers are. std::logic_error without loads.
std::string draw_expert_loads(const ExpertLoads& relative, const std::string& title = "");

}  // namespace megatron::supervise
