#pragma once
#include <cstdint>
#include <vector>

#include "megatron/plan/parameters.h"

namespace megatron::plan {

/// Where each parameter lies in the contiguous parameter, gradient and optimizer-state buffers of a rank: in reverse
/// order of the forward pass (the order in which backward finishes gradients), cut into buckets that are reduced as
/// soon as they are complete. Offsets and sizes are elements.
struct BufferLayout {
  struct Slot {
    int parameter;  ///< index into the specs given
    std::int64_t begin, end;
    int bucket;
  };
  struct Bucket {
    std::int64_t begin, end;
    std::vector<int> parameters;
    int stage = 0;  ///< of all its parameters
  };
  std::vector<Slot> slots;      ///< by position in the buffer
  std::vector<Bucket> buckets;  ///< by position: bucket 0 is complete first
  std::int64_t size = 0;

  const Slot& slot_of(int parameter) const;
};

/// A bucket closes when it holds >= bucket_size elements (formats.md B9; Megatron's default is
/// max(40 M, 1 M * dp)) and at the end of a pipeline stage; 0: one bucket a stage. Each parameter starts at a multiple
/// of `alignment` elements.
BufferLayout buffer_layout(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size,
                           std::int64_t alignment = 16);

}  // namespace megatron::plan
