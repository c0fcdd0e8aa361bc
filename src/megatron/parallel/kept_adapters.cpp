#include "megatron/parallel/kept_adapters.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::parallel {

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
  for (const auto& [adapter, own] : sequences) groups_.push_back({adapter, at::tensor(own, at::kLong)});
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

KeptAdapters::KeptAdapters(std::vector<AdapterPtr> adapters, std::shared_ptr<const AdapterChoice> choice,
                           ParameterPtr weight, const comm::Group& inputs)
    : choice_(std::move(choice)), weight_(std::move(weight)) {
  for (AdapterPtr& adapter : adapters) {
    Adapter::Pass pass = adapter ? adapter->pass(*weight_, {}, inputs) : Adapter::Pass{};
    adapters_.push_back({std::move(adapter), std::move(pass)});
  }
}

bool KeptAdapters::chosen() const {
  return std::ranges::any_of(choice_->groups(), [&](const AdapterChoice::Group& group) {
    return adapters_.at(static_cast<std::size_t>(group.adapter - 1)).adapter != nullptr;
  });
}

void KeptAdapters::add_to(const at::Tensor& y, const at::Tensor& x, const One& one) const {
  const std::int64_t b = y.size(1), most = y.size(0) == 1 ? one.adapter->most_few_rows() : 0;
  if (most == 0 || b <= most) return one.adapter->add_to(y, x, *weight_, one.pass);
  for (std::int64_t i = 0; i < b; i += most) {
    const std::int64_t count = std::min(most, b - i);
    one.adapter->add_to(y.narrow(1, i, count), x.narrow(1, i, count), *weight_, one.pass);
  }
}

void KeptAdapters::add_to(const at::Tensor& y, const at::Tensor& x) const {
  for (const AdapterChoice::Group& group : choice_->groups()) {
    const One& one = adapters_.at(static_cast<std::size_t>(group.adapter - 1));
    if (!one.adapter) continue;
    if (!group.sequences.defined()) {
      add_to(y, x, one);
      continue;
    }
    if (group.sequences[-1].item<std::int64_t>() >= y.size(1))
      throw std::logic_error(concat("adapters were chosen for a larger batch than one of ", y.size(1), " sequences"));
    const at::Tensor rows = group.sequences.to(y.device());
    const at::Tensor changed = y.index_select(1, rows);
    add_to(changed, x.index_select(1, rows), one);
    y.index_copy_(1, rows, changed);
  }
}

}  // namespace megatron::parallel
