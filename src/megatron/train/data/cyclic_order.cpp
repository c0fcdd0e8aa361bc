#include "megatron/train/data/cyclic_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include "megatron/base/error.h"

namespace megatron::train {

CyclicOrder::CyclicOrder(std::int64_t samples, std::int64_t batch) : size_(samples / batch * batch) {
  if (size_ == 0)
    throw ConfigError(rule_got_fix("data.cyclic_batch must be at most the samples of each part of the data.",
                                   concat(batch, ", ", samples, " samples"), "--data.cyclic_batch 1 (the default)"));
}

std::int64_t CyclicOrder::at(std::int64_t position) const {
  const std::lock_guard lock(mutex_);
  if (const std::int64_t pass = position / size_; pass != pass_) {
    order_ = at::randperm(size_, at::detail::createCPUGenerator(static_cast<std::uint64_t>(pass)), at::kLong);
    pass_ = pass;
  }
  return order_.const_data_ptr<std::int64_t>()[position % size_];
}

}  // namespace megatron::train
