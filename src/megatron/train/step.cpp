#include "megatron/train/step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "megatron/train/checked_passes.h"
#include "megatron/train/data/batches.h"

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

constexpr double kLeast = 1e-300;  // a divisor in place of 0, where what it divides is 0 too

double mean_scale(double count) { return count > 0 ? 1 / count : 0; }

std::vector<LossFigure> figure_means(const std::vector<std::string>& names, std::span<const double> sums,
                                     double count) {
  std::vector<LossFigure> figures;
  for (std::size_t k = 0; k < names.size(); ++k) figures.push_back({names[k], sums[k] * mean_scale(count)});
  return figures;
}

// Where the numbers that ranks add up stand in their message. First those of the device, behind which come the depths'
// sums and a loss's own figures, then those that the host knows, behind which come the depths' counts and the routers'.
enum OfDevice : std::uint8_t { kLoss, kSquares, kBroken, kSentenceLoss, kZeros, kOfDevice };
enum OfHost : std::uint8_t { kCount, kStop, kSave, kSentences, kOfHost };

}  // namespace

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

std::size_t TrainStep::first_of_host() const {
  return kOfDevice + static_cast<std::size_t>(options_.mtp_depths) + parts_.pipeline.forward_step().figures.size();
}

// One message for all that the ranks have to agree on. Each microbatch counts once (the tensor-parallel ranks of the
// last stage all hold its loss, those of the other stages none), and so does each gradient. The host waits for nothing.
TrainStep::Totals TrainStep::totals_over_world(const Open& open, bool stop, bool save) const {
  const PassResult& pass = open.pass;
  const c10::NoGradGuard no_grad;
  const auto timer = parts_.timers.time(TimerId::OptimizerClipMainGrad);
  const bool first = parts_.context.tensor().rank() == 0;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble).device(parts_.context.device());
  const auto counted = [&](const at::Tensor& sums, std::int64_t size) {
    return first && sums.defined() ? sums.reshape({size}) : at::zeros({size}, options);
  };
  const bool squares = options_.clip_norm == optim::kL2;
  const at::Tensor part = parts_.norm.part(squares ? optim::kL2 : optim::kInf).reshape({1});
  at::Tensor seen = pass.loss_sum.defined() ? pass.loss_sum + part : part;
  // What is beyond the range of 8 bits is cut off, infinity too: gradients of weights would not show it.
  if (open.magnitudes.defined()) seen = seen + (open.magnitudes * 0).sum();
  std::vector<at::Tensor> own{counted(pass.loss_sum, 1), squares ? part : at::zeros({1}, options),
                              seen * 0,  // NaN where it is not finite
                              counted(pass.sentence_sum, 1), count_zeros(options)};
  if (options_.mtp_depths > 0) own.push_back(counted(pass.depth_sums, options_.mtp_depths));
  const auto figures = static_cast<std::int64_t>(parts_.pipeline.forward_step().figures.size());
  if (figures > 0) own.push_back(counted(pass.figure_sums, figures));
  const auto of_first = [&](double value) { return first ? value : 0.0; };
  std::vector<double> of_host{of_first(pass.count), stop ? 1.0 : 0.0, save ? 1.0 : 0.0, of_first(pass.sentences)};
  for (std::size_t k = 0; k < static_cast<std::size_t>(options_.mtp_depths); ++k)  // of other stages none
    of_host.push_back(k < pass.depth_counts.size() ? of_first(pass.depth_counts[k]) : 0.0);
  for (const double number : parts_.pipeline.take_router_counts()) of_host.push_back(of_first(number));
  own.push_back(at::tensor(of_host, at::kDouble).to(options, /*non_blocking=*/true));

  const comm::Group& world = parts_.context.world();
  Totals total{comm::reduce_numbers(world, at::cat(own)), {}};
  if (squares) {
    total.norm = total.numbers[kSquares].sqrt();
    return total;
  }
  total.norm = comm::reduce_numbers(world, part, comm::ReduceOp::Max)[0];
  if (options_.clip_norm == optim::kInf) return total;
  // Of other orders: powers of magnitudes from 0 to 1, which neither overflow nor vanish together.
  const at::Tensor share = parts_.norm.part(options_.clip_norm, total.norm.clamp_min(kLeast)).reshape({1});
  const at::Tensor whole = total.norm * comm::reduce_numbers(world, share)[0].pow(1 / options_.clip_norm);
  total.norm = whole.nan_to_num(/*nan=*/optim::kInf, /*posinf=*/optim::kInf);  // infinity divided by itself is NaN
  return total;
}

// By the same operations as in read_totals(): on a CPU this number and the host's have the same bits.
at::Tensor TrainStep::update_factor(const Totals& total, double scale) const {
  const c10::NoGradGuard no_grad;
  const at::Tensor count = total.numbers[static_cast<std::int64_t>(first_of_host()) + kCount];
  const auto number = [&](double value) { return at::full({}, value, count.options()); };
  const at::Tensor to_mean = count.gt(0) * (number(1) / count.clamp_min(kLeast));
  const at::Tensor norm = total.norm * to_mean / scale;
  at::Tensor factor = to_mean;
  if (options_.clip_grad > 0) factor = factor * (number(options_.clip_grad) / (norm + 1e-6)).clamp_max(1);
  // NaN where the loss or a gradient is not finite somewhere.
  return factor / scale + (total.numbers[kLoss] * to_mean + norm) * 0 + total.numbers[kBroken];
}

// What the host learns of a step, for which it waits; returns what the update multiplies gradients by.
double TrainStep::learn(Open& open) {
  StepResult& result = open.result;
  std::vector<double> numbers = open.coming();  // the one wait of a step
  const double norm = numbers.back();
  numbers.pop_back();
  if (open.is_decided && options_.params_norm) {
    result.params_norm = std::sqrt(numbers.back());
    numbers.pop_back();
  }
  if (open.pass.measure) open.pass.measure(open.pass);  // of what was over before
  parts_.timers.add(TimerId::ForwardCompute, open.pass.forward_s);
  parts_.timers.add(TimerId::BackwardCompute, open.pass.backward_s);
  result.times.forward_s = open.pass.forward_s;
  result.times.backward_s = open.pass.backward_s;
  const double factor = read_totals(result, numbers, norm, open.scale);
  if (judge_) judge_(result);
  if (parts_.scaler == nullptr) return factor;
  const bool overflow = result.skipped && !result.spike;
  result.harmless = overflow && std::isfinite(result.loss) && parts_.scaler->can_shrink();
  parts_.scaler->update(overflow);
  return factor;
}

// `numbers`, `norm`: those of Totals.
double TrainStep::read_totals(StepResult& result, std::span<const double> numbers, double norm, double scale) const {
  const auto depths = static_cast<std::size_t>(options_.mtp_depths);
  const std::span<const double> host = numbers.subspan(first_of_host());
  const double to_mean = mean_scale(host[kCount]);
  result.loss = numbers[kLoss] * to_mean;
  if (options_.sentence_head) result.sentence_loss = numbers[kSentenceLoss] * mean_scale(host[kSentences]);
  for (std::size_t k = 0; k < depths; ++k)
    result.depth_losses.push_back(numbers[kOfDevice + k] * mean_scale(host[kOfHost + k]));
  result.figures =
      figure_means(parts_.pipeline.forward_step().figures, numbers.subspan(kOfDevice + depths), host[kCount]);
  result.tokens = host[kCount];
  result.stop = host[kStop] > 0;
  result.save = host[kSave] > 0;
  result.grad_norm = norm * to_mean / scale;
  if (options_.num_zeros_in_grad) result.num_zeros = numbers[kZeros];
  const std::span<const double> experts = host.subspan(kOfHost + depths);
  if (!experts.empty())
    result.experts = ExpertFigures(static_cast<std::size_t>(options_.num_experts), {experts.begin(), experts.end()});
  // The same on every rank, so that none ever updates alone.
  result.skipped = std::isnan(numbers[kBroken]) || !std::isfinite(result.loss) || !std::isfinite(result.grad_norm) ||
                   result.has_persistent_error();
  const double clip = options_.clip_grad > 0 ? std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6)) : 1.0;
  return to_mean * clip / scale;
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

// The largest magnitude of each operand of the layers that compute in 8 bits, over all microbatches and ranks: a
// maximum, which any order of ranks gives alike. One message; a rank has 0 for layers of others.
at::Tensor TrainStep::magnitudes_over_world() const {
  if (parts_.fp8 == nullptr) return {};
  const at::Tensor largest = parts_.fp8->magnitudes();
  parts_.context.world().all_reduce(largest, comm::ReduceOp::Max);
  return largest;
}

// This rank's part.
at::Tensor TrainStep::count_zeros(const at::TensorOptions& options) const {
  if (!options_.num_zeros_in_grad) return at::zeros({1}, options);
  const auto timer = parts_.timers.time(TimerId::OptimizerCountZeros);
  return parts_.figures.zero_gradients().reshape({1});
}

// Collective over the world.
at::Tensor TrainStep::squares_of_weights() const {
  const at::Tensor part = parts_.figures.squares_of_weights(parts_.optimizer).reshape({1});
  return comm::reduce_numbers(parts_.context.world(), part);
}

void TrainStep::update_weights(const plan::LearningRates& rates, const optim::GradScale& grad_scale) {
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
    tokens += host_part(batch).loss_mask_bs.sum(at::kDouble).item<double>();
    sentences += static_cast<double>(host_part(batch).sentence_labels_b.ge(0).sum().item<std::int64_t>());
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
// its result. Parameters, the scales of the loss and of 8 bits, and the routers' biases change after the last one.
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
    if (parts_.fp8 != nullptr) parts_.fp8->forget_magnitudes();
    parts_.reducer.begin_step(num_microbatches, {.reduces = reduces, .look = look});
    pass = forward_and_backward(num_microbatches, places == 0 ? microbatch : check.of_share(places), scale);
    parts_.reducer.finish();  // what has not started is looked at too
    if (check.due) checksum.add_loss(pass.loss_sum.defined() ? pass.loss_sum.item<double>() : 0.0, pass.count);
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

bool TrainStep::may_stay_open() const {
  return !judge_ && options_.router_biases.empty() && parts_.scaler == nullptr && parts_.fp8 == nullptr;
}

TrainStep::Open TrainStep::begin(int num_microbatches, const MicrobatchSource& microbatch, bool stop, bool save,
                                 const StepCheck& check) {
  Open open;
  open.scale = gradient_scale(num_microbatches);
  if (parts_.fp8 != nullptr) parts_.fp8->forget_magnitudes();  // those of an evaluation
  {
    // Gradients of the sum over tokens; each bucket's reduction over dp starts by itself.
    const auto timer = parts_.timers.time(TimerId::ForwardBackward);
    open.pass = passes(num_microbatches, microbatch, open.scale, check, open.result);
  }
  {
    const Timed timed(open.result.times.reduce_s);
    sum_gradients();
  }
  const Timed timed(open.result.times.optimizer_s);
  const auto timer = parts_.timers.time(TimerId::Optimizer);
  open.magnitudes = magnitudes_over_world();
  open.totals = totals_over_world(open, stop, save);  // a few numbers, over the world
  // Where nobody judges the step, the device decides by itself what becomes of it, and the host only learns of it.
  open.is_decided = !judge_ && options_.router_biases.empty() && !open.result.has_persistent_error();
  // The copy comes before the update, which it need not wait for.
  if (!open.is_decided || !options_.params_norm)
    open.coming = copy_(at::cat({open.totals.numbers, open.totals.norm.reshape({1})}));
  return open;
}

void TrainStep::update(Open& open, const plan::LearningRates& rates) {
  const Timed timed(open.result.times.optimizer_s);
  const auto timer = parts_.timers.time(TimerId::Optimizer);
  if (open.is_decided) {
    before_update_();
    update_weights(rates, update_factor(open.totals, open.scale));
    if (options_.params_norm)
      open.coming = copy_(at::cat({open.totals.numbers, squares_of_weights(), open.totals.norm.reshape({1})}));
    return;
  }
  const double factor = learn(open);
  if (!open.result.skipped) {
    before_update_();
    move_router_biases(open.result.experts);
    update_weights(rates, factor);
  }
  if (options_.params_norm) open.result.params_norm = std::sqrt(copy_(squares_of_weights())().front());
}

StepResult TrainStep::end(Open open) {
  if (open.is_decided) {
    const Timed timed(open.result.times.optimizer_s);
    learn(open);
    if (open.result.skipped) parts_.optimizer.set_steps(parts_.optimizer.steps() - 1);  // it has changed nothing
  }
  if (parts_.fp8 != nullptr && !open.result.skipped) parts_.fp8->update(open.magnitudes.to(at::kCPU));
  if (parts_.scaler != nullptr) open.result.loss_scale = parts_.scaler->scale();
  return std::move(open.result);
}

StepResult TrainStep::operator()(int num_microbatches, const MicrobatchSource& microbatch,
                                 const plan::LearningRates& rates, bool stop, bool save, const StepCheck& check) {
  Open open = begin(num_microbatches, microbatch, stop, save, check);
  update(open, rates);
  return end(std::move(open));
}

bool StepResult::has_persistent_error() const {
  return std::ranges::any_of(suspects, [](const supervise::Suspect& suspect) { return suspect.persistent; });
}

double Evaluation::perplexity() const { return std::exp(std::min(20.0, token_loss())); }

Evaluation evaluate(Pipeline& pipeline, const parallel::ParallelContext& context, std::size_t num_microbatches,
                    const MicrobatchSource& microbatch, bool stop) {
  // A validation may have any number of microbatches; a program of a few fills the pipeline as well.
  constexpr std::size_t kMaxAtOnce = 256;
  const c10::NoGradGuard no_grad;
  at::Tensor sum, sentence_sum, figures;
  double count = 0, sentences = 0;
  std::vector<at::Tensor> non_loss;
  const std::vector<std::string>& names = pipeline.forward_step().figures;
  for (std::size_t first = 0; first < num_microbatches; first += kMaxAtOnce) {
    const auto here = static_cast<int>(std::min(kMaxAtOnce, num_microbatches - first));
    auto result = pipeline.evaluate(here, [&](std::size_t m) { return microbatch(first + m); });
    add_number(sum, result.loss_sum);
    count += result.count;
    add_number(sentence_sum, result.sentence_sum);
    sentences += result.sentences;
    std::move(result.non_loss.begin(), result.non_loss.end(), std::back_inserter(non_loss));
    add_number(figures, result.figure_sums);
  }
  // Each microbatch once, as in a step.
  const bool first = context.tensor().rank() == 0;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble).device(context.device());
  const auto counted = [&](const at::Tensor& sums, std::int64_t size) {
    return first && sums.defined() ? sums.reshape({size}) : at::zeros({size}, options);
  };
  const auto of_first = [&](double value) { return first ? value : 0.0; };
  const std::vector<double> of_host{of_first(count), stop ? 1.0 : 0.0, of_first(sentences)};
  std::vector<at::Tensor> parts{at::tensor(of_host, at::kDouble).to(options, /*non_blocking=*/true), counted(sum, 1),
                                counted(sentence_sum, 1)};
  const std::size_t others = of_host.size() + 2;
  if (!names.empty()) parts.push_back(counted(figures, static_cast<std::int64_t>(names.size())));
  const std::vector<double> total = comm::copy_to_host(comm::reduce_numbers(context.world(), at::cat(parts)))();
  const double tokens = total[0];
  Evaluation evaluation{.loss = total[3] * mean_scale(tokens), .tokens = tokens, .stop = total[1] > 0};
  evaluation.non_loss = std::move(non_loss);
  evaluation.figures = figure_means(names, std::span(total).subspan(others), tokens);
  if (total[2] > 0) {
    evaluation.sentence_loss = total[4] / total[2];
    evaluation.loss += *evaluation.sentence_loss;
  }
  return evaluation;
}

}  // namespace megatron::train
