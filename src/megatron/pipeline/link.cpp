#include "megatron/pipeline/link.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/comm/activity.h"

namespace megatron::pipeline {
namespace {

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

Link::Link(const schedule::Placement& placement, const comm::Group& pp, comm::Group tp, Options options)
    : options_(std::move(options)), up_(pp), tp_(std::move(tp)) {
  std::vector<int> everybody(static_cast<std::size_t>(pp.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  down_ = pp.split({everybody});
  comm::name_observed(down_, "pipeline, backward");
  connect(placement);
}

// Some transports connect two ranks at their first message, and wait there: so the first messages are sent here, in
// one order on all ranks.
void Link::connect(const schedule::Placement& placement) const {
  const auto size = static_cast<std::size_t>(placement.num_ranks());
  std::vector<bool> seen(size * size, false);
  const at::Tensor nothing = at::zeros({1}, options_.tensor);
  const auto hello = [&](int from, int to) {
    const auto pair = static_cast<std::size_t>(from) * size + static_cast<std::size_t>(to);
    if (from == to || seen[pair]) return;
    seen[pair] = true;
    if (up_.rank() == from) group_to(from, to).send(nothing, to);
    if (up_.rank() == to) group_to(from, to).recv(nothing, from);
  };
  for (int stage = 0; stage + 1 < placement.num_stages(); ++stage) {
    hello(placement.rank_of(stage), placement.rank_of(stage + 1));
    hello(placement.rank_of(stage + 1), placement.rank_of(stage));
  }
}

void Link::exchange_shapes(const std::vector<std::vector<std::int64_t>>& shapes, int num_microbatches, int root) {
  const auto dims = static_cast<std::int64_t>(options_.shape.size());
  const auto device = options_.tensor.device();
  auto table = at::zeros({num_microbatches, dims}, at::kLong);
  auto cell = table.accessor<std::int64_t, 2>();
  if (up_.rank() == root)
    for (int m = 0; m < num_microbatches; ++m)
      for (std::int64_t d = 0; d < dims; ++d)
        cell[m][d] = shapes.at(static_cast<std::size_t>(m)).at(static_cast<std::size_t>(d));
  const auto sent = table.to(device);
  up_.broadcast(sent, root);
  table = sent.cpu();
  shapes_.assign(static_cast<std::size_t>(num_microbatches), {});
  for (int m = 0; m < num_microbatches; ++m) {
    const std::int64_t* row = table.const_data_ptr<std::int64_t>() + m * dims;
    shapes_[static_cast<std::size_t>(m)].assign(row, row + dims);
  }
}

const std::vector<std::int64_t>& Link::shape_of(int microbatch, int stage) const {
  if (!options_.shape_of_stage.empty()) return options_.shape_of_stage.at(static_cast<std::size_t>(stage));
  return options_.shapes_vary ? shapes_.at(static_cast<std::size_t>(microbatch)) : options_.shape;
}

std::int64_t Link::share_of(std::int64_t elements) const {
  if (elements % tp_.size() != 0)
    throw std::logic_error(concat("a message of ", elements, " elements does not divide among ", tp_.size(), " ranks"));
  return elements / tp_.size();
}

Message Link::post_send(const at::Tensor& tensor, int to) const {
  at::Tensor part = tensor.contiguous();
  if (splits()) {
    const std::int64_t share = share_of(part.numel());
    part = part.view(-1).narrow(0, share * tp_.rank(), share);
  }
  auto work = group_to(up_.rank(), to).send_async(part, to);
  return {std::move(part), std::move(work)};
}

Message Link::post_recv(int microbatch, int from, int stage) const {
  const auto& shape = shape_of(microbatch, stage);
  at::Tensor buffer =
      splits() ? at::empty({share_of(elements_of(shape))}, options_.tensor) : at::empty(shape, options_.tensor);
  auto work = group_to(from, up_.rank()).recv_async(buffer, from);
  return {std::move(buffer), std::move(work)};
}

void Link::wait_sent(Message& message) {
  message.work->wait();
  message = {};
}

at::Tensor Link::wait_received(Message& message, int microbatch, int stage) const {
  message.work->wait();
  at::Tensor tensor = std::move(message.tensor);
  message = {};
  return splits() ? tp_.all_gather(tensor).view(shape_of(microbatch, stage)) : tensor;
}

void Link::abort(const std::string& reason) const {
  up_.abort(reason);
  down_.abort(reason);
}

}  // namespace megatron::pipeline
