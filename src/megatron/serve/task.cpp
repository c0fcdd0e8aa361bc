#include "megatron/serve/task.h"

#include <algorithm>
#include <cmath>

#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

double cost_of(const TextTask& task) {
  return static_cast<double>(task.prompt.size()) + static_cast<double>(task.max_tokens);
}

}  // namespace

int retry_after_s(double tokens, double tokens_per_s) {
  if (tokens_per_s <= 0) return 5;
  return static_cast<int>(std::clamp(std::ceil(tokens / tokens_per_s), 1.0, 60.0));
}

void TaskQueue::submit(std::vector<TextTask> tasks) {
  if (tasks.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      ApiError error(503, "the server is stopping", "", "stopping");
      error.retry_after_s = 10;
      throw error;
    }
    if (!queue_.takes(tasks.front().client, tasks.size())) {
      ApiError error(429, "too many requests wait already", "", "rate_limit_exceeded");
      error.retry_after_s = retry_after_s(queue_.cost(), tokens_per_s_);
      throw error;
    }
    for (TextTask& task : tasks) {
      const std::string client = task.client;
      const double cost = cost_of(task);
      queue_.push(client, cost, std::move(task));
    }
  }
  changed_.notify_all();
}

std::vector<TextTask> TaskQueue::take_stale(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  return queue_.remove([&](const TextTask& task) { return task.listener->gone() || task.deadline <= now; });
}

void TaskQueue::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return !queue_.empty() || stopped_; });
}

void TaskQueue::clear() {
  const std::lock_guard lock(mutex_);
  queue_.remove([](const TextTask&) { return true; });
}

void TaskQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

bool TaskQueue::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

std::size_t TaskQueue::size() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

void TaskQueue::set_rate(double tokens_per_s) {
  const std::lock_guard lock(mutex_);
  tokens_per_s_ = tokens_per_s;
}

void end_stale(TaskQueue& queue, Metrics& metrics, Clock::time_point now) {
  for (const TextTask& task : queue.take_stale(now)) {
    metrics.add("megatron_texts_total", 1, {{"end", task.listener->gone() ? "cancelled" : "late"}});
    task.listener->on_error(503, "the request waited for too long; the server is busy");
  }
}

void end_waiting(TaskQueue& queue) {
  while (auto task = queue.take_if([](const TextTask&) { return true; }))
    task->listener->on_error(503, "the server is stopping");
}

}  // namespace megatron::serve
