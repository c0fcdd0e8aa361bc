#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/meaning.h"

// The options of [model] that say which features of a head rotary positions turn, and how far.
namespace megatron::config {

struct RotaryVariant {
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  std::string rope_scaling_type = "llama3";
  double rope_scaling_factor = 1;
  double rope_low_freq_factor = 1;
  double rope_high_freq_factor = 4;
  std::int64_t rope_original_positions = 8192;
  double yarn_beta_fast = 32;
  double yarn_beta_slow = 1;
  double yarn_attention_factor = 0;
  bool yarn_correction_range_round_to_int = true;
  std::vector<double> longrope_short_factor, longrope_long_factor;
  double longrope_attention_factor = 0;

  void visit_rotary(auto& v) {
    v("rotary_percent", rotary_percent, "rope: share of a head's features that are rotated.", "rotary-percent",
      when("model.position_embedding_type", {"rope"}));
    v("rotary_interleaved", rotary_interleaved, "rope: rotate pairs of neighbours rather than of halves.",
      "rotary-interleaved");
    v("rope_scaling_factor", rope_scaling_factor,
      "rope: stretch of long wavelengths, as rope_scaling_type says; 1: none.", "rope-scaling-factor");
    v("rope_scaling_type", rope_scaling_type,
      "rope: which wavelengths are stretched: llama3: by the factors below; linear: all; yarn: by how often they turn; "
      "longrope: each by a factor of its own (Phi-3).",
      Choices({"llama3", "linear", "yarn", "longrope"}), when("model.position_embedding_type", {"rope"}),
      unless("model.rope_scaling_factor", {"1"}));
    v("yarn_beta_fast", yarn_beta_fast,
      "yarn: what turns so often or more over rope_original_positions is not stretched.", "yarn-beta-fast",
      when("model.rope_scaling_type", {"yarn"}));
    v("yarn_beta_slow", yarn_beta_slow, "yarn: what turns so often or less is stretched in full.", "yarn-beta-slow",
      when("model.rope_scaling_type", {"yarn"}));
    v("yarn_attention_factor", yarn_attention_factor,
      "yarn: what rotated queries and keys are multiplied by; 0: 0.1 ln(rope_scaling_factor) + 1.",
      when("model.rope_scaling_type", {"yarn"}));
    v("yarn_correction_range_round_to_int", yarn_correction_range_round_to_int,
      "yarn: the stretch begins and ends at whole pairs of features.", "yarn-correction-range-round-to-int",
      when("model.rope_scaling_type", {"yarn"}));
    v("longrope_short_factor", longrope_short_factor,
      "longrope: what each wavelength is multiplied by, shortest first, in runs of sequences of up to "
      "rope_original_positions (docs/decisions/0123).",
      when("model.rope_scaling_type", {"longrope"}));
    v("longrope_long_factor", longrope_long_factor, "longrope: the multipliers in runs of longer sequences.",
      when("model.rope_scaling_type", {"longrope"}));
    v("longrope_attention_factor", longrope_attention_factor,
      "longrope: what rotated queries and keys are multiplied by; 0: sqrt(1 + ln(rope_scaling_factor) / "
      "ln(rope_original_positions)).",
      when("model.rope_scaling_type", {"longrope"}));
    v("rope_low_freq_factor", rope_low_freq_factor,
      "rope: wavelengths above rope_original_positions / this are stretched in full.",
      when("model.position_embedding_type", {"rope"}), unless("model.rope_scaling_factor", {"1"}));
    v("rope_high_freq_factor", rope_high_freq_factor,
      "rope: wavelengths below rope_original_positions / this are not stretched.",
      when("model.position_embedding_type", {"rope"}), unless("model.rope_scaling_factor", {"1"}));
    v("rope_original_positions", rope_original_positions, "rope: positions of the model before the stretch.",
      "yarn-original-max-position-embeddings", when("model.position_embedding_type", {"rope"}),
      unless("model.rope_scaling_factor", {"1"}));
  }
};

}  // namespace megatron::config
