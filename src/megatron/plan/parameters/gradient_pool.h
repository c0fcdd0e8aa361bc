#pragma once
#include <cstdint>
#include <vector>

#include "megatron/plan/parameters/buffer_layout.h"

namespace megatron::plan {

/// Memory in which whole buckets of gradients take turns (ZeRO stage 2, Rajbhandari et al. 2020): besides the sums of
/// what it owns, a rank holds the buckets that backward is writing, and those whose reduction is under way. Elements.
struct GradientPool {
  std::int64_t size = 0;
  std::vector<std::int64_t> begin;  ///< where each bucket lies while it is there
};

struct GradientPoolOptions {
  bool split_backward = false;  ///< the schedule puts weight gradients off (schedule::Kind::BackwardInput)
  bool overlap = true;          ///< a bucket is reduced while backward runs
};

/// Buckets that are there at the same time lie apart. Backward goes through a stage by depth (ParameterSpec::depth),
/// in any order within one; so buckets of one depth are there together and, with `overlap`, those of the depth before,
/// which are being reduced. Buckets of different stages are not, since every microbatch ends what it began. Alone in
/// their place are those in which contributions wait for other operations: with a gradient that the forward pass
/// writes (ParameterSpec::in_forward), one that layers of several depths write or, where backward is split, an
/// embedding's, which is never put off.
GradientPool gradient_pool(const BufferLayout& layout, const std::vector<ParameterSpec>& specs,
                           const GradientPoolOptions& options);

}  // namespace megatron::plan
