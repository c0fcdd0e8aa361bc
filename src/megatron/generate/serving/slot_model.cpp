#include "megatron/generate/serving/slot_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <utility>
#include <vector>

namespace megatron::generate {
namespace {

constexpr std::int64_t kHeader = 4;

}  // namespace

void RankSlots::tell(const Command& command) const {
  if (world_.size() == 1) return;
  const auto count = static_cast<std::int64_t>(command.values.size());
  const std::vector<std::int64_t> header = {static_cast<std::int64_t>(command.call), command.a, command.b, count};
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
  Command command{static_cast<Call>(header[0]), header[1], header[2], {}};
  if (header[3] > 0) command.values = received(header[3]);
  return command;
}

at::Tensor RankSlots::run(const Command& command) {
  const auto ids = [&](std::size_t begin) {
    const std::vector<std::int64_t> rest(command.values.begin() + static_cast<std::ptrdiff_t>(begin),
                                         command.values.end());
    return at::tensor(rest, at::kLong).to(device_);
  };
  switch (command.call) {
    case Call::Begin: {
      const std::int64_t from = command.values.at(0), rows = command.values.at(1);
      model::KvCache cache = model_.make_cache(1, command.b);
      if (rows > 0) cache.take_rows(caches_.at(from), rows);
      caches_.insert_or_assign(command.a, std::move(cache));
      return {};
    }
    case Call::Read: {
      const auto tokens = ids(0).unsqueeze(0);
      model::KvCache& cache = caches_.at(command.a);
      return command.b != 0 ? model_.forward_all(tokens, cache) : model_.forward(tokens, cache);
    }
    case Call::Write: {
      const std::size_t count = command.values.size() / 2;
      std::vector<model::KvCache*> caches;
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

void RankSlots::begin(std::int64_t slot, std::int64_t capacity, std::int64_t from, std::int64_t rows) {
  lead({Call::Begin, slot, capacity, {from, rows}});
}

at::Tensor RankSlots::read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) {
  return lead({Call::Read, slot, all ? 1 : 0, {tokens.begin(), tokens.end()}});
}

at::Tensor RankSlots::write(std::span<const std::int64_t> slots, std::span<const std::int64_t> tokens) {
  Command command{Call::Write, 0, 0, {slots.begin(), slots.end()}};
  command.values.insert(command.values.end(), tokens.begin(), tokens.end());
  return lead(command);
}

void RankSlots::free(std::int64_t slot) { lead({Call::Free, slot, 0, {}}); }
void RankSlots::idle() { lead({Call::Idle, 0, 0, {}}); }
void RankSlots::stop() { lead({Call::Stop, 0, 0, {}}); }

void RankSlots::follow() {
  while (true) {
    const Command command = hear();
    if (command.call == Call::Stop) return;
    run(command);
  }
}

}  // namespace megatron::generate
