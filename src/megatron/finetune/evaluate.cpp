#include "megatron/finetune/evaluate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "megatron/plan/steps/batch_plan.h"
#include "megatron/train/data/batches.h"

namespace megatron::finetune {
namespace {

constexpr std::size_t kMaxMicrobatches = 64;  // of one program, which holds their logits

/// The samples, the longest first.
std::vector<std::int64_t> by_length(const tasks::Task& task) {
  std::vector<std::int64_t> order(task.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::int64_t sample) { return task.length(static_cast<std::size_t>(sample)); });
  return order;
}

/// Writes the logits of a microbatch into their places. Those of spans are [b, s, 2] and become all first tokens', then
/// all last tokens', of a whole row.
void keep_logits(const at::Tensor& logits, std::span<const Item> items, const at::Tensor& into) {
  const auto rows = logits.to(at::kFloat).to(at::kCPU).contiguous();
  for (std::size_t k = 0; k < items.size(); ++k) {
    if (items[k].sample == Item::kNone) continue;
    const auto own = rows[static_cast<std::int64_t>(k)], place = into[items[k].sample];
    if (own.dim() == 1)
      place.copy_(own);
    else
      place.view({2, -1}).narrow(1, 0, own.size(0)).copy_(own.t());
  }
}

}  // namespace

TaskLogits evaluate(train::Engine& engine, const plan::ResolvedRun& run, const TaskBatches& batches, const Done& done) {
  const tasks::Task& task = batches.task();
  const auto order = by_length(task);
  const auto size = static_cast<std::int64_t>(task.size());
  const auto& context = engine.context;
  const int dp = run.grid.sample_shares();
  const std::int64_t unit = run.config.train.micro_batch_size * dp;
  const auto plan = plan::batch_plan(0, (size + unit - 1) / unit * unit, run.config.train.micro_batch_size, dp,
                                     context.samples().rank());
  std::vector<std::vector<Item>> microbatches;
  for (const auto& places : plan.microbatches) {
    auto& items = microbatches.emplace_back();
    for (const std::int64_t place : places)
      items.push_back({.sample = place < size ? order[static_cast<std::size_t>(place)] : Item::kNone, .id = place});
  }
  const auto logits = at::zeros({size, static_cast<std::int64_t>(task.width())}, at::kFloat);
  const bool speaks = context.tensor().rank() == 0;  // its tensor-parallel ranks have the same
  double loss = 0, count = 0;
  for (std::size_t first = 0; first < microbatches.size(); first += kMaxMicrobatches) {
    const std::size_t here = std::min(kMaxMicrobatches, microbatches.size() - first);
    const auto result = engine.pipeline.evaluate(static_cast<int>(here), [&](std::size_t m) {
      const auto& items = microbatches[first + m];
      return train::on_device(batches.get(items, batches.row_length(items)), context.device());
    });
    if (speaks) {
      for (const at::Tensor& sum : result.loss_sums) loss += sum.item<double>();
      count += result.count;
      for (std::size_t m = 0; m < result.task_logits.size(); ++m)
        keep_logits(result.task_logits[m], microbatches[first + m], logits);
    }
    if (done) done(std::min(size, static_cast<std::int64_t>(first + here) * unit));
  }
  const auto totals = context.world().all_reduce_scalars({loss, count});
  const auto all = logits.to(context.device());
  context.world().all_reduce(all);
  const auto whole = all.to(at::kCPU);
  const float* values = whole.const_data_ptr<float>();
  return {.values = {values, values + whole.numel()}, .loss = totals[1] > 0 ? totals[0] / totals[1] : 0};
}

}  // namespace megatron::finetune
