#include "megatron/plan/steps/launches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/plan/cost/counts.h"

namespace megatron::plan {
namespace {

constexpr int kCompute = 0, kTensorParallel = 1, kReduction = 2;

/// By stream the last launch of it that is over before a launch begins, -1: none.
using Over = std::vector<int>;

std::vector<Over> orders(const LaunchPlan& plan) {
  std::vector<Over> before;
  std::vector<int> last(plan.streams.size(), -1);
  for (int i = 0; i < static_cast<int>(plan.launches.size()); ++i) {
    const Launch& launch = plan.launches[static_cast<std::size_t>(i)];
    if (launch.stream < 0 || launch.stream >= static_cast<int>(plan.streams.size()))
      throw std::logic_error(concat(launch.name, ": on a stream that the plan lacks"));
    Over over(plan.streams.size(), -1);
    const auto join = [&](int earlier) {
      const Over& its = before[static_cast<std::size_t>(earlier)];
      for (std::size_t s = 0; s < over.size(); ++s) over[s] = std::max(over[s], its[s]);
      int& own = over[static_cast<std::size_t>(plan.launches[static_cast<std::size_t>(earlier)].stream)];
      own = std::max(own, earlier);
    };
    int& previous = last[static_cast<std::size_t>(launch.stream)];
    if (previous >= 0) join(previous);
    for (const int event : launch.after) {
      if (event < 0 || event >= i) throw std::logic_error(concat(launch.name, ": waits for what is launched later"));
      join(event);
    }
    previous = i;
    before.push_back(std::move(over));
  }
  return before;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Sizes of a rank's layer, in elements.
struct Sizes {
  explicit Sizes(const ResolvedRun& run)
      : tokens(static_cast<double>(run.config.train.micro_batch_size * run.config.data.seq_length)),
        hidden(static_cast<double>(run.shape.hidden)),
        tp(run.grid.size(Axis::Tp)),
        qkv(static_cast<double>(run.shape.qkv_rows()) / tp),
        heads(static_cast<double>(run.shape.query_rows()) / tp),
        ffn(static_cast<double>(run.shape.ffn_hidden) / tp),
        fc1(run.shape.gated ? 2 * ffn : ffn),
        element(static_cast<double>(element_bytes(run.config))) {}
  double tokens, hidden;
  int tp;
  double qkv, heads, ffn, fc1, element;
};

/// Adds launches in the host's order.
class Writer {
 public:
  explicit Writer(const ResolvedRun& run) : size_(run), biased_(run.shape.linear_bias), run_(run) {
    plan.streams = {"compute", "tensor parallel", "reduction"};
    plan.inputs = {"x", "y", "weights", "gradients", "sample ids", "d(next x)", "d(next y)", "next mean, rstd"};
  }

  void forward() {
    product("linear", "qkv", "y", "qkv", size_.hidden, size_.qkv);  // with its bias, as every product forward
    if (rotates()) add("rotate_", "rotation", {"qkv"}, {"qkv"}, 2 * size_.qkv);
    add("attention", "attention", {"qkv", "sample ids"}, {"attention", "logsumexp"}, size_.qkv + size_.heads);
    product("linear", "attention output", "attention", "branch", size_.heads, size_.hidden);
    sum_over_ranks("branch");
    add_and_normalize("branch", "x", {"x2", "y2", "mean, rstd"});
    if (activates_in_products(run_)) {
      product("linear_activation", "fc1 + activation", "y2", "u", size_.hidden, size_.fc1 + size_.ffn,
              size_.hidden * size_.fc1);
      plan.launches.back().writes.emplace_back("a");
    } else {
      product("linear_activation", "fc1", "y2", "u", size_.hidden, size_.fc1);
      add("", "activation", {"u"}, {"a"}, size_.fc1 + size_.ffn);
    }
    product("linear", "fc2", "a", "branch2", size_.ffn, size_.hidden);
    sum_over_ranks("branch2");
    add_and_normalize("branch2", "x2", {"next x", "next y", "next mean, rstd"});
  }

  void backward() {
    norm_backward("d(next y)", "next x", "d(next x)", "dx2");
    const std::string dbranch2 = dropout_backward("dx2", "dbranch2");
    bias_gradient(dbranch2, size_.hidden);
    if (activates_in_products(run_)) {
      product("linear_activation_gradient", "fc2, input, activation", dbranch2, "du", size_.hidden,
              size_.ffn + size_.fc1, size_.hidden * size_.ffn);
      plan.launches.back().reads.emplace_back("u");
      add("", "activation, again", {"u"}, {"a"}, size_.fc1 + size_.ffn);
    } else {
      product("linear_activation_gradient", "fc2, input", dbranch2, "da", size_.hidden, size_.ffn);
      add("", "activation, backward and again", {"da", "u"}, {"du", "a"}, 2 * size_.fc1 + 2 * size_.ffn);
    }
    weight_gradient("fc2", dbranch2, "a", size_.hidden, size_.ffn);
    bias_gradient("du", size_.fc1);
    product("linear_input_gradient", "fc1, input", "du", "dy2", size_.fc1, size_.hidden);
    const int sum = sum_over_ranks("dy2");
    norm_again("x2", "y2");
    weight_gradient("fc1", "du", "y2", size_.fc1, size_.hidden);  // while ranks add up
    wait_for(sum);
    norm_backward("dy2", "x2", "dx2", "dx");
    const std::string dbranch = dropout_backward("dx", "dbranch");
    bias_gradient(dbranch, size_.hidden);
    product("linear_input_gradient", "attention output, input", dbranch, "dattention", size_.hidden, size_.heads);
    weight_gradient("attention output", dbranch, "attention", size_.hidden, size_.heads);
    add("attention_backward", "attention, backward", {"dattention", "qkv", "attention", "logsumexp", "sample ids"},
        {"dqkv"}, 2 * size_.qkv + 2 * size_.heads);
    if (rotates()) add("rotate_", "rotation, backward", {"dqkv"}, {"dqkv"}, 2 * size_.qkv);
    if (run_.shape.attention.add_qkv_bias || biased_) bias_gradient_of("dqkv", size_.qkv);
    product("linear_input_gradient", "qkv, input", "dqkv", "dy", size_.qkv, size_.hidden);
    const int last_sum = sum_over_ranks("dy");
    norm_again("x", "y");
    weight_gradient("qkv", "dqkv", "y", size_.qkv, size_.hidden);
    wait_for(last_sum);
    if (run_.grid.size(Axis::Dp) > 1) {
      const double parameters = size_.hidden * (size_.qkv + size_.heads + size_.fc1 + size_.ffn);
      plan.launches.push_back(
          {"sum of the gradients", kReduction, {"gradients"}, {"gradients"}, 2 * 4 * parameters, {last()}});
    }
  }

  LaunchPlan plan;

 private:
  int last() const { return static_cast<int>(plan.launches.size()) - 1; }

  bool rotates() const { return !run_.shape.learned_positions && run_.shape.position_buckets == 0; }

  /// `call`: as of Launch. `features`: elements per token that are read and written.
  void add(const std::string& call, const std::string& name, std::vector<std::string> reads,
           std::vector<std::string> writes, double features) {
    plan.launches.push_back({name, kCompute, std::move(reads), std::move(writes),
                             features * size_.tokens * size_.element, std::move(after_), call});
    after_.clear();
  }
  /// The next launch waits for `launch` of another stream, where there is one.
  void wait_for(int launch) {
    if (launch >= 0) after_.push_back(launch);
  }
  /// `weights`: elements of the matrix; 0: of `in` times `out`.
  void product(const std::string& call, const std::string& name, const std::string& from, const std::string& to,
               double in, double out, double weights = 0) {
    add(call, name + " product", {from, "weights"}, {to}, in + out);
    plan.launches.back().bytes += (weights > 0 ? weights : in * out) * size_.element;
  }
  /// Sums in float32 where that is wider: read and written.
  void weight_gradient(const std::string& name, const std::string& dy, const std::string& x, double out, double in) {
    add("linear_weight_gradient", name + " weight gradient", {dy, x, "gradients"}, {"gradients"}, in + out);
    plan.launches.back().bytes += 2 * in * out * std::max(4.0, size_.element);
  }
  void bias_gradient(const std::string& dy, double features) {
    if (biased_) bias_gradient_of(dy, features);
  }
  void bias_gradient_of(const std::string& dy, double features) {
    add("accumulate_bias_gradient", "bias gradient", {dy, "gradients"}, {"gradients"}, features);
  }
  std::string norm() const { return run_.shape.rms_norm ? "rms_norm" : "layer_norm"; }
  void add_and_normalize(const std::string& branch, const std::string& x, std::vector<std::string> writes) {
    add(run_.shape.rms_norm ? "bias_dropout_add_rms_norm" : "bias_dropout_add_norm", "bias + dropout + residual + norm",
        {branch, x, "weights", "sample ids"}, std::move(writes), 4 * size_.hidden);
  }
  /// What a column-parallel layer reads is not kept for its weight's gradient.
  void norm_again(const std::string& x, const std::string& y) {
    add(norm(), "norm, again", {x, "weights"}, {y}, 2 * size_.hidden);
  }
  void norm_backward(const std::string& dy, const std::string& x, const std::string& past, const std::string& dx) {
    const std::string saved = x == "next x" ? "next mean, rstd" : "mean, rstd";
    add(norm() + "_backward", "norm, gains", {dy, x, saved, "gradients"}, {"gradients"}, 2 * size_.hidden);
    add("", "norm, backward", {dy, x, saved, past, "weights"}, {dx}, 4 * size_.hidden);
  }
  /// -> what the branch gets: the stream's gradient itself where nothing was dropped.
  std::string dropout_backward(const std::string& dx, const std::string& to) {
    if (run_.config.model.hidden_dropout <= 0) return dx;
    add("dropout_backward", "dropout, backward", {dx, "sample ids"}, {to}, 2 * size_.hidden);
    return to;
  }
  /// All-reduce over the ranks that split the layer. -> its number; the next launch on the compute stream waits for it
  /// unless it is a gradient's, for which wait_for() says so. -1: there is one rank.
  int sum_over_ranks(const std::string& buffer) {
    if (size_.tp == 1) return -1;
    plan.launches.push_back({"sum of " + buffer,
                             kTensorParallel,
                             {buffer},
                             {buffer},
                             2 * size_.hidden * size_.tokens * size_.element,
                             {last()}});
    const bool is_gradient = buffer.starts_with('d');
    if (!is_gradient) wait_for(last());
    return last();
  }

  Sizes size_;
  bool biased_;
  const ResolvedRun& run_;
  std::vector<int> after_;
};

}  // namespace

void validate(const LaunchPlan& plan) {
  const std::vector<Over> before = orders(plan);
  const auto ordered = [&](int first, int second) {
    const int stream = plan.launches[static_cast<std::size_t>(first)].stream;
    return before[static_cast<std::size_t>(second)][static_cast<std::size_t>(stream)] >= first;
  };
  std::map<std::string, std::vector<int>> users;
  for (int i = 0; i < static_cast<int>(plan.launches.size()); ++i) {
    const Launch& launch = plan.launches[static_cast<std::size_t>(i)];
    const auto meet = [&](const std::string& buffer, bool writes) {
      for (const int earlier : users[buffer]) {
        const Launch& other = plan.launches[static_cast<std::size_t>(earlier)];
        if ((writes || has(other.writes, buffer)) && !ordered(earlier, i))
          throw std::logic_error(concat(launch.name, " (", i, ") and ", other.name, " (", earlier, ") use ", buffer,
                                        " on streams that no event orders"));
      }
    };
    for (const std::string& buffer : launch.reads) {
      if (users[buffer].empty() && !has(plan.inputs, buffer))
        throw std::logic_error(concat(launch.name, " reads ", buffer, ", which nothing has written"));
      meet(buffer, false);
    }
    for (const std::string& buffer : launch.writes) meet(buffer, true);
    for (const auto* names : {&launch.reads, &launch.writes})
      for (const std::string& buffer : *names) users[buffer].push_back(i);
  }
}

bool activates_in_products(const ResolvedRun& run) {
  const Sizes size(run);
  constexpr double kUnit = 8;  // elements of 16 bytes
  const auto in_units = [](double features) { return std::fmod(features, kUnit) == 0; };
  return size.element == 2 && !run.shape.gated && run.config.model.activation == "gelu_tanh" && in_units(size.ffn) &&
         in_units(size.hidden);
}

LaunchPlan layer_launches(const ResolvedRun& run) {
  Writer writer(run);
  writer.forward();
  writer.backward();
  validate(writer.plan);
  return writer.plan;
}

std::string launch_text(const LaunchPlan& plan) {
  std::string text = fmt::format("{:>3}  {:34} {:16} {:>9}  {}\n", "", "launch", "stream", "MB", "waits for");
  double bytes = 0;
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    const Launch& launch = plan.launches[i];
    std::string events;
    for (const int event : launch.after) events += concat(events.empty() ? "" : ", ", event);
    text += fmt::format("{:>3}  {:34} {:16} {:>9.1f}  {}", i, launch.name,
                        plan.streams[static_cast<std::size_t>(launch.stream)], launch.bytes / 1e6, events);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
    bytes += launch.bytes;
  }
  return text + fmt::format("{} operators a layer, {:.2f} GB of memory traffic\n", plan.launches.size(), bytes / 1e9);
}

}  // namespace megatron::plan
