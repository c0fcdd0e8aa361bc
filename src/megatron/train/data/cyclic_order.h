#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace megatron::train {

/// The order of Megatron-LM's --dataloader-type cyclic on one data-parallel rank (MegatronPretrainingRandomSampler):
/// each pass over the samples is torch.randperm of a generator seeded with the pass's number. Safe to use from several
/// threads.
class CyclicOrder {
 public:
  /// A pass is over the first samples, as many as fill batches of `batch`. Throws ConfigError where they fill none.
  CyclicOrder(std::int64_t samples, std::int64_t batch);

  /// The sample that is number `position`, counted from 0 over all passes.
  std::int64_t at(std::int64_t position) const;

 private:
  std::int64_t size_;
  mutable std::mutex mutex_;  // of the two below
  mutable std::int64_t pass_ = -1;
  mutable at::Tensor order_;  // of that pass, [size_] int64
};

}  // namespace megatron::train
