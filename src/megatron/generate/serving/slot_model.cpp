#include "megatron/generate/serving/slot_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <utility>
#include <vector>

#include "megatron/plan/cost/kv_cache.h"

namespace megatron::generate {
namespace {

constexpr std::int64_t kHeader = 5;

// Ranks on several machines have planned with the memory of their own.
std::int64_t least_of_ranks(const comm::Group& world, std::int64_t blocks) {
  return -static_cast<std::int64_t>(world.all_reduce_scalars({-static_cast<double>(blocks)}, comm::ReduceOp::Max)[0]);
}

}  // namespace

void RankSlots::tell(const Command& command) const {
  if (world_.size() == 1) return;
  const auto count = static_cast<std::int64_t>(command.values.size());
  const std::vector<std::int64_t> header = {static_cast<std::int64_t>(command.call), command.a, command.b, command.c,
                                            count};
  world_.broadcast(at::tensor(header, at::kLong).to(device_), 0);
  if (count > 0) world_.broadcast(at::tensor(command.values, at::kLong).to(device_), 0);
}

RankSlots::Command RankSlots::hear() const {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device_);
  const auto received = [&](std::int64_t count) {
    const auto values = at::empty({count}, options);
    world_.broadcast(values, 0);
    const auto here = values.to(at::kCPU);
    const auto* data = here.const_data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(data, data + count);
  };
  const auto header = received(kHeader);
  Command command{static_cast<Call>(header[0]), header[1], header[2], header[3], {}};
  if (header[4] > 0) command.values = received(header[4]);
  return command;
}

at::Tensor RankSlots::run(const Command& command) {
  const auto ids = [&](std::size_t begin) {
    const std::vector<std::int64_t> rest(command.values.begin() + static_cast<std::ptrdiff_t>(begin),
                                         command.values.end());
    return at::tensor(rest, at::kLong).to(device_);
  };
  switch (command.call) {
    case Call::Begin:
      caches_.insert_or_assign(
          command.a,
          model::PagedCache{.pool = &pool_, .blocks = command.values, .length = command.b, .adapter = command.c});
      return {};
    case Call::Extend: {
      auto& blocks = caches_.at(command.a).blocks;
      blocks.insert(blocks.end(), command.values.begin(), command.values.end());
      return {};
    }
    case Call::Read: {
      const auto tokens = ids(0).unsqueeze(0);
      model::PagedCache& cache = caches_.at(command.a);
      return command.b != 0 ? model_.forward_all(tokens, cache) : model_.forward(tokens, cache);
    }
    case Call::Write: {
      const std::size_t count = command.values.size() / 2;
      std::vector<model::PagedCache*> caches;
      for (std::size_t i = 0; i < count; ++i) caches.push_back(&caches_.at(command.values[i]));
      return model_.step(ids(count), caches);
    }
    case Call::Free:
      caches_.erase(command.a);
      return {};
    case Call::Idle:
    case Call::Stop:
      return {};
  }
  return {};
}

at::Tensor RankSlots::lead(const Command& command) {
  tell(command);
  const at::Tensor logits = run(command);
  return logits.defined() ? logits.to(at::kCPU, at::kDouble).contiguous() : logits;
}

RankSlots::RankSlots(const StagedModel& model, comm::Group world, at::Device device, std::int64_t blocks)
    : model_(model),
      world_(std::move(world)),
      device_(device),
      blocks_(least_of_ranks(world_, blocks)),
      pool_(model.make_pool(blocks_)) {}

std::int64_t RankSlots::block_tokens() const { return plan::kCacheBlockTokens; }

void RankSlots::begin(std::int64_t slot, std::span<const std::int64_t> blocks, std::int64_t length,
                      std::int64_t adapter) {
  lead({Call::Begin, slot, length, adapter, {blocks.begin(), blocks.end()}});
}

void RankSlots::extend(std::int64_t slot, std::span<const std::int64_t> blocks) {
  lead({Call::Extend, slot, 0, 0, {blocks.begin(), blocks.end()}});
}

at::Tensor RankSlots::read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) {
  return lead({Call::Read, slot, all ? 1 : 0, 0, {tokens.begin(), tokens.end()}});
}

at::Tensor RankSlots::write(std::span<const std::int64_t> slots, std::span<const std::int64_t> tokens) {
  Command command{Call::Write, 0, 0, 0, {slots.begin(), slots.end()}};
  command.values.insert(command.values.end(), tokens.begin(), tokens.end());
  return lead(command);
}

void RankSlots::free(std::int64_t slot) { lead({Call::Free, slot, 0, 0, {}}); }
void RankSlots::idle() { lead({Call::Idle, 0, 0, 0, {}}); }
void RankSlots::stop() { lead({Call::Stop, 0, 0, 0, {}}); }

void RankSlots::follow() {
  while (true) {
    const Command command = hear();
    if (command.call == Call::Stop) return;
    run(command);
  }
}

}  // namespace megatron::generate
