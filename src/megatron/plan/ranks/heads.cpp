#include "megatron/plan/ranks/heads.h"

#include <algorithm>
#include <string>

#include "megatron/base/error.h"

namespace megatron::plan {

void check_heads(std::int64_t num_heads, std::int64_t num_groups, int tp, std::int64_t also) {
  const auto fit = [&](std::int64_t ranks) {
    return num_heads % ranks == 0 && (num_groups % ranks == 0 || ranks % num_groups == 0);
  };
  if (fit(tp)) return;
  const auto proposed = [&](std::int64_t ranks) { return fit(ranks) && also % ranks == 0; };
  std::int64_t below = std::min<std::int64_t>(tp, num_heads), above = tp + std::int64_t{1};
  while (!proposed(below)) --below;  // 1 fits
  while (above <= num_heads && !proposed(above)) ++above;
  std::string fix = concat("--tp ", below);
  if (above <= num_heads) fix += concat(" or ", above);
  const bool grouped = num_groups != num_heads;
  const char* rule = grouped ? "model.num_attention_heads must divide by parallel.tp, and model.num_query_groups must "
                               "divide by it or it by them."
                             : "model.num_attention_heads must divide by parallel.tp.";
  const std::string groups = grouped ? concat(" in ", num_groups, " groups") : "";
  throw ConfigError(rule_got_fix(rule, concat(num_heads, " heads", groups, ", tp=", tp), fix));
}

}  // namespace megatron::plan
