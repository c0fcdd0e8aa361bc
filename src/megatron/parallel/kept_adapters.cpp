#include "megatron/parallel/kept_adapters.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/kernels/low_rank/low_rank.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/quantized/blocks.h"

namespace megatron::parallel {
namespace {

void check_batch(const AdapterChoice::Group& group, std::int64_t sequences) {
  if (!group.sequences.empty() && group.sequences.back() >= sequences)
    throw std::logic_error(concat("adapters were chosen for a larger batch than one of ", sequences, " sequences"));
}

}  // namespace

void AdapterChoice::use(std::int64_t adapter) {
  groups_.clear();
  if (adapter > 0) groups_.push_back({adapter, {}});
}

void AdapterChoice::set_usual(std::int64_t adapter) {
  usual_ = adapter;
  use(adapter);
}

void AdapterChoice::use(const std::vector<std::int64_t>& adapters) {
  if (std::ranges::adjacent_find(adapters, std::not_equal_to()) == adapters.end())
    return use(adapters.empty() ? 0 : adapters.front());
  std::map<std::int64_t, std::vector<std::int64_t>> sequences;
  for (std::size_t i = 0; i < adapters.size(); ++i)
    if (adapters[i] > 0) sequences[adapters[i]].push_back(static_cast<std::int64_t>(i));
  groups_.clear();
  for (auto& [adapter, own] : sequences) groups_.push_back({adapter, std::move(own)});
}

AdapterChoice::Batch::Batch(AdapterChoice* choice, const std::vector<std::int64_t>& adapters) : choice_(choice) {
  if (choice_ != nullptr)
    choice_->use(adapters);
  else if (std::ranges::any_of(adapters, [](std::int64_t adapter) { return adapter != 0; }))
    throw std::logic_error("a model without adapters has none to choose");
}

AdapterChoice::Batch::~Batch() {
  if (choice_ != nullptr) choice_->use(choice_->usual_);
}

std::vector<std::int64_t> AdapterChoice::of_each(std::int64_t sequences) const {
  std::vector<std::int64_t> adapters(static_cast<std::size_t>(sequences));
  for (const Group& group : groups_) {
    check_batch(group, sequences);
    if (group.sequences.empty()) std::ranges::fill(adapters, group.adapter);
    for (const std::int64_t i : group.sequences) adapters[static_cast<std::size_t>(i)] = group.adapter;
  }
  return adapters;
}

KeptAdapters::KeptAdapters(std::vector<AdapterPtr> adapters, std::shared_ptr<const AdapterChoice> choice,
                           ParameterPtr weight, const comm::Group& inputs)
    : choice_(std::move(choice)), weight_(std::move(weight)) {
  for (AdapterPtr& adapter : adapters) {
    Adapter::Pass pass = adapter ? adapter->pass(*weight_, {}, inputs) : Adapter::Pass{};
    auto few = adapter ? adapter->for_few_rows(pass) : nullptr;
    adapters_.push_back({std::move(adapter), std::move(pass), std::move(few)});
  }
}

bool KeptAdapters::chosen() const {
  return std::ranges::any_of(choice_->groups(), [&](const AdapterChoice::Group& group) {
    return adapters_.at(static_cast<std::size_t>(group.adapter - 1)).adapter != nullptr;
  });
}

std::optional<Adapter::Matrices> KeptAdapters::of_sequence(std::int64_t sequence) const {
  for (const AdapterChoice::Group& group : choice_->groups()) {
    if (!group.sequences.empty() && !std::ranges::binary_search(group.sequences, sequence)) continue;
    const One& one = adapters_.at(static_cast<std::size_t>(group.adapter - 1));
    if (one.adapter) return one.adapter->matrices(one.pass);
  }
  return std::nullopt;
}

bool KeptAdapters::takes_rows(const at::Tensor& y) const {
  return std::ranges::all_of(choice_->groups(), [&](const AdapterChoice::Group& group) {
    const One& one = adapters_.at(static_cast<std::size_t>(group.adapter - 1));
    return !one.adapter || (one.few && one.few->takes(y));
  });
}

std::vector<kernels::LowRankRows> KeptAdapters::rows_of_batch() const {
  std::vector<kernels::LowRankRows> rows;
  for (const AdapterChoice::Group& group : choice_->groups())
    if (const auto& few = adapters_[static_cast<std::size_t>(group.adapter - 1)].few)
      rows.push_back({few.get(), group.sequences});
  return rows;
}

void KeptAdapters::add_to_rows(const at::Tensor& y, const at::Tensor& x, at::Tensor& scratch) const {
  if (!takes_rows(y)) return add_to_each(y.unsqueeze(0), x.unsqueeze(0));
  kernels::add_low_rank(y, x, rows_of_batch(), scratch);
}

void KeptAdapters::multiply_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& wide,
                                 at::Tensor& scratch) const {
  const kernels::QuantizedMatrix* const blocks = weight_->packed.quantized();
  const auto multiply = [&](auto&&... adapters) {
    if (blocks != nullptr)
      kernels::few_rows_linear(y, x, *blocks, wide, adapters...);
    else
      kernels::few_rows_linear(y, x, weight_->arrived(), wide, adapters...);
  };
  if (takes_rows(y)) return multiply(rows_of_batch(), scratch);
  multiply();
  add_to_each(y.unsqueeze(0), x.unsqueeze(0));
}

void KeptAdapters::add_to(const at::Tensor& y, const at::Tensor& x) const {
  if (y.size(0) > 1) return add_to_each(y, x);
  at::Tensor scratch;
  add_to_rows(y.select(0, 0), x.select(0, 0).contiguous(), scratch);
}

void KeptAdapters::add_to_each(const at::Tensor& y, const at::Tensor& x) const {
  for (const AdapterChoice::Group& group : choice_->groups()) {
    const One& one = adapters_.at(static_cast<std::size_t>(group.adapter - 1));
    if (!one.adapter) continue;
    if (group.sequences.empty()) {
      one.adapter->add_to(y, x, *weight_, one.pass);
      continue;
    }
    check_batch(group, y.size(1));
    const at::Tensor rows = at::tensor(group.sequences, at::kLong).to(y.device());
    const at::Tensor changed = y.index_select(1, rows);
    one.adapter->add_to(changed, x.index_select(1, rows), *weight_, one.pass);
    y.index_copy_(1, rows, changed);
  }
}

}  // namespace megatron::parallel
