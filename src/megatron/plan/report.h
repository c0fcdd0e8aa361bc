#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/plan/rules.h"

// What `megatron plan` prints: everything that the ranks of a run will do, as data.
namespace megatron::plan {

/// The whole plan, nothing left out: groups by name, each parameter with its slices, where each gradient lies, which
/// samples each rank computes in the first step, memory by rank, arithmetic. Positions and lengths are elements,
/// ranges are [begin, end). Of a step of more than 65536 samples, the first microbatches alone are listed.
/// `processor`: what the ranks run on, see packs_weights(). The plan depends on these and the configuration alone, not
/// on the machine that makes it.
nlohmann::json report(const ResolvedRun& run, std::string_view processor = {});

/// report() for a reader: equal layers once, long lists by their beginning. Sums are those of the figures shown, each
/// rounded to a thousandth of the sum's unit.
std::string report_text(const ResolvedRun& run, std::string_view processor = {});

}  // namespace megatron::plan
