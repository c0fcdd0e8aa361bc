#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/steps/launch_writer.h"

namespace megatron::plan {

LaunchSizes::LaunchSizes(const ResolvedRun& run)
    : tokens(static_cast<double>(run.config.train.micro_batch_size * run.config.data.seq_length)),
      hidden(static_cast<double>(run.shape.hidden)),
      tp(run.grid.size(Axis::Tp)),
      stream_tokens(run.config.parallel.sp ? tokens / tp : tokens),
      qkv(static_cast<double>(run.shape.qkv_rows()) / tp),
      heads(static_cast<double>(run.shape.query_rows()) / tp),
      ffn(static_cast<double>(run.shape.ffn_hidden) / tp),
      fc1(run.shape.gated ? 2 * ffn : ffn),
      element(static_cast<double>(element_bytes(run.config))),
      wide(std::max(4.0, element)),
      gradient_uses(2 - 1 / static_cast<double>(run.microbatches_per_step)) {}

LaunchWriter::LaunchWriter(const ResolvedRun& run) : size_(run), run_(run), fp8_(fp8_recipe(run.config.fp8)) {
  plan.streams = {"compute", "tensor parallel", "reduction", "experts"};
  plan.inputs = {"x", "y", "weights", "gradients", "sample ids", "d(next x)", "d(next y)", "next mean, rstd"};
}

void LaunchWriter::add_bytes(const std::string& call, const std::string& name, std::vector<std::string> reads,
                             std::vector<std::string> writes, double bytes) {
  plan.launches.push_back({name, kCompute, std::move(reads), std::move(writes), bytes, std::move(after_), call});
  after_.clear();
}

void LaunchWriter::product(const std::string& call, const std::string& name, const std::string& from,
                           const std::string& to, double in, double out, double weights) {
  add(call, name + " product", {from, "weights"}, {to}, in + out);
  plan.launches.back().bytes += (weights > 0 ? weights : in * out) * size_.element;
}

void LaunchWriter::weight_gradient(const std::string& name, const std::string& dy, const std::string& x, double out,
                                   double in, bool bias) {
  constexpr double kUnit = 8;  // elements of 16 bytes
  const bool apart = size_.element != 2 || std::fmod(in, kUnit) != 0 || std::fmod(out, kUnit) != 0;
  add(bias ? "linear_gradients" : "linear_weight_gradient", name + (bias ? " weight, bias" : " weight") + " gradient",
      {dy, x, "gradients"}, {"gradients"}, in + out + (bias && apart ? out : 0));
  plan.launches.back().bytes += size_.gradient_uses * in * out * size_.wide;
}

void LaunchWriter::norm_again(const std::string& x, const std::string& y) {
  add_to_stream(run_.shape.rms_norm ? "rms_norm" : "layer_norm", "norm, again", {x, "weights"}, {y}, 2 * size_.hidden);
}

int LaunchWriter::message(Stream stream, const std::string& name, const std::string& from, const std::string& to,
                          double bytes) {
  std::vector<int> after;
  if (!plan.launches.empty()) after.push_back(last());
  plan.launches.push_back({name, stream, {from}, {to}, bytes, std::move(after)});
  return last();
}

int LaunchWriter::sum_over_ranks(const std::string& buffer) {
  if (size_.tp == 1) return -1;
  const bool scatters = run_.config.parallel.sp;
  const int sum = message(kTensorParallel, (scatters ? "scattered sum of " : "sum of ") + buffer, buffer, buffer,
                          (scatters ? 1 : 2) * size_.hidden * size_.tokens * size_.element);
  const bool is_gradient = buffer.starts_with('d');
  if (!is_gradient) wait_for(sum);
  return sum;
}

std::pair<int, std::string> LaunchWriter::gather(const std::string& buffer) {
  if (size_.tp == 1 || !run_.config.parallel.sp) return {-1, buffer};
  const std::string all = "all of " + buffer;
  return {message(kTensorParallel, "gathering of " + buffer, buffer, all, size_.hidden * size_.tokens * size_.element),
          all};
}

std::string LaunchWriter::gathered(const std::string& buffer) {
  const auto [gathering, all] = gather(buffer);
  wait_for(gathering);
  return all;
}

namespace {

/// A decoder's layer.
class Layer {
 public:
  explicit Layer(const ResolvedRun& run) : to_(run), run_(run), size_(to_.size()), biased_(run.shape.linear_bias) {}

  void forward() {
    const std::string y = to_.gathered("y");
    product("qkv", y, "qkv", size_.hidden, size_.qkv, false);
    if (to_.fp8() && has_qkv_bias()) add_bias("qkv", size_.qkv);
    if (rotates()) to_.add("rotate_", "rotation", {"qkv"}, {"qkv"}, size_.qkv + size_.heads);  // queries and keys
    to_.add("attention", "attention", {"qkv", "sample ids"}, {"attention", "logsumexp"}, size_.qkv + size_.heads);
    product("attention output", "attention", "branch", size_.heads, size_.hidden, true);
    to_.sum_over_ranks("branch");
    add_and_normalize("branch", "x", {"x2", "y2", "mean, rstd"});
    if (run_.shape.experts)
      experts_forward(to_);
    else
      mlp_forward();
    add_and_normalize("branch2", "x2", {"next x", "next y", "next mean, rstd"});
  }

  void backward() {
    const std::string dbranch2 =
        add_norm_backward("d(next y)", "next x", "d(next x)", "dx2", "dbranch2", biased_ && !run_.shape.experts);
    if (run_.shape.experts)
      experts_backward(to_, dbranch2);
    else
      mlp_backward(to_.gathered(dbranch2));
    const std::string dbranch = to_.gathered(add_norm_backward("dy2", "x2", "dx2", "dx", "dbranch", biased_));
    input_gradient("attention output", dbranch, "dattention", size_.hidden, size_.heads, true);
    weight_gradient("attention output", dbranch, "attention", size_.hidden, size_.heads);
    to_.add("attention_backward", "attention, backward", {"dattention", "qkv", "attention", "logsumexp", "sample ids"},
            {"dqkv"}, 2 * size_.qkv + 2 * size_.heads);
    if (rotates()) to_.add("rotate_", "rotation, backward", {"dqkv"}, {"dqkv"}, size_.qkv + size_.heads);
    column_backward("qkv", "dqkv", "x", "y", "dy", size_.qkv, has_qkv_bias());
    if (run_.grid.size(Axis::Dp) > 1)
      to_.message(LaunchWriter::kReduction, "sum of the gradients", "gradients", "gradients", 2 * gradient_bytes());
  }

  const LaunchPlan& plan() const { return to_.plan; }

 private:
  // Products with a weight, in train.dtype or in 8 bits; with their biases forward, where they are those of the type.
  void product(const std::string& name, const std::string& x, const std::string& y, double in, double out,
               bool row_parallel) {
    if (to_.fp8()) return to_.fp8_product(name, x, y, in, out, row_parallel);
    to_.product("linear", name, x, y, in, out);
  }
  void input_gradient(const std::string& name, const std::string& dy, const std::string& dx, double out, double in,
                      bool row_parallel) {
    if (to_.fp8()) return to_.fp8_input_gradient(name, dy, dx, out, in, row_parallel);
    to_.product("linear_input_gradient", name + ", input", dy, dx, out, in);
  }
  void weight_gradient(const std::string& name, const std::string& dy, const std::string& x, double out, double in,
                       bool bias = false) {
    if (!to_.fp8()) return to_.weight_gradient(name, dy, x, out, in, bias);
    if (bias && name == "fc1") to_.bias_gradient(name, dy, out);  // which autograd hands on at once
    to_.fp8_weight_gradient(name, dy, x, out, in);
    if (bias && name != "fc1") to_.bias_gradient(name, dy, out);
  }
  void add_bias(const std::string& y, double features) {
    to_.add("", y + "'s bias, added", {y, "weights"}, {y}, 2 * features);
  }
  bool has_qkv_bias() const { return run_.shape.attention.add_qkv_bias || biased_; }
  std::string activation_call(const char* direction) const {
    return to_.fp8() ? concat(run_.shape.gated ? "gated_" : "", "activation", direction) : "";
  }

  /// Both gradients of a column-parallel layer whose input y is norm(x). Its sum over ranks is under way while the
  /// weight's gradient is computed; the input's gradient while y is gathered.
  void column_backward(const std::string& name, const std::string& du, const std::string& x, const std::string& y,
                       const std::string& dy, double features, bool bias) {
    const bool gathers = run_.config.parallel.sp && size_.tp > 1;
    if (gathers) to_.norm_again(x, y);
    const auto [gathering, all] = to_.gather(y);
    input_gradient(name, du, dy, features, size_.hidden, false);
    const int sum = to_.sum_over_ranks(dy);
    if (!gathers) to_.norm_again(x, y);
    to_.wait_for(gathering);
    weight_gradient(name, du, all, features, size_.hidden, bias);
    to_.wait_for(sum);
  }

  void mlp_forward() {
    const std::string y = to_.gathered("y2");
    if (activates_in_products(run_)) {
      to_.product("linear_activation", "fc1 + activation", y, "u", size_.hidden, size_.fc1 + size_.ffn,
                  size_.hidden * size_.fc1);
      to_.plan.launches.back().writes.emplace_back("a");
    } else {
      if (to_.fp8()) {
        product("fc1", y, "u", size_.hidden, size_.fc1, false);
        if (biased_) add_bias("u", size_.fc1);
      } else {
        to_.product("linear_activation", "fc1", y, "u", size_.hidden, size_.fc1);
      }
      to_.add(activation_call(""), "activation", {"u"}, {"a"}, size_.fc1 + size_.ffn);
    }
    product("fc2", "a", "branch2", size_.ffn, size_.hidden, true);
    to_.sum_over_ranks("branch2");
  }

  void mlp_backward(const std::string& dbranch) {
    const bool again = run_.config.train.recompute_gelu;
    if (activates_in_products(run_)) {
      to_.product("linear_activation_gradient", "fc2, input, activation", dbranch, "du", size_.hidden,
                  size_.ffn + size_.fc1, size_.hidden * size_.ffn);
      to_.plan.launches.back().reads.emplace_back("u");
      if (again) to_.add("", "activation, again", {"u"}, {"a"}, size_.fc1 + size_.ffn);
    } else if (to_.fp8()) {
      input_gradient("fc2", dbranch, "da", size_.hidden, size_.ffn, true);
      to_.add(activation_call("_backward"), "activation, backward", {"da", "u"}, {"du"}, 2 * size_.fc1 + size_.ffn);
      if (again) to_.add(activation_call(""), "activation, again", {"u"}, {"a"}, size_.fc1 + size_.ffn);
    } else {
      to_.product("linear_activation_gradient", "fc2, input", dbranch, "da", size_.hidden, size_.ffn);
      to_.add("", again ? "activation, backward and again" : "activation, backward", {"da", "u"}, {"du"},
              2 * size_.fc1 + size_.ffn);
      if (again) {
        to_.plan.launches.back().writes.emplace_back("a");
        to_.plan.launches.back().bytes += size_.ffn * size_.tokens * size_.element;
      }
    }
    weight_gradient("fc2", dbranch, "a", size_.hidden, size_.ffn);
    column_backward("fc1", "du", "x2", "y2", "dy2", size_.fc1, biased_);
  }

  /// Of this rank's weights.
  double gradient_bytes() const {
    double parameters = size_.hidden * (size_.qkv + size_.heads);
    if (const auto& experts = run_.shape.experts) {
      const double expert = static_cast<double>(experts->expert.first_rows() + experts->expert.width),
                   shared = static_cast<double>(experts->shared().first_rows() + experts->shared_width);
      // Ranks that hold the same experts are dp / ep: one alone sums nothing.
      const bool alone = run_.grid.size(Axis::Dp) == run_.config.parallel.ep;
      const double here = alone ? 0 : expert * static_cast<double>(experts->count) / run_.config.parallel.ep;
      parameters += size_.hidden / size_.tp * (here + shared);
      parameters += size_.hidden * static_cast<double>(experts->count);
    } else {
      parameters += size_.hidden * (size_.fc1 + size_.ffn);
    }
    return size_.wide * parameters;
  }

  bool rotates() const { return !run_.shape.learned_positions && run_.shape.position_buckets == 0; }

  void add_and_normalize(const std::string& branch, const std::string& x, std::vector<std::string> writes) {
    to_.add_to_stream(run_.shape.rms_norm ? "bias_dropout_add_rms_norm" : "bias_dropout_add_norm",
                      "bias + dropout + residual + norm", {branch, x, "weights", "sample ids"}, std::move(writes),
                      4 * size_.hidden);
  }
  /// Of a norm and the addition before it -> what the branch gets: the stream's gradient itself where nothing was
  /// dropped. `bias`: one was added. Sums over some rows are written and read again (phases/norms/norm_gradient.h).
  std::string add_norm_backward(const std::string& dy, const std::string& x, const std::string& past,
                                const std::string& dx, const std::string& branch, bool bias) {
    constexpr auto kMost = static_cast<double>(kMostBytesOfSums), kRows = static_cast<double>(kRowsOfSums);
    const bool drops = run_.config.model.hidden_dropout > 0;
    const double row_of_sums = (1.0 + (run_.shape.rms_norm ? 0 : 1) + (bias ? 1 : 0)) * size_.hidden * size_.wide;
    const double again = row_of_sums <= kMost ? 0 : 2.0 + (drops ? 1 : 0) + (bias ? 1 : 0);  // one by one
    to_.add_to_stream(
        "bias_dropout_add_norm_backward", "norm, dropout, bias, backward",
        {dy, x, x == "next x" ? "next mean, rstd" : "mean, rstd", past, "weights", "gradients", "sample ids"},
        {dx, "gradients"}, (4.0 + (drops ? 1 : 0) + again) * size_.hidden);
    to_.plan.launches.back().bytes += 2 * std::ceil(size_.stream_tokens / kRows) * row_of_sums;
    if (drops) to_.plan.launches.back().writes.push_back(branch);
    return drops ? branch : dx;
  }

  LaunchWriter to_;
  const ResolvedRun& run_;
  const LaunchSizes& size_;
  bool biased_;
};

}  // namespace

bool activates_in_products(const ResolvedRun& run) {
  const LaunchSizes size(run);
  constexpr double kUnit = 8;  // elements of 16 bytes
  const auto in_units = [](double features) { return std::fmod(features, kUnit) == 0; };
  return size.element == 2 && run.config.fp8.format == "none" && !run.shape.gated &&
         run.config.model.activation == "gelu_tanh" && in_units(size.ffn) && in_units(size.hidden);
}

LaunchPlan layer_launches(const ResolvedRun& run) {
  Layer layer(run);
  layer.forward();
  layer.backward();
  validate(layer.plan());
  return layer.plan();
}

}  // namespace megatron::plan
