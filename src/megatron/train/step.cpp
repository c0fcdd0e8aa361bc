#include "megatron/train/step.h"

#include <algorithm>
#include <bit>
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

// Adds up the losses of a program; the first wait for the device in a step.
double sum_of(const pipeline::Result& result) {
  double sum = 0;
  for (const auto& loss : result.loss_sums) sum += loss.item<double>();
  return sum;
}

double mean_scale(double count) { return count > 0 ? 1 / count : 0; }

}  // namespace

struct TrainStep::Totals {
  double loss_sum = 0, count = 0;
  double norm = 0;      ///< of the gradients as they are in the buffers
  bool broken = false;  ///< a loss or a gradient somewhere is not finite
  bool stop = false;
};

// One message for all that the ranks have to agree on. Each microbatch counts once (the tensor-parallel ranks of the
// last stage all hold its loss, those of the other stages none), and so does each gradient.
TrainStep::Totals TrainStep::totals_over_world(double loss_sum, double count, bool stop) const {
  const bool counted = parts_.context.is_first(plan::Axis::Tp);
  const double part = options_.counts_norm ? parts_.norm.part(options_.clip_norm) : 0;
  const bool broken = !std::isfinite(loss_sum) || !std::isfinite(part);
  const bool squares = options_.clip_norm == optim::NormKind::L2;
  const comm::Group& world = parts_.context.world();
  const auto total = world.all_reduce_scalars(
      {counted ? loss_sum : 0.0, counted ? count : 0.0, squares ? part : 0.0, broken ? 1.0 : 0.0, stop ? 1.0 : 0.0});
  const double norm = squares ? std::sqrt(total[2]) : world.all_reduce_scalars({part}, comm::ReduceOp::Max)[0];
  return {.loss_sum = total[0], .count = total[1], .norm = norm, .broken = total[3] > 0, .stop = total[4] > 0};
}

double TrainStep::gradient_scale(int num_microbatches) const {
  if (parts_.scaler == nullptr) return 1;
  const auto tokens = static_cast<std::uint64_t>(options_.microbatch_tokens) *
                      static_cast<std::uint64_t>(std::max(1, num_microbatches));
  return parts_.scaler->scale() / static_cast<double>(std::bit_ceil(tokens));
}

StepResult TrainStep::operator()(int num_microbatches, const MicrobatchSource& microbatch, double learning_rate,
                                 bool stop) {
  StepResult result;
  const double scale = gradient_scale(num_microbatches);
  result.loss_scale = parts_.scaler == nullptr ? 1 : parts_.scaler->scale();
  parts_.reducer.begin_step(num_microbatches);
  // Gradients of the sum over tokens; each bucket's reduction over dp starts by itself.
  const pipeline::Result run = parts_.pipeline.train(num_microbatches, microbatch, scale);
  result.times.forward_s = run.forward_s;
  result.times.backward_s = run.backward_s;
  {
    const Timed timed(result.times.reduce_s);
    parts_.reducer.finish();  // over dp
    parts_.shared.sum();      // over tp, and the holders of copies
  }
  const Timed timed(result.times.optimizer_s);
  const Totals total = totals_over_world(sum_of(run), run.count, stop);  // a few numbers, over the world
  const double to_mean = mean_scale(total.count);
  result.loss = total.loss_sum * to_mean;
  result.tokens = total.count;
  result.stop = total.stop;
  result.grad_norm = total.norm * to_mean / scale;
  // The same on every rank, so that none ever updates alone.
  result.skipped = total.broken || !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  if (parts_.scaler != nullptr) {
    result.harmless = result.skipped && std::isfinite(result.loss) && parts_.scaler->can_shrink();
    parts_.scaler->update(result.skipped);
  }
  if (result.skipped) return result;
  const double clip = options_.clip_grad > 0 ? std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6)) : 1.0;
  before_update_();
  parts_.optimizer.step(learning_rate, to_mean * clip / scale);
  parts_.gatherer.start();  // over dp
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
  // Each microbatch once, as in a step.
  const bool counted = context.is_first(plan::Axis::Tp);
  const auto total = context.world().all_reduce_scalars({counted ? sum : 0.0, counted ? count : 0.0, stop ? 1.0 : 0.0});
  return {.loss = total[0] * mean_scale(total[1]), .tokens = total[1], .stop = total[2] > 0};
}

}  // namespace megatron::train
