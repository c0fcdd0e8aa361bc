#include "megatron/generate/serving/embedder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <vector>

namespace megatron::generate {
namespace {

// What the first rank says before the tokens of a text: how many there are, or one of these.
constexpr std::int64_t kIdle = 0, kEnd = -1;

std::int64_t heard(const comm::Group& world, at::Device device) {
  const at::Tensor count = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(device));
  world.broadcast(count, 0);
  return count.item<std::int64_t>();
}

void say(const comm::Group& world, at::Device device, std::int64_t count) {
  if (world.size() > 1) world.broadcast(at::tensor(std::vector<std::int64_t>{count}, at::kLong).to(device), 0);
}

}  // namespace

std::vector<float> Embedder::embed(const std::vector<std::int64_t>& tokens) const {
  using Kind = interchange::TextPooling::Kind;
  const at::Tensor states =
      model_.states(at::tensor(tokens, at::kLong).to(device_).unsqueeze(0)).select(1, 0).to(at::kFloat);
  at::Tensor vector = pooling_.kind == Kind::Mean    ? states.mean(at::IntArrayRef{0})
                      : pooling_.kind == Kind::First ? states.select(0, 0)
                                                     : states.amax(at::IntArrayRef{0});
  if (pooling_.normalized) vector = vector.div(vector.norm().clamp_min(1e-12));
  vector = vector.to(at::kCPU).contiguous();
  const auto* data = vector.const_data_ptr<float>();
  return {data, data + vector.numel()};
}

void Embedder::tell(const std::vector<std::int64_t>& tokens) const {
  if (world_.size() == 1) return;
  say(world_, device_, static_cast<std::int64_t>(tokens.size()));
  world_.broadcast(at::tensor(tokens, at::kLong).to(device_), 0);
}

void Embedder::run(serve::TaskQueue& queue, serve::Metrics& metrics) const {
  constexpr std::chrono::milliseconds kWait(250);
  int waits = 0;
  while (!queue.stopped()) {
    const auto now = serve::Clock::now();
    serve::end_stale(queue, metrics, now);
    auto task = queue.take_if([](const serve::TextTask&) { return true; });
    metrics.set("megatron_queued_texts", static_cast<double>(queue.size()));
    if (!task) {
      if (++waits % 4 == 0) say(world_, device_, kIdle);
      queue.wait(kWait);
      continue;
    }
    tell(task->prompt);
    task->listener->on_embedding(embed(task->prompt));
    metrics.add("megatron_texts_total", 1, {{"end", "embedding"}});
    const std::chrono::duration<double> took = serve::Clock::now() - now;
    metrics.add("megatron_prompt_tokens_total", static_cast<double>(task->prompt.size()));
    metrics.observe("megatron_text_seconds",
                    std::chrono::duration<double>(serve::Clock::now() - task->arrived).count());
    queue.set_rate(static_cast<double>(task->prompt.size()) / took.count());
  }
  serve::end_waiting(queue);
  say(world_, device_, kEnd);
}

void Embedder::follow() const {
  while (true) {
    const std::int64_t count = heard(world_, device_);
    if (count == kEnd) return;
    if (count == kIdle) continue;
    const at::Tensor tokens = at::empty({count}, at::TensorOptions().dtype(at::kLong).device(device_));
    world_.broadcast(tokens, 0);
    const at::Tensor here = tokens.to(at::kCPU);
    const auto* data = here.const_data_ptr<std::int64_t>();
    embed({data, data + count});
  }
}

}  // namespace megatron::generate
