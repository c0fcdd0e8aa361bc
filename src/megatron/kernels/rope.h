#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// Rotary position embedding (Su et al. 2021).
namespace megatron::kernels {

/// A change of frequencies for long contexts. Llama 3's: wavelengths above original_positions / low_freq_factor are
/// stretched by `factor`, those below original_positions / high_freq_factor stay, those between are interpolated.
/// Linear: all are stretched. Yarn (Peng et al. 2023): pairs that turn beta_fast times or more over original_positions
/// stay, those that turn beta_slow times or less are stretched, those between are interpolated by their number; and
/// what is rotated is multiplied by attention_factor. LongRope (Ding et al. 2024): wavelengths are multiplied by
/// long_factor, or by short_factor in a table of up to original_positions, and what is rotated by attention_factor.
struct RopeScaling {
  enum class Kind : std::uint8_t { Llama3, Linear, Yarn, LongRope };
  Kind kind = Kind::Llama3;
  double factor = 1;  ///< 1: none
  double low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;  ///< 0: 0.1 ln(factor) + 1; of LongRope sqrt(1 + ln(factor) / ln(original_positions))
  bool whole_pairs = true;      ///< of Yarn: what is interpolated begins and ends at pairs, rounded outwards
  std::int64_t original_positions = 8192;
  std::vector<double> short_factor = {}, long_factor = {};  ///< of LongRope: rotary_dim / 2 numbers above 0 each
};

struct RopeOptions {
  std::int64_t rotary_dim = 0;  ///< of each head the first features that are rotated; even
  double base = 10000;
  bool interleaved = false;  ///< pairs are (2i, 2i+1) rather than (i, i + rotary_dim/2)
  RopeScaling scaling = {};
};

/// Cosines and sines [positions, rotary_dim / 2], computed in float64, kept in float32 (float64 for models in it). Of
/// LongRope `positions`, how many the sequences of a run have at most, decide which of its factors all of them have.
struct RopeTable {
  at::Tensor cos, sin;
  bool interleaved = false;
};
RopeTable rope_table(const RopeOptions& options, std::int64_t positions, at::ScalarType dtype, at::Device device);

/// Rotates `heads` [s, b, .., d] in place (any strides with the last dimension contiguous: views of the fused
/// projection) by the angles of its positions: position_ids [b, s] int64, or where undefined first_position + 0, 1, ….
/// `inverse` rotates back, which is the backward pass.
void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
             std::int64_t first_position, bool inverse = false);

}  // namespace megatron::kernels
