#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace megatron::plan {

enum class LrDecay : std::uint8_t { Constant, Linear, Cosine, InverseSquareRoot, Wsd };
enum class WsdDecay : std::uint8_t { Linear, Cosine, Exponential, MinusSqrt };

/// "cosine" -> LrDecay::Cosine and so on, as in schedule.lr_decay_style and lr_wsd_decay_style. Throws ConfigError.
LrDecay lr_decay_of(const std::string& name);
WsdDecay wsd_decay_of(const std::string& name);

/// The learning rate as a function of the samples that were trained on, equal to Megatron-LM's to the last bit.
struct LearningRateSchedule {
  double warmup_init = 0;  ///< at sample 0, if there is a warm-up
  double peak = 0;
  double min = 0;                  ///< after `decay_samples`
  double warmup_samples = 0;       ///< a share of decay_samples need not be whole
  std::int64_t decay_samples = 0;  ///< from the start of the run, warm-up included
  LrDecay decay = LrDecay::Cosine;
  std::int64_t wsd_samples = 0;  ///< Wsd: length of the final decay, at the end of decay_samples
  WsdDecay wsd_decay = WsdDecay::Exponential;

  /// A step uses at(samples before it); Megatron-LM's log prints at(samples after it).
  double at(std::int64_t samples) const;
};

/// The learning rates of a step: of most parameters, and of the word embedding and the output layer's matrix, which may
/// have one of their own (schedule.decoupled_lr); and its weight decay.
struct LearningRates {
  LearningRates(double all) : usual(all), words(all) {}
  LearningRates(double rate, double of_words) : usual(rate), words(of_words) {}
  double usual, words;
  /// Where it grows over the run (schedule.weight_decay_incr_style); nothing: the optimizer's.
  std::optional<double> weight_decay = {};
};

}  // namespace megatron::plan
