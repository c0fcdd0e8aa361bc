#include "megatron/train/step.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "megatron/train/checked_passes.h"

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

/// One number for each of the names: this rank's sums, of ranks without the last stage zeros.
std::vector<double> figure_parts(const std::vector<std::string>& names, const PassResult& pass) {
  std::vector<double> parts(names.size(), 0);
  std::copy(pass.figure_sums.begin(), pass.figure_sums.end(), parts.begin());
  return parts;
}

std::vector<LossFigure> figure_means(const std::vector<std::string>& names, std::span<const double> sums,
                                     double count) {
  std::vector<LossFigure> figures;
  for (std::size_t k = 0; k < names.size(); ++k) figures.push_back({names[k], sums[k] * mean_scale(count)});
  return figures;
}

}  // namespace

struct TrainStep::Totals {
  double loss_sum = 0, count = 0;
  double norm = 0;      ///< of the gradients as they are in the buffers
  bool broken = false;  ///< a loss or a gradient somewhere is not finite
  bool stop = false, save = false;
  double sentence_sum = 0, sentences = 0;
  double num_zeros = 0;
  std::vector<double> depths;   ///< of each depth of multi-token prediction its sum and its tokens
  std::vector<double> figures;  ///< sums of ForwardStep::figures
  std::vector<double> experts;  ///< numbers of an ExpertFigures
};

void TrainStep::sum_gradients() {
  {
    const auto timer = parts_.timers.time(TimerId::AllGradsSync);
    parts_.reducer.finish();  // over dp
  }
  {
    const auto timer = parts_.timers.time(TimerId::LayernormGradsAllReduce);
    parts_.shared.sum_within_stages();  // over tp
  }
  const auto timer = parts_.timers.time(TimerId::EmbeddingGradsAllReduce);
  parts_.shared.sum_copies();  // over the holders of copies
}

// One message for all that the ranks have to agree on. Each microbatch counts once (the tensor-parallel ranks of the
// last stage all hold its loss, those of the other stages none), and so does each gradient.
TrainStep::Totals TrainStep::totals_over_world(const PassResult& pass, bool stop, bool save) const {
  const bool first = parts_.context.tensor().rank() == 0;
  const auto counted = [&](double value) { return first ? value : 0.0; };
  const auto timer = parts_.timers.time(TimerId::OptimizerClipMainGrad);
  const double loss_sum = sum_of(pass);
  const bool squares = options_.clip_norm == optim::kL2;
  const double part = parts_.norm.part(squares ? optim::kL2 : optim::kInf);
  const bool broken = !std::isfinite(loss_sum) || !std::isfinite(part);
  const comm::Group& world = parts_.context.world();
  std::vector<double> parts{counted(loss_sum),       counted(pass.count), squares ? part : 0.0,
                            broken ? 1.0 : 0.0,      stop ? 1.0 : 0.0,    counted(pass.sentence_sum),
                            counted(pass.sentences), count_zeros(),       save ? 1.0 : 0.0};
  const std::size_t before = parts.size();
  for (std::size_t k = 0; k < static_cast<std::size_t>(options_.mtp_depths); ++k)  // of other stages none
    for (const std::vector<double>* numbers : {&pass.depth_sums, &pass.depth_counts})
      parts.push_back(k < numbers->size() ? counted((*numbers)[k]) : 0.0);
  const std::size_t behind = parts.size();
  for (const double sum : figure_parts(parts_.pipeline.forward_step().figures, pass)) parts.push_back(counted(sum));
  const std::size_t others = parts.size();
  for (const double number : parts_.pipeline.take_router_counts()) parts.push_back(counted(number));
  const auto total = world.all_reduce_scalars(parts);
  double norm = squares ? std::sqrt(total[2]) : world.all_reduce_scalars({part}, comm::ReduceOp::Max)[0];
  // Of other orders: powers of magnitudes from 0 to 1, which neither overflow nor vanish together.
  if (!squares && options_.clip_norm != optim::kInf && norm > 0 && std::isfinite(norm)) {
    const double share = parts_.norm.part(options_.clip_norm, norm);
    norm *= std::pow(world.all_reduce_scalars({share})[0], 1 / options_.clip_norm);
  }
  return {.loss_sum = total[0],
          .count = total[1],
          .norm = norm,
          .broken = total[3] > 0,
          .stop = total[4] > 0,
          .save = total[8] > 0,
          .sentence_sum = total[5],
          .sentences = total[6],
          .num_zeros = total[7],
          .depths = {total.begin() + static_cast<std::ptrdiff_t>(before),
                     total.begin() + static_cast<std::ptrdiff_t>(behind)},
          .figures = {total.begin() + static_cast<std::ptrdiff_t>(behind),
                      total.begin() + static_cast<std::ptrdiff_t>(others)},
          .experts = {total.begin() + static_cast<std::ptrdiff_t>(others), total.end()}};
}

// Shifts each bias by the sign of the mean load minus its expert's, on the ranks that update it. All loads are sums of
// whole numbers, so every rank and every layout finds the same signs.
void TrainStep::move_router_biases(const ExpertFigures& experts) {
  std::map<std::string, std::vector<double>> all_changes;
  for (std::size_t layer = 0; layer < options_.router_biases.size(); ++layer) {
    const std::span<const double> loads = experts.loads(layer);
    const double all = std::accumulate(loads.begin(), loads.end(), 0.0), count = static_cast<double>(loads.size());
    std::vector<double>& changes = all_changes[options_.router_biases[layer]];
    for (const double load : loads) {
      const double lacks = all - count * load;
      changes.push_back(options_.bias_update_rate * (lacks > 0 ? 1 : lacks < 0 ? -1 : 0));
    }
  }
  parts_.optimizer.shift(all_changes);
}

// This rank's part.
double TrainStep::count_zeros() const {
  if (!options_.num_zeros_in_grad) return 0;
  const auto timer = parts_.timers.time(TimerId::OptimizerCountZeros);
  return static_cast<double>(parts_.figures.zero_gradients());
}

// Collective over the world.
double TrainStep::params_norm() const {
  const double part = parts_.figures.squares_of_weights(parts_.optimizer);
  return std::sqrt(parts_.context.world().all_reduce_scalars({part})[0]);
}

void TrainStep::update(const plan::LearningRates& rates, double grad_scale) {
  {
    const auto timer = parts_.timers.time(TimerId::OptimizerInnerStep);
    parts_.optimizer.step(rates, grad_scale);
  }
  const auto timer = parts_.timers.time(TimerId::ParamsAllGather);
  parts_.gatherer.start();  // over dp
}

double TrainStep::gradient_scale(int num_microbatches) const {
  if (parts_.scaler == nullptr) return 1;
  const auto tokens = static_cast<std::uint64_t>(options_.microbatch_tokens) *
                      static_cast<std::uint64_t>(std::max(1, num_microbatches));
  return parts_.scaler->scale() / static_cast<double>(std::bit_ceil(tokens));
}

double TrainStep::tokens_of_a_sentence(const std::vector<model::Batch>& batches) const {
  double tokens = 0, sentences = 0;
  for (const model::Batch& batch : batches) {
    tokens += batch.loss_mask_bs.sum(at::kDouble).item<double>();
    sentences += static_cast<double>(batch.sentence_labels_b.ge(0).sum().item<std::int64_t>());
  }
  const auto total = parts_.context.loss().all_reduce_scalars({tokens, sentences});
  return total[1] > 0 ? total[0] / total[1] : 0;
}

PassResult TrainStep::forward_and_backward(int num_microbatches, const MicrobatchSource& microbatch, double scale) {
  if (!options_.sentence_head)
    return parts_.pipeline.train(num_microbatches, microbatch, {.gradients = scale, .sentences = 0});
  // Two means of different numbers of terms: their ratio must be known where the gradients begin. So the microbatches
  // of a step, which are small, are all read before the first is computed.
  std::vector<model::Batch> batches;
  for (int m = 0; m < num_microbatches; ++m) batches.push_back(microbatch(static_cast<std::size_t>(m)));
  const LossScale scales{.gradients = scale, .sentences = tokens_of_a_sentence(batches)};
  return parts_.pipeline.train(
      num_microbatches, [&](std::size_t m) { return std::move(batches[m]); }, scales);
}

// The passes of a step: one, or of a checked step several. A pass leaves gradients, which the next one overwrites, and
// its result. Parameters, the loss scale and the routers' biases change after the last one.
PassResult TrainStep::passes(int num_microbatches, const MicrobatchSource& microbatch, double scale,
                             const StepCheck& check, StepResult& result) {
  PassResult pass;
  BitFlip flip = check.flip;
  const auto run = [&](int places, bool reduces) {
    bool flips = flip == BitFlip::Always || (flip == BitFlip::Once && reduces);
    if (flips && flip == BitFlip::Once) flip = BitFlip::None;
    GradientChecksum checksum;
    const auto look = [&](const parallel::Parameter& parameter, std::int64_t round) {
      if (std::exchange(flips, false)) flip_bit(parameter.grad);
      if (check.due) checksum.add(parameter, round);
    };
    parts_.pipeline.take_router_counts();  // those of the pass before are dropped
    parts_.reducer.begin_step(num_microbatches, {.reduces = reduces, .look = look});
    pass = forward_and_backward(num_microbatches, places == 0 ? microbatch : check.of_share(places), scale);
    parts_.reducer.finish();  // what has not started is looked at too
    if (check.due) checksum.add_loss(sum_of(pass), pass.count);
    return checksum.value();
  };
  if (check.due) {
    result.checked = true;
    result.suspects = run_checked(parts_.context, options_.copy_distance, run);
  } else if (flip != BitFlip::None) {
    run(0, /*reduces=*/true);
  } else {
    parts_.reducer.begin_step(num_microbatches);
    pass = forward_and_backward(num_microbatches, microbatch, scale);
  }
  return pass;
}

StepResult TrainStep::operator()(int num_microbatches, const MicrobatchSource& microbatch,
                                 const plan::LearningRates& rates, bool stop, bool save, const StepCheck& check) {
  StepResult result;
  const double scale = gradient_scale(num_microbatches);
  result.loss_scale = parts_.scaler == nullptr ? 1 : parts_.scaler->scale();
  // Gradients of the sum over tokens; each bucket's reduction over dp starts by itself.
  auto timed_passes = parts_.timers.time(TimerId::ForwardBackward);
  const PassResult run = passes(num_microbatches, microbatch, scale, check, result);
  timed_passes.stop();
  parts_.timers.add(TimerId::ForwardCompute, run.forward_s);
  parts_.timers.add(TimerId::BackwardCompute, run.backward_s);
  result.times.forward_s = run.forward_s;
  result.times.backward_s = run.backward_s;
  {
    const Timed timed(result.times.reduce_s);
    sum_gradients();
  }
  const Timed timed(result.times.optimizer_s);
  const auto timer = parts_.timers.time(TimerId::Optimizer);
  const Totals total = totals_over_world(run, stop, save);  // a few numbers, over the world
  const double to_mean = mean_scale(total.count);
  result.loss = total.loss_sum * to_mean;
  if (options_.sentence_head) result.sentence_loss = total.sentence_sum * mean_scale(total.sentences);
  for (std::size_t k = 0; k < total.depths.size(); k += 2)
    result.depth_losses.push_back(total.depths[k] * mean_scale(total.depths[k + 1]));
  result.figures = figure_means(parts_.pipeline.forward_step().figures, total.figures, total.count);
  result.tokens = total.count;
  result.stop = total.stop;
  result.save = total.save;
  result.grad_norm = total.norm * to_mean / scale;
  if (options_.num_zeros_in_grad) result.num_zeros = total.num_zeros;
  // The same on every rank, so that none ever updates alone.
  result.skipped =
      total.broken || !std::isfinite(result.loss) || !std::isfinite(result.grad_norm) || result.has_persistent_error();
  judge_(result);
  if (parts_.scaler != nullptr) {
    const bool overflow = result.skipped && !result.spike;
    result.harmless = overflow && std::isfinite(result.loss) && parts_.scaler->can_shrink();
    parts_.scaler->update(overflow);
  }
  const double clip = options_.clip_grad > 0 ? std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6)) : 1.0;
  if (!total.experts.empty())
    result.experts = ExpertFigures(static_cast<std::size_t>(options_.num_experts), total.experts);
  if (!result.skipped) {
    before_update_();
    move_router_biases(result.experts);
    update(rates, to_mean * clip / scale);
  }
  if (options_.params_norm) result.params_norm = params_norm();
  return result;
}

bool StepResult::has_persistent_error() const {
  return std::ranges::any_of(suspects, [](const supervise::Suspect& suspect) { return suspect.persistent; });
}

double Evaluation::perplexity() const { return std::exp(std::min(20.0, token_loss())); }

Evaluation evaluate(Pipeline& pipeline, const parallel::ParallelContext& context, std::size_t num_microbatches,
                    const MicrobatchSource& microbatch, bool stop) {
  // A validation may have any number of microbatches; a program of a few fills the pipeline as well.
  constexpr std::size_t kMaxAtOnce = 256;
  double sum = 0, count = 0, sentence_sum = 0, sentences = 0;
  std::vector<at::Tensor> non_loss;
  const std::vector<std::string>& names = pipeline.forward_step().figures;
  std::vector<double> figures(names.size(), 0);
  for (std::size_t first = 0; first < num_microbatches; first += kMaxAtOnce) {
    const auto here = static_cast<int>(std::min(kMaxAtOnce, num_microbatches - first));
    auto result = pipeline.evaluate(here, [&](std::size_t m) { return microbatch(first + m); });
    sum += sum_of(result);
    count += result.count;
    sentence_sum += result.sentence_sum;
    sentences += result.sentences;
    std::move(result.non_loss.begin(), result.non_loss.end(), std::back_inserter(non_loss));
    for (std::size_t k = 0; k < result.figure_sums.size(); ++k) figures[k] += result.figure_sums[k];
  }
  // Each microbatch once, as in a step.
  const bool first = context.tensor().rank() == 0;
  const auto counted = [&](double value) { return first ? value : 0.0; };
  std::vector<double> parts{counted(sum), counted(count), stop ? 1.0 : 0.0, counted(sentence_sum), counted(sentences)};
  const std::size_t others = parts.size();
  for (const double figure : figures) parts.push_back(counted(figure));
  const std::vector<double> total = context.world().all_reduce_scalars(parts);
  Evaluation evaluation{.loss = total[0] * mean_scale(total[1]), .tokens = total[1], .stop = total[2] > 0};
  evaluation.non_loss = std::move(non_loss);
  evaluation.figures = figure_means(names, std::span(total).subspan(others), total[1]);
  if (total[4] > 0) {
    evaluation.sentence_loss = total[3] / total[4];
    evaluation.loss += *evaluation.sentence_loss;
  }
  return evaluation;
}

}  // namespace megatron::train
