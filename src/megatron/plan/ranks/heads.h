#pragma once
#include <cstdint>

namespace megatron::plan {

/// Throws ConfigError, with the nearest sizes that fit, unless tp ranks can share so many query heads in so many
/// groups: the heads divide by tp, and the groups divide by it or it by them. `also`: what else divides by the sizes
/// that are proposed, as other rules want; 0: nothing.
void check_heads(std::int64_t num_heads, std::int64_t num_groups, int tp, std::int64_t also = 0);

}  // namespace megatron::plan
