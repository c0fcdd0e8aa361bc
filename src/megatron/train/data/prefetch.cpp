#include "megatron/train/data/prefetch.h"

#include <stdexcept>
#include <utility>

#include "megatron/base/timer.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/data/batches.h"

namespace megatron::train {

Prefetcher::Prefetcher(NextIds next_ids, Make make, std::size_t ahead)
    : next_ids_(std::move(next_ids)), make_(std::move(make)), ahead_(ahead) {
  if (ahead_ > 0) thread_ = std::thread([this] { run(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<model::Batch> Prefetcher::make_next() {
  const std::vector<std::int64_t> ids = next_ids_();
  if (ids.empty()) return std::nullopt;
  return make_(ids);
}

void Prefetcher::run() {
  for (bool is_first = true;; is_first = false) {
    std::optional<model::Batch> batch;
    std::exception_ptr error;
    try {
      if (is_first) kernels::configure_thread(1);
      batch = make_next();
    } catch (...) {
      error = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || ready_.size() < ahead_; });
    if (stop_) return;
    if (batch) ready_.push_back(std::move(*batch));
    error_ = error;
    ended_ = !batch;
    changed_.notify_all();
    if (ended_) return;
  }
}

model::Batch Prefetcher::next() {
  if (ahead_ == 0) {
    const Stopwatch making;
    auto batch = make_next();
    waited_s_ += making.seconds();
    if (!batch) throw std::logic_error("no microbatch is left");
    return std::move(*batch);
  }
  std::unique_lock lock(mutex_);
  if (ready_.empty() && !ended_) {
    const Stopwatch waiting;
    changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
    waited_s_ += waiting.seconds();
  }
  if (ready_.empty() && error_) std::rethrow_exception(error_);
  if (ready_.empty()) throw std::logic_error("no microbatch is left");
  model::Batch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

double Prefetcher::take_waited_s() { return std::exchange(waited_s_, 0); }

model::Batch StepBatches::operator()(std::size_t m) {
  for (; taken_ <= m; ++taken_) batches_.at(taken_) = stream_.next();
  return on_device(batches_.at(m).value(), device_);
}

void StepBatches::finish() {
  for (; taken_ < batches_.size(); ++taken_) stream_.next();
}

}  // namespace megatron::train
