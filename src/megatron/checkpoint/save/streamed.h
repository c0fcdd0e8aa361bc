#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/slices/save_plan.h"

namespace megatron::checkpoint {

/// Tensors that are read while they are written.
class TensorStream {
 public:
  virtual ~TensorStream() = default;
  /// Says that the slice is read next, after those of earlier calls.
  virtual void expect(const HeldSlice&) const {}
  /// Fills `into`, shaped as `box` and of the slice's dtype, with that part of the slice's tensor.
  virtual void read(const HeldSlice& slice, const Box& box, const at::Tensor& into) const = 0;
};

/// Writes a checkpoint as save() does, but by this process alone and with a few MiB of its tensors in memory: file i
/// gets those slices of held[i] that no file before it has. The caller holds the folder's lock. Returns its folder.
std::filesystem::path save_streamed(const std::filesystem::path& folder, std::int64_t iteration,
                                    const Metadata& metadata, const std::vector<std::vector<HeldSlice>>& held,
                                    const TensorStream& stream);

}  // namespace megatron::checkpoint
