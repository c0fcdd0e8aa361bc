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

comm::Group holders_group(const comm::Group& pp, const std::vector<int>& holders) {
  std::vector<std::vector<int>> partition{holders};
  for (int rank = 0; rank < pp.size(); ++rank)
    if (std::ranges::find(holders, rank) == holders.end()) partition.push_back({rank});
  return pp.split(partition);
}

comm::Group copies_group(const parallel::ParameterStore& parameters, const comm::Group& tp) {
  int copies = 1;
  for (const auto& parameter : parameters.all())
    for (const plan::ShardSlice& piece : parameter->spec.pieces) copies = std::max(copies, piece.copies);
  if (copies == 1) return {};
  std::vector<std::vector<int>> partition(static_cast<std::size_t>(tp.size() / copies));
  for (int rank = 0; rank < tp.size(); ++rank) partition[static_cast<std::size_t>(rank / copies)].push_back(rank);
  return tp.split(partition);
}

SharedGradients::SharedGradients(const parallel::ParameterStore& parameters, const std::vector<plan::Shard>& owned,
                                 Groups groups, std::vector<SharedParameter> shared)
    : shared_(std::move(shared)) {
  Sum partial{std::move(groups.sequence), {}}, copied{std::move(groups.copies), {}},
      by_heads{std::move(groups.heads), {}}, of_experts{std::move(groups.experts), {}};
  std::vector<Sum> tied;
  for (const SharedParameter& parameter : shared_) {
    tied.push_back({parameter.holders, {}});
    values_.emplace_back();
  }
  for (const plan::Shard& shard : owned)
    for (const plan::ParameterRange& own : shard.parameters) {
      const auto& parameter = parameters.all().at(static_cast<std::size_t>(own.parameter));
      const auto add = [&](Sum& sum, const plan::Range& range) {
        const plan::Range world = plan::intersection(range, own.param).shifted(own.world.begin - own.param.begin);
        if (!world.empty()) sum.gradients.push_back(parameters.summed_gradients(world));
      };
      const plan::ParameterSpec& spec = parameter->spec;
      if (spec.sequence_partial) add(partial, own.param);
      if (spec.heads_partial) add(spec.of_expert ? of_experts : by_heads, own.param);
      if (spec.has_copies()) {
        const std::vector<plan::Range> ranges = plan::piece_ranges(spec);
        for (std::size_t i = 0; i < ranges.size(); ++i)
          if (spec.pieces[i].copies > 1) add(copied, ranges[i]);
      }
      for (std::size_t i = 0; i < shared_.size(); ++i)
        if (shared_[i].parameter == parameter) {
          add(tied[i], own.param);
          // This rank's share on every holder, whether it has the others' or not.
          values_[i].push_back(parameters.owned_values(own.world));
        }
    }
  const auto keep = [&](Sum& sum) {
    if (sum.group.size() > 1 && !sum.gradients.empty()) sums_.push_back(std::move(sum));
  };
  for (Sum* sum : {&partial, &by_heads, &of_experts, &copied}) keep(*sum);
  num_within_stages_ = sums_.size();
  for (Sum& sum : tied) keep(sum);
}

void SharedGradients::sum(std::size_t begin, std::size_t end) const {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = begin; i < end; ++i) {
    const auto& [group, gradients] = sums_[i];
    if (gradients.size() == 1) {
      group.all_reduce(gradients.front());
      continue;
    }
    const auto together = at::cat(gradients);
    group.all_reduce(together);
    std::int64_t at = 0;
    for (const auto& gradient : gradients) {
      gradient.copy_(together.narrow(0, at, gradient.numel()));
      at += gradient.numel();
    }
  }
}

void SharedGradients::check_copies() const {
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    const auto& [parameter, holders] = shared_[i];
    std::uint64_t sum = 0;
    for (const at::Tensor& value : values_[i]) sum ^= checksum(value);
    if (equal_over(holders, sum)) continue;
    throw std::runtime_error(rule_got_fix(concat("The copies of ", parameter->spec.name, " on ", holders.size(),
                                                 " pipeline ranks must start with the same values."),
                                          "values that differ"));
  }
}

}  // namespace megatron::optim
