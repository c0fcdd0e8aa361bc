#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megatron::kernels {

/// One dropout site of one microbatch. Element (position p, batch b, feature j) of a [s, b, h] activation is dropped
/// when random_word(key, sample_ids[b], position_of(p) * features + feature_offset + j) is below
/// dropout_threshold(p); kept elements are scaled by 1/(1-p). The mask depends on what the element is, never on the
/// layout of ranks, and is computed again in the backward pass instead of being stored.
struct Dropout {
  double p = 0;                      ///< 0: no dropout, nothing else is read
  std::uint64_t key = 0;             ///< stream_key(seed, "dropout/…")
  at::Tensor sample_ids = {};        ///< [b] int64, on the CPU
  std::int64_t position_offset = 0;  ///< position in the sequence of this rank's first row
  std::int64_t features = 0;         ///< features of the full activation; 0: those of the tensor given
  std::int64_t feature_offset = 0;   ///< first feature of this rank's slice
  /// Where the rows are two pieces of the sequence: from row jump_at on each lies `jump` positions further on.
  std::int64_t jump_at = 0, jump = 0;
  std::int64_t positions = 0;  ///< attention_dropout_mask: queries of the whole sequence; 0: those of the tensor given

  /// Positions and features of the whole activation, of which the tensor given has `own`.
  std::int64_t positions_or(std::int64_t own) const { return positions > 0 ? positions : own; }
  std::int64_t features_or(std::int64_t own) const { return features > 0 ? features : own; }
  /// Position in the sequence of row `row`.
  std::int64_t position_of(std::int64_t row) const { return position_offset + row + (row >= jump_at ? jump : 0); }
};

/// The scaled mask (0 or 1/(1-p)) of `dropout` for an activation [s, b, h], in `dtype` on `device`: plain ATen integer
/// arithmetic, the reference that every fused kernel is tested against, and what runs where there is none.
at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h, at::ScalarType dtype,
                        at::Device device);

/// The scaled mask for attention probabilities [b, n, q, k]: the element index is
/// ((head_offset + n) * full_queries + position_offset + q) * full_keys + feature_offset + k, where full_queries is
/// `positions` and full_keys `features`, each where it is not 0, else the queries and keys given.
at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n, std::int64_t head_offset,
                                  std::int64_t queries, std::int64_t keys, at::ScalarType dtype, at::Device device);

/// Numbers from 1 - eps to 1 + eps, spread evenly, for an activation [s, b, h] whose elements `site` says as for
/// dropout_mask(); its p is not read. Made of 24 bits of each element's word.
at::Tensor jitter_factors(const Dropout& site, double eps, std::int64_t s, std::int64_t b, std::int64_t h,
                          at::ScalarType dtype, at::Device device);

}  // namespace megatron::kernels
