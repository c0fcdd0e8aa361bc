#include "megatron/model/experts/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <span>
#include <utility>

namespace megatron::model {
namespace {

/// Keeps a sum of sigmoids that all underflow from dividing by zero; of others it is below their last digit.
constexpr double kSmallest = 1e-20;

at::Tensor all_scores(const at::Tensor& logits, const plan::Router& router) {
  if (router.score == plan::Router::Score::Softmax) return at::softmax(logits, -1);
  const auto scores = at::sigmoid(logits);
  return scores / (scores.sum(-1, true) + kSmallest);
}

at::Tensor on(const at::Tensor& like, const std::vector<std::int64_t>& numbers) {
  return at::tensor(numbers, at::kLong).to(like.device());
}

}  // namespace

at::Tensor chosen_experts(const at::Tensor& logits, std::int64_t top_k) {
  const auto order = std::get<1>(at::sort(logits.detach(), /*stable=*/true, /*dim=*/-1, /*descending=*/true));
  return order.narrow(-1, 0, top_k).contiguous();
}

at::Tensor expert_weights(const at::Tensor& logits, const at::Tensor& experts, const plan::Router& router) {
  at::Tensor weights;
  if (router.score == plan::Router::Score::Sigmoid) {
    weights = at::sigmoid(logits.gather(-1, experts));
    if (experts.size(-1) > 1) weights = weights / (weights.sum(-1, true) + kSmallest);
  } else if (router.unnormalized) {
    weights = at::softmax(logits, -1).gather(-1, experts);
  } else {
    weights = at::softmax(logits.gather(-1, experts), -1);
  }
  return router.scaling == 1 ? weights : weights * router.scaling;
}

RouterLosses router_losses(const at::Tensor& logits_sbe, const at::Tensor& experts_sbk, const plan::Router& router,
                           const comm::Group& sequence) {
  const auto count = static_cast<double>(logits_sbe.size(-1)), ranks = static_cast<double>(sequence.size());
  const auto chosen = at::zeros_like(logits_sbe.detach()).scatter_(-1, experts_sbk, 1.0);
  const auto load = chosen.mean(0).div(static_cast<double>(experts_sbk.size(-1)) * ranks);  // equal parts of a sequence
  sequence.all_reduce(load);
  return {.balance = (load * all_scores(logits_sbe, router).mean(0)).sum(-1) * (count / ranks),
          .z = at::logsumexp(logits_sbe, -1).square().mean(0) / ranks};
}

Routes::Routes(const at::Tensor& experts, std::int64_t count, comm::Group group)
    : group_(std::move(group)), top_k_(experts.size(1)) {
  const auto flat = experts.reshape({-1});
  const std::int64_t copies = flat.numel(), ranks = group_.size(), local = count / ranks;
  const auto order = at::argsort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto by_copy = [&](const at::Tensor& rows) {  // the row of each copy, of the copy of each sorted row
    at::Tensor inverse = at::empty_like(order);
    return inverse.scatter_(0, order, rows);
  };
  const auto counts = at::bincount(flat, {}, count);
  const auto all = group_.all_gather(counts, 0).cpu();
  const auto rows_of = [&](std::int64_t from, std::int64_t expert) {
    return all.const_data_ptr<std::int64_t>()[from * count + expert];
  };
  const std::int64_t first = group_.rank() * local;
  offsets_.assign(1, 0);
  for (std::int64_t e = 0; e < local; ++e) {
    std::int64_t rows = 0;
    for (std::int64_t from = 0; from < ranks; ++from) rows += rows_of(from, first + e);
    offsets_.push_back(offsets_.back() + rows);
  }
  if (ranks == 1) {
    sent_ = order;
    returned_ = by_copy(at::arange(copies, order.options()));
    return;
  }
  // Every rank sends as many rows to each: those that the busiest pair has.
  std::int64_t most = 1;
  for (std::int64_t from = 0; from < ranks; ++from)
    for (std::int64_t to = 0; to < ranks; ++to) {
      std::int64_t rows = 0;
      for (std::int64_t e = to * local; e < (to + 1) * local; ++e) rows += rows_of(from, e);
      most = std::max(most, rows);
    }
  std::vector<std::int64_t> places;  // of this rank's sorted copies among the rows that are sent
  for (std::int64_t to = 0; to < ranks; ++to) {
    std::int64_t rows = 0;
    for (std::int64_t e = to * local; e < (to + 1) * local; ++e) rows += rows_of(group_.rank(), e);
    for (std::int64_t i = 0; i < rows; ++i) places.push_back(to * most + i);
  }
  const auto place = on(order, places);
  sent_ = at::zeros({ranks * most}, order.options()).scatter_(0, place, order);
  returned_ = by_copy(place);
  std::vector<std::int64_t> taken, given(static_cast<std::size_t>(ranks * most), offsets_.back());
  std::vector<std::int64_t> next(static_cast<std::size_t>(ranks), 0);  // row of each sender
  for (std::int64_t e = 0; e < local; ++e)
    for (std::int64_t from = 0; from < ranks; ++from)
      for (std::int64_t i = 0; i < rows_of(from, first + e); ++i) {
        const std::int64_t row = from * most + next[static_cast<std::size_t>(from)]++;
        given[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(taken.size());
        taken.push_back(row);
      }
  taken_ = on(order, taken);
  given_ = on(order, given);
}

at::Tensor Routes::exchanged(const at::Tensor& sent) const {
  return group_.size() == 1 ? sent : group_.all_to_all(sent).index_select(0, taken_);
}

at::Tensor Routes::to_experts(const at::Tensor& tokens) const {
  return exchanged(tokens.index_select(0, sent_.floor_divide(top_k_)));
}

at::Tensor Routes::copies_to_experts(const at::Tensor& numbers) const {
  return exchanged(numbers.reshape({-1}).index_select(0, sent_));
}

at::Tensor Routes::back(const at::Tensor& rows) const {
  auto come = rows;
  if (group_.size() > 1) {
    const auto padded = at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())});
    come = group_.all_to_all(padded.index_select(0, given_));
  }
  return come.index_select(0, returned_).view({-1, top_k_, rows.size(1)});
}

}  // namespace megatron::model
