#include "megatron/optim/shared_gradients.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::optim {
namespace {

at::ScalarType integer_of_size(std::size_t bytes) {
  return bytes == 8 ? at::kLong : bytes == 4 ? at::kInt : bytes == 2 ? at::kShort : at::kChar;
}

/// Of the bits of `value` and their places: sum of bits x odd number, modulo 2^64. The same on every device and with
/// any number of threads, because integers are added.
std::uint64_t checksum(const at::Tensor& value) {
  const auto bits = value.detach().view({-1}).view(integer_of_size(value.element_size()));
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // bounds the memory
  const auto odd = at::arange(1, 2 * std::min(kChunk, bits.numel()), 2, bits.options().dtype(at::kLong));
  std::uint64_t total = 0;
  for (std::int64_t begin = 0; begin < bits.numel(); begin += kChunk) {
    const std::int64_t count = std::min(kChunk, bits.numel() - begin);
    const auto sum = bits.narrow(0, begin, count).to(at::kLong).mul(odd.narrow(0, 0, count)).sum();
    total = total * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(sum.item<std::int64_t>());
  }
  return total;
}

/// Whether every rank of `group` brought the same `number`.
bool equal_over(const comm::Group& group, std::uint64_t number) {
  const auto low = static_cast<double>(number & 0xffffffffU), high = static_cast<double>(number >> 32);  // exact
  const auto most = group.all_reduce_scalars({low, high, -low, -high}, comm::ReduceOp::Max);
  return most[0] == -most[2] && most[1] == -most[3];
}

}  // namespace

comm::Group embedding_group(const comm::Group& pp, int rank_of_first_stage, int rank_of_last_stage) {
  const int first = std::min(rank_of_first_stage, rank_of_last_stage);
  const int last = std::max(rank_of_first_stage, rank_of_last_stage);
  std::vector<std::vector<int>> partition{{first}};
  if (last != first) partition.front().push_back(last);
  for (int rank = 0; rank < pp.size(); ++rank)
    if (rank != first && rank != last) partition.push_back({rank});
  return pp.split(partition);
}

SharedGradients::SharedGradients(const parallel::ParameterStore& parameters, comm::Group sequence,
                                 std::vector<SharedParameter> shared)
    : sequence_(std::move(sequence)), shared_(std::move(shared)) {
  if (sequence_.size() == 1) return;
  for (const auto& parameter : parameters.all())
    if (parameter->spec.sequence_partial) partial_.push_back(parameter->grad.view({-1}));
}

void SharedGradients::sum() const {
  const c10::NoGradGuard no_grad;
  if (!partial_.empty()) {
    const auto together = at::cat(partial_);
    sequence_.all_reduce(together);
    std::int64_t begin = 0;
    for (const auto& gradient : partial_) {
      gradient.copy_(together.narrow(0, begin, gradient.numel()));
      begin += gradient.numel();
    }
  }
  for (const auto& [parameter, holders] : shared_) holders.all_reduce(parameter->grad);
}

void SharedGradients::check_copies() const {
  for (const auto& [parameter, holders] : shared_) {
    if (equal_over(holders, checksum(parameter->value))) continue;
    throw std::runtime_error(rule_got_fix(concat("The copies of ", parameter->spec.name, " on ", holders.size(),
                                                 " pipeline ranks must start with the same values."),
                                          "values that differ"));
  }
}

}  // namespace megatron::optim
