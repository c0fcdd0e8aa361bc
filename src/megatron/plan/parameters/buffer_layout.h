#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/plan/parameters/parameters.h"

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
    int stage = 0;         ///< of all its parameters
    bool experts = false;  ///< its parameters are of experts, with BufferPadding::experts_apart
  };
  std::vector<Slot> slots;      ///< by position in the buffer
  std::vector<Bucket> buckets;  ///< by position: bucket 0 is complete first
  std::int64_t size = 0;

  const Slot& slot_of(int parameter) const;
};

/// The gaps of a buffer and what else shapes its buckets.
struct BufferPadding {
  std::int64_t alignment = 16;          ///< each parameter starts at a multiple of this
  std::int64_t bucket_multiple = 1;     ///< each bucket ends at a multiple of this; it may not be below `alignment`
  std::vector<std::string> alone = {};  ///< parameters that each get a bucket of their own
  bool experts_apart = false;           ///< no bucket holds weights of experts and others: other ranks share them
};

/// The padding of buffers whose buckets `dp` ranks share equally: Megatron-Core's, 64 elements for a parameter and
/// lcm(dp, 128) for a bucket, so that every rank's part starts at an address that suits wide loads.
BufferPadding sharded_padding(int dp);

/// A bucket closes when it holds >= bucket_size elements (formats.md B9; Megatron's default is
/// max(40 M, 1 M * dp)) and at the end of a pipeline stage; 0: one bucket a stage. Gaps belong to the bucket before
/// them.
BufferLayout buffer_layout(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size,
                           const BufferPadding& padding = {});

}  // namespace megatron::plan
