#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "megatron/model/transformer_stage.h"

namespace megatron::train {

/// Makes the microbatches of coming steps on a thread of its own, in the order in which the run consumes them, so that
/// a step finds them ready. Which they are follows from the run's state alone: a run that resumes from a checkpoint has
/// a new prefetcher, and nothing of the old one is missed.
class Prefetcher {
 public:
  /// The sample ids of the next microbatch; none: the run has no more. Called in turn, by one thread.
  using NextIds = std::function<std::vector<std::int64_t>()>;
  using Make = std::function<model::Batch(const std::vector<std::int64_t>& sample_ids)>;

  /// At most `ahead` microbatches wait; 0: next() makes each itself.
  Prefetcher(NextIds next_ids, Make make, std::size_t ahead);
  /// Ends the thread once the microbatch under way is made.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next microbatch. Throws what making it threw, now and from then on; std::logic_error past the last.
  model::Batch next();

  /// Seconds that next() has waited since this was last asked: 0 where each microbatch was ready.
  double take_waited_s();

 private:
  std::optional<model::Batch> make_next();
  void run();

  NextIds next_ids_;
  Make make_;
  const std::size_t ahead_;
  double waited_s_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<model::Batch> ready_;  // this and what follows under the mutex
  std::exception_ptr error_;
  bool ended_ = false, stop_ = false;
  std::thread thread_;
};

/// The microbatches of one step by their numbers, whichever order its schedule asks for them in, out of a stream that
/// has one order. At the end of the step the stream stands at the next step's first.
class StepBatches {
 public:
  StepBatches(Prefetcher& stream, std::size_t num_microbatches, at::Device device)
      : stream_(stream), device_(device), batches_(num_microbatches) {}

  model::Batch operator()(std::size_t m);
  /// Passes over what the step did not ask for: a rank may need no tokens.
  void finish();

 private:
  Prefetcher& stream_;
  at::Device device_;
  std::vector<std::optional<model::Batch>> batches_;
  std::size_t taken_ = 0;
};

}  // namespace megatron::train
