#include "megatron/train/step.h"

#include <ATen/core/grad_mode.h>

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

// Sums over all ranks of the world, counting each microbatch once: its tensor-parallel ranks all hold its loss.
LossTotal total_over_world(const std::vector<at::Tensor>& sums, double count, bool stop,
                           const parallel::ParallelContext& context) {
  double sum = 0;
  for (const auto& loss : sums) sum += loss.item<double>();  // the first wait for the device in the step
  const bool counted = context.is_first(plan::Axis::Tp);
  const auto total = context.world().all_reduce_scalars({counted ? sum : 0.0, counted ? count : 0.0, stop ? 1.0 : 0.0});
  return {.sum = total[0], .count = total[1], .stop = total[2] > 0};
}

double mean_scale(double count) { return count > 0 ? 1 / count : 0; }

}  // namespace

TrainStep::TrainStep(const model::Gpt& model, const parallel::ParameterStore& parameters,
                     const parallel::ParallelContext& context, optim::GradientReducer& reducer, optim::AdamW& optimizer,
                     StepOptions options)
    : model_(model),
      parameters_(parameters),
      context_(context),
      reducer_(reducer),
      optimizer_(optimizer),
      options_(options) {}

StepResult TrainStep::operator()(int num_microbatches, const MicrobatchSource& microbatch, double learning_rate,
                                 bool stop) {
  StepResult result;
  std::vector<at::Tensor> sums;
  double count = 0;
  reducer_.begin_step(num_microbatches);
  for (int m = 0; m < num_microbatches; ++m) {
    model::LossSum loss;
    {
      const Timed timed(result.times.forward_s);
      loss = model_.loss(microbatch(static_cast<std::size_t>(m)), /*training=*/true);
    }
    const Timed timed(result.times.backward_s);
    loss.sum.backward();  // gradients of the sum over tokens; each bucket's reduction over dp starts by itself
    sums.push_back(loss.sum.detach());
    count += loss.count;
  }
  LossTotal total;
  {
    const Timed timed(result.times.reduce_s);
    reducer_.finish();                                      // over dp
    total = total_over_world(sums, count, stop, context_);  // three numbers, over the world
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

Evaluation evaluate(const model::Gpt& model, const parallel::ParallelContext& context, std::size_t num_microbatches,
                    const MicrobatchSource& microbatch, bool stop) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  double count = 0;
  for (std::size_t m = 0; m < num_microbatches; ++m) {
    const auto loss = model.loss(microbatch(m), /*training=*/false);
    sums.push_back(loss.sum);
    count += loss.count;
  }
  const auto total = total_over_world(sums, count, stop, context);
  return {.loss = total.sum * mean_scale(total.count), .tokens = total.count, .stop = total.stop};
}

}  // namespace megatron::train
