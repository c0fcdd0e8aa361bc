#include "megatron/train/step.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace megatron::train {
namespace {

// Adds the time until its end to `total_s`.
class Timed {
 public:
  explicit Timed(double& total_s) : total_s_(total_s) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { total_s_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& total_s_;
  Clock::time_point start_ = Clock::now();
};

struct LossTotal {
  double sum = 0, count = 0;
  bool stop = false;
};

// Adds up the losses of a program; the first wait for the device in a step.
double sum_of(const pipeline::Result& result) {
  double sum = 0;
  for (const auto& loss : result.loss_sums) sum += loss.item<double>();
  return sum;
}

// Sums over all ranks of the world, counting each microbatch once: the tensor-parallel ranks of the last stage all hold
// its loss, those of the other stages none.
LossTotal total_over_world(double sum, double count, bool stop, const parallel::ParallelContext& context) {
  const bool counted = context.is_first(plan::Axis::Tp);
  const auto total = context.world().all_reduce_scalars({counted ? sum : 0.0, counted ? count : 0.0, stop ? 1.0 : 0.0});
  return {.sum = total[0], .count = total[1], .stop = total[2] > 0};
}

double mean_scale(double count) { return count > 0 ? 1 / count : 0; }

}  // namespace

TrainStep::TrainStep(Pipeline& pipeline, const parallel::ParameterStore& parameters,
                     const parallel::ParallelContext& context, optim::GradientReducer& reducer,
                     const optim::SharedGradients& shared, optim::AdamW& optimizer, StepOptions options)
    : pipeline_(pipeline),
      parameters_(parameters),
      context_(context),
      reducer_(reducer),
      shared_(shared),
      optimizer_(optimizer),
      options_(options) {}

StepResult TrainStep::operator()(int num_microbatches, const MicrobatchSource& microbatch, double learning_rate,
                                 bool stop) {
  StepResult result;
  reducer_.begin_step(num_microbatches);
  // Gradients of the sum over tokens; each bucket's reduction over dp starts by itself.
  const pipeline::Result run = pipeline_.train(num_microbatches, microbatch);
  result.times.forward_s = run.forward_s;
  result.times.backward_s = run.backward_s;
  LossTotal total;
  {
    const Timed timed(result.times.reduce_s);
    reducer_.finish();                                                 // over dp
    shared_.sum();                                                     // over tp, and the holders of copies
    total = total_over_world(sum_of(run), run.count, stop, context_);  // three numbers, over the world
  }
  const Timed timed(result.times.optimizer_s);
  const double to_mean = mean_scale(total.count);
  result.loss = total.sum * to_mean;
  result.tokens = total.count;
  result.stop = total.stop;
  result.grad_norm = optim::gradient_norm(parameters_, context_.model(), context_.is_first(plan::Axis::Tp), to_mean,
                                          options_.clip_norm);  // over the model
  const bool broken = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  // Agreed on, so that no rank ever updates alone.
  result.skipped = context_.world().all_reduce_scalars({broken ? 1.0 : 0.0}, comm::ReduceOp::Max)[0] > 0;
  if (result.skipped) return result;
  const double clip = options_.clip_grad > 0 ? std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6)) : 1.0;
  optimizer_.step(learning_rate, to_mean * clip);
  return result;
}

double Evaluation::perplexity() const { return std::exp(std::min(20.0, loss)); }

Evaluation evaluate(Pipeline& pipeline, const parallel::ParallelContext& context, std::size_t num_microbatches,
                    const MicrobatchSource& microbatch, bool stop) {
  // A validation may have any number of microbatches; a program of a few fills the pipeline as well.
  constexpr std::size_t kMostAtOnce = 256;
  double sum = 0, count = 0;
  for (std::size_t first = 0; first < num_microbatches; first += kMostAtOnce) {
    const auto here = static_cast<int>(std::min(kMostAtOnce, num_microbatches - first));
    const auto result = pipeline.evaluate(here, [&](std::size_t m) { return microbatch(first + m); });
    sum += sum_of(result);
    count += result.count;
  }
  const auto total = total_over_world(sum, count, stop, context);
  return {.loss = total.sum * mean_scale(total.count), .tokens = total.count, .stop = total.stop};
}

}  // namespace megatron::train
