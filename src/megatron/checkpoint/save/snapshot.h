#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

namespace megatron::checkpoint {

/// The bytes of some tensors, one after the other, for a thread that reads them while training continues. They are read
/// where they lie as long as nothing changes them; what is left when something will is copied aside first. So a disk
/// that keeps up with training needs no copy at all.
class Snapshot {
 public:
  /// Of `tensors`, whose values stay as they are until freeze() has returned. Those that a thread cannot read where
  /// they lie (of a device, or not contiguous) are copied now. Nobody may read an earlier snapshot any more.
  void begin(std::vector<at::Tensor> tensors);
  /// Copies what has not been read yet into spare memory, with this thread's and its helpers' whole bandwidth. The
  /// memory is kept for the next time.
  void freeze();
  /// The reading thread: fills `into` with the next bytes; how many, 0 at the end.
  std::size_t read(std::span<std::byte> into);
  /// Lets go of the tensors.
  void end();

 private:
  struct TensorBytes {
    const std::byte* data;
    std::size_t size;
    at::Tensor owner;
    bool spare;
  };
  void copy_aside(const std::vector<std::size_t>& parts);

  std::mutex mutex_;
  std::vector<TensorBytes> parts_;
  std::size_t next_ = 0, offset_ = 0;  ///< what read() reads next: the part, and the byte in it
  at::Tensor spare_;
};

}  // namespace megatron::checkpoint
