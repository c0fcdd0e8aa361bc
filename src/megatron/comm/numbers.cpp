#include "megatron/comm/numbers.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

namespace megatron::comm {
namespace {

std::vector<double> values_of(const at::Tensor& numbers) {
  const double* const first = numbers.const_data_ptr<double>();
  return {first, first + numbers.numel()};
}

}  // namespace

at::Tensor reduce_numbers(const Group& group, const at::Tensor& numbers, ReduceOp op) {
  if (group.size() == 1) return numbers;
  const c10::NoGradGuard no_grad;
  const at::Tensor all = group.all_gather(numbers.unsqueeze(0));
  if (!all.is_cpu()) return op == ReduceOp::Sum ? all.sum(0) : all.amax(0);
  const std::int64_t count = numbers.numel();
  const double* part = all.const_data_ptr<double>();
  at::Tensor result = at::empty({count}, numbers.options());
  double* const to = result.mutable_data_ptr<double>();
  std::copy_n(part, count, to);
  for (int rank = 1; rank < group.size(); ++rank) {
    part += count;
    for (std::int64_t i = 0; i < count; ++i) {
      if (op == ReduceOp::Sum)
        to[i] += part[i];
      else if (part[i] > to[i] || std::isnan(part[i]))
        to[i] = part[i];
    }
  }
  return result;
}

ComingNumbers copy_to_host(const at::Tensor& numbers) {
  if (numbers.is_cpu()) return [numbers = numbers.contiguous()] { return values_of(numbers); };
  const at::Device device = numbers.device();
  at::Tensor host = at::empty({numbers.numel()}, at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  host.copy_(numbers, /*non_blocking=*/true);
  const auto copied = std::make_shared<c10::Event>(device.type());
  copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return [host = std::move(host), copied] {
    copied->synchronize();
    return values_of(host);
  };
}

}  // namespace megatron::comm
