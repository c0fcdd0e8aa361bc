#pragma once
#include <cmath>
#include <string>

#include "megatron/base/error.h"

// How a token is drawn. No torch here, and nothing to link: what is wrong with the words of a command is said before
// libtorch is loaded.
namespace megatron::generate {

struct SamplingOptions {
  double temperature = 1;  ///< divides the logits; 0: the likeliest token (greedy)
  int top_k = 0;           ///< only the k likeliest tokens; 0: all
  double top_p = 1;        ///< only the likeliest tokens that together reach this probability (Holtzman et al. 2020)
  double min_p = 0;        ///< only tokens at least this share as likely as the likeliest (Nguyen et al. 2024); 0: all
};

/// Throws ConfigError, for all violated rules together, unless temperature >= 0, top_k >= 0,
/// 0 < top_p <= 1 and 0 <= min_p <= 1.
inline void check(const SamplingOptions& options) {
  std::string broken;
  const auto rule = [&](bool holds, const std::string& text, const std::string& got, const char* fix) {
    if (!holds) broken += (broken.empty() ? "" : "\n") + rule_got_fix(text, got, fix);
  };
  // Written so that NaN breaks them.
  rule(options.temperature >= 0 && std::isfinite(options.temperature), "temperature must be 0 (greedy) or above.",
       concat(options.temperature), "--temperature 1, or 0");
  rule(options.top_k >= 0, "top-k must be 0 (all tokens) or above.", concat(options.top_k), "--top-k 0 (the default)");
  rule(options.top_p > 0 && options.top_p <= 1, "top-p must be above 0 and at most 1.", concat(options.top_p),
       "--top-p 1 (the default)");
  rule(options.min_p >= 0 && options.min_p <= 1, "min-p must be 0 (all tokens) to 1.", concat(options.min_p),
       "--min-p 0 (the default)");
  if (!broken.empty()) throw ConfigError(broken);
}

}  // namespace megatron::generate
