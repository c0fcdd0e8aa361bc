#pragma once
#include <string>
#include <vector>

#include "megatron/plan/cost/hardware.h"
#include "megatron/plan/cost/links/step_traffic.h"

namespace megatron::study {

/// An SVG picture of what `ranks` ranks, which fill nodes in order, send one another in a step: by what for and over
/// which links, with the time that the busiest rank's or node's bytes take at the rates of `hardware`, and who sends to
/// whom. Up to 64 ranks have a row each; of more, nodes, or groups of them.
std::string traffic_svg(const std::vector<plan::Traffic>& traffic, int ranks, const plan::Hardware& hardware,
                        const std::string& title);

}  // namespace megatron::study
