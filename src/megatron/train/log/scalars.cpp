#include "megatron/train/log/scalars.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace megatron::train {
namespace {

// Curves against iterations and the same against consumed samples.
class Curves {
 public:
  Curves(std::int64_t iteration, std::int64_t samples) : iteration_(iteration), samples_(samples) {}

  void add(const std::string& tag, double value) { by_iteration_.push_back({tag, value, iteration_}); }
  void add_both(const std::string& tag, double value) {
    add(tag, value);
    by_samples_.push_back({tag + " vs samples", value, samples_});
  }
  /// By step: those of one step share a record.
  std::vector<Scalar> take() {
    std::vector<Scalar> all = std::move(by_iteration_);
    all.insert(all.end(), by_samples_.begin(), by_samples_.end());
    return all;
  }

 private:
  std::int64_t iteration_, samples_;
  std::vector<Scalar> by_iteration_, by_samples_;
};

/// Under Megatron-LM's names where it has such curves (megatron/core/transformer/moe/moe_utils.py).
void add_expert_curves(Curves& curves, const ExpertMetrics& experts) {
  using Layer = ExpertMetrics::Layer;
  const auto add = [&](bool there, const std::string& name, double Layer::*figure, double whole) {
    if (!there) return;
    curves.add(name, whole);
    if (!experts.by_layer) return;
    for (const Layer& layer : experts.layers)
      curves.add("moe/" + name + "_layer_" + std::to_string(layer.number), layer.*figure);
  };
  add(experts.balances, "seq_load_balancing_loss", &Layer::balance, experts.mean(&Layer::balance));
  add(experts.z, "z_loss", &Layer::z, experts.mean(&Layer::z));
  add(true, "expert-imbalance", &Layer::imbalance, experts.imbalance());
  add(experts.drops, "expert-dropped", &Layer::dropped, experts.mean(&Layer::dropped));
}

double perplexity_of(double loss) { return std::exp(std::min(20.0, loss)); }

}  // namespace

std::vector<Scalar> scalars_of(const IterationMetrics& metrics, const config::LogConfig& log) {
  Curves curves(metrics.iteration, metrics.consumed_samples);
  curves.add_both("learning-rate", metrics.learning_rate);
  if (metrics.decoupled_learning_rate) curves.add_both("decoupled-learning-rate", *metrics.decoupled_learning_rate);
  curves.add_both("batch-size", static_cast<double>(metrics.batch_size));
  if (!metrics.skipped) {
    if (std::isfinite(metrics.loss)) curves.add_both("lm loss", metrics.loss - metrics.sentence_loss.value_or(0));
    if (metrics.sentence_loss) curves.add_both("sop loss", *metrics.sentence_loss);
    for (std::size_t k = 0; k < metrics.depth_losses.size(); ++k)
      curves.add("mtp_" + std::to_string(k + 1) + " loss", metrics.depth_losses[k]);
    for (const LossFigure& figure : metrics.figures) curves.add(figure.name, figure.value);
    curves.add_both("grad-norm", metrics.grad_norm);
  }
  if (metrics.num_zeros) curves.add_both("num-zeros", *metrics.num_zeros);
  if (metrics.params_norm) curves.add_both("params-norm", *metrics.params_norm);
  if (metrics.experts) add_expert_curves(curves, *metrics.experts);
  if (log.loss_scale_to_tensorboard) curves.add_both("loss-scale", metrics.loss_scale);
  if (log.world_size_to_tensorboard) curves.add_both("world-size", static_cast<double>(metrics.world_size));
  if (log.memory_to_tensorboard) {
    curves.add("mem-allocated-bytes", static_cast<double>(metrics.memory_bytes));
    curves.add("mem-max-allocated-bytes", static_cast<double>(metrics.peak_memory_bytes));
  }
  if (log.timers_to_tensorboard) {
    curves.add("iteration-time", metrics.step_ms / 1e3);
    curves.add("throughput", metrics.tflops_per_rank);
    curves.add("tokens-per-second", metrics.tokens_per_s);
  }
  return curves.take();
}

std::vector<Scalar> time_scalars_of(const IterationMetrics& metrics, const config::LogConfig& log) {
  std::vector<Scalar> curves;
  if (!log.timers_to_tensorboard) return curves;
  for (const IterationMetrics::Time& time : metrics.times)
    curves.push_back({time.name + "-time", time.max_ms / 1e3, metrics.iteration});
  return curves;
}

std::vector<Scalar> scalars_of(const ValidationMetrics& metrics, const config::LogConfig& log) {
  Curves curves(metrics.iteration, metrics.consumed_samples);
  const std::string where = metrics.test ? " test" : metrics.set.empty() ? " validation" : " validation-" + metrics.set;
  const auto add = [&](const std::string& loss, double value, double perplexity) {
    curves.add_both(loss + where, value);
    if (log.validation_ppl_to_tensorboard) curves.add_both(loss + where + " ppl", perplexity);
  };
  const double sentence_loss = metrics.sentence_loss.value_or(0);
  add("lm loss", metrics.loss - sentence_loss, metrics.perplexity);
  if (metrics.sentence_loss) add("sop loss", sentence_loss, perplexity_of(sentence_loss));
  for (const LossFigure& figure : metrics.figures) curves.add(figure.name + where, figure.value);
  return curves.take();
}

std::vector<Scalar> scalars_of(const TaskMetrics& metrics) {
  Curves curves(metrics.iteration, metrics.consumed_samples);
  curves.add_both("lm loss validation", metrics.loss);
  for (const tasks::Metric& metric : metrics.scores) curves.add_both(metric.name + " validation", metric.value);
  return curves.take();
}

}  // namespace megatron::train
