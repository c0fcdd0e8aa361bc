#include "megatron/plan/steps/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

double cosine_from_one(double x) { return 0.5 * (std::cos(std::numbers::pi * x) + 1.0); }

/// The share of the way from `min` to `peak` at share `x` of the final decay.
double wsd_share(WsdDecay decay, double x) {
  switch (decay) {
    case WsdDecay::Linear:
      return 1.0 - x;
    case WsdDecay::Cosine:
      return cosine_from_one(x);
    case WsdDecay::Exponential:
      return 2.0 * std::pow(0.5, x) - 1.0;
    case WsdDecay::MinusSqrt:
      return 1.0 - std::sqrt(x);
  }
  throw std::logic_error("wsd_share: no such decay");
}

}  // namespace

LrDecay lr_decay_of(const std::string& name) {
  if (name == "constant") return LrDecay::Constant;
  if (name == "linear") return LrDecay::Linear;
  if (name == "cosine") return LrDecay::Cosine;
  if (name == "inverse-square-root") return LrDecay::InverseSquareRoot;
  if (name == "WSD") return LrDecay::Wsd;
  throw ConfigError(
      rule_got_fix("schedule.lr_decay_style must be constant, linear, cosine, inverse-square-root or WSD.",
                   "'" + name + "'", "--lr-decay-style cosine (the default)"));
}

WsdDecay wsd_decay_of(const std::string& name) {
  if (name == "linear") return WsdDecay::Linear;
  if (name == "cosine") return WsdDecay::Cosine;
  if (name == "exponential") return WsdDecay::Exponential;
  if (name == "minus_sqrt") return WsdDecay::MinusSqrt;
  throw ConfigError(rule_got_fix("schedule.lr_wsd_decay_style must be linear, cosine, exponential or minus_sqrt.",
                                 "'" + name + "'", "--lr-wsd-decay-style exponential (the default)"));
}

double LearningRateSchedule::at(std::int64_t samples) const {
  const auto n = static_cast<double>(samples), end = static_cast<double>(decay_samples);
  const double warmup = warmup_samples;
  if (warmup > 0 && n <= warmup) return warmup_init + (peak - warmup_init) * n / warmup;
  if (decay == LrDecay::Constant) return peak;
  if (samples > decay_samples) return min;
  double share = 0;
  switch (decay) {
    case LrDecay::InverseSquareRoot:
      return std::max(min, peak * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
    case LrDecay::Wsd: {
      const auto length = static_cast<double>(wsd_samples);
      const double x = (n - (end - length)) / length;
      share = x <= 0 ? 1.0 : wsd_share(wsd_decay, x);
      break;
    }
    case LrDecay::Linear:
      share = 1.0 - (n - warmup) / (end - warmup);
      break;
    case LrDecay::Constant:
    case LrDecay::Cosine:
      share = cosine_from_one((n - warmup) / (end - warmup));
      break;
  }
  return min + share * (peak - min);
}

}  // namespace megatron::plan
