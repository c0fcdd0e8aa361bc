#include "megatron/model/experts/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "megatron/kernels/experts.h"
#include "megatron/model/sequence/exchanges.h"

namespace megatron::model {
namespace {

/// Keeps a sum of sigmoids that all underflow from dividing by zero; of others it is below their last digit.
constexpr double kSmallest = 1e-20;

at::Tensor all_scores(const at::Tensor& logits, const plan::Router& router) {
  if (router.score == plan::Router::Score::Softmax) return at::softmax(logits, -1);
  const auto scores = at::sigmoid(logits);
  return scores / (scores.sum(-1, true) + kSmallest);
}

/// The numbers of the k greatest of each row of x [.., E], the greatest first; of equal ones the lowest number.
at::Tensor greatest(const at::Tensor& x, std::int64_t k) {
  const auto order = std::get<1>(at::sort(x, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
  return order.narrow(-1, 0, k).contiguous();
}

at::Tensor on(const at::Tensor& like, const std::vector<std::int64_t>& numbers) {
  return at::tensor(numbers, at::kLong).to(like.device());
}

}  // namespace

at::Tensor chosen_experts(const at::Tensor& logits, const plan::Router& router, std::int64_t top_k,
                          const at::Tensor& bias) {
  auto by = logits.detach();
  if (bias.defined() || router.groups > 1) {
    const bool sigmoid = router.score == plan::Router::Score::Sigmoid;
    by = sigmoid ? at::sigmoid(by) : router.unnormalized ? at::softmax(by, -1) : by;
    if (bias.defined()) by = by + bias.to(by.options());
  }
  if (router.groups > 1) {
    const auto grouped = by.unflatten(-1, {router.groups, -1});
    const auto best = std::get<0>(at::sort(grouped, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
    const std::int64_t counted = router.group_best > 0 ? router.group_best : top_k / router.group_top_k;
    const auto sums = best.narrow(-1, 0, counted).sum(-1);
    const auto chosen = greatest(sums, router.group_top_k);
    const auto left_out = at::ones_like(sums, at::kBool).scatter_(-1, chosen, false);
    by = grouped.masked_fill(left_out.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(-2);
  }
  return greatest(by, top_k);
}

at::Tensor kept_experts(const at::Tensor& experts, const at::Tensor& weights, const plan::Experts& spec,
                        std::int64_t batch, const comm::Group& ranks) {
  if (ranks.size() > 1) {
    const auto whole = [&](const at::Tensor& rows) {
      const auto shaped = rows.detach().reshape({-1, batch, spec.top_k});
      return sequence::by_position(ranks.all_gather(shaped), ranks.size()).flatten(0, 1);
    };
    const auto kept = kept_experts(whole(experts), whole(weights), spec, batch);
    const auto by_rank = sequence::by_rank(kept.view({-1, batch, spec.top_k}), ranks.size());
    return by_rank.chunk(ranks.size())[static_cast<std::size_t>(ranks.rank())].reshape(experts.sizes());
  }
  const auto by_sequence = experts.view({-1, batch, spec.top_k});
  const std::int64_t tokens = by_sequence.size(0), capacity = spec.capacity(tokens);
  const auto chosen = at::zeros({tokens, batch, spec.count}, experts.options()).scatter_(-1, by_sequence, 1);
  at::Tensor place;  // among the tokens of the sequence that have chosen the same expert
  if (spec.drop == plan::Experts::Drop::Last) {
    place = chosen.cumsum(0) - 1;
  } else {
    const auto counts = at::full(chosen.sizes(), -1.0, weights.options())
                            .scatter_(-1, by_sequence, weights.detach().view(by_sequence.sizes()));
    const auto order = at::argsort(counts, /*stable=*/true, /*dim=*/0, /*descending=*/true);
    const auto numbers = at::arange(tokens, experts.options()).view({-1, 1, 1}).expand_as(order);
    place = at::empty_like(order).scatter_(0, order, numbers);
  }
  return experts.masked_fill(place.gather(-1, by_sequence).view(experts.sizes()).ge(capacity), -1);
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
  const std::int64_t ranks = group_.size(), local = count / ranks;
  // Copies by rank, the last of its experts first; behind them those that go nowhere.
  const auto place_of_expert = flat.add(local - 1).sub_(flat.remainder(local).mul_(2)).masked_fill_(flat.lt(0), count);
  auto order = at::argsort(place_of_expert, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto counts = at::bincount(flat.add(1), {}, count + 1).narrow(0, 1, count).contiguous();
  const auto all = group_.all_gather(counts, 0).cpu();
  const auto rows_of = [&](std::int64_t from, std::int64_t expert) {
    return all.const_data_ptr<std::int64_t>()[from * count + expert];
  };
  for (std::int64_t e = 0; e < count; ++e) loads_.push_back(rows_of(group_.rank(), e));
  const std::int64_t routed = std::accumulate(loads_.begin(), loads_.end(), std::int64_t{0});
  order = order.narrow(0, 0, routed);
  const auto by_copy = [&](const at::Tensor& rows) {  // the row of each copy, of the copy of each sorted row
    return at::full_like(flat, -1).scatter_(0, order, rows).view(experts.sizes());
  };
  const std::int64_t first = group_.rank() * local;
  offsets_.assign(1, 0);
  for (std::int64_t e = local - 1; e >= 0; --e) {
    std::int64_t rows = 0;
    for (std::int64_t from = 0; from < ranks; ++from) rows += rows_of(from, first + e);
    offsets_.push_back(offsets_.back() + rows);
  }
  if (ranks == 1) {
    sent_ = order;
    returned_ = by_copy(at::arange(routed, order.options()));
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
  std::vector<std::int64_t> taken, given(static_cast<std::size_t>(ranks * most), -1);
  std::vector<std::int64_t> next(static_cast<std::size_t>(ranks), 0);  // row of each sender
  for (std::int64_t e = local - 1; e >= 0; --e)
    for (std::int64_t from = 0; from < ranks; ++from)
      for (std::int64_t i = 0; i < rows_of(from, first + e); ++i) {
        const std::int64_t row = from * most + next[static_cast<std::size_t>(from)]++;
        given[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(taken.size());
        taken.push_back(row);
      }
  taken_ = on(order, taken);
  given_ = on(order, given).unsqueeze(1);
}

namespace {

/// The rows that come from all ranks of `group` for `sent`.
Coming all_to_all(const comm::Group& group, const at::Tensor& sent) {
  const auto come = at::empty_like(sent);
  return Coming([sent, come, work = group.all_to_all_async(come, sent)] {
    work->wait();
    return come;
  });
}

}  // namespace

Coming Routes::exchanged(const at::Tensor& sent) const {
  if (group_.size() == 1) return Coming([sent] { return sent; });
  return Coming(
      [come = all_to_all(group_, sent), taken = taken_]() mutable { return come.take().index_select(0, taken); });
}

Coming Routes::to_experts(const at::Tensor& tokens) const {
  return exchanged(tokens.index_select(0, sent_.floor_divide(top_k_)));
}

Coming Routes::copies_to_experts(const at::Tensor& numbers) const {
  return exchanged(numbers.reshape({-1}).index_select(0, sent_));
}

/// What comes back for the rows that were sent.
Coming Routes::come_back(const at::Tensor& rows) const {
  // Where there are none a row of zeros, which nobody reads, for who looks up rows that are not there.
  const auto some = rows.size(0) > 0 ? rows : at::zeros({1, rows.size(1)}, rows.options());
  if (group_.size() == 1) return Coming([some] { return some; });
  return all_to_all(group_, kernels::combined_rows(some, given_, {}));
}

Coming Routes::combined(const at::Tensor& rows, const at::Tensor& weights) const {
  return Coming([come = come_back(rows), returned = returned_, weights]() mutable {
    return kernels::combined_rows(come.take(), returned, weights);
  });
}

Coming Routes::copies_back(const at::Tensor& numbers) const {
  return Coming([come = come_back(numbers.unsqueeze(1)), returned = returned_]() mutable {
    return come.take()
        .squeeze(1)
        .index_select(0, returned.clamp_min(0).view({-1}))
        .view(returned.sizes())
        .masked_fill(returned.lt(0), 0);
  });
}

}  // namespace megatron::model
