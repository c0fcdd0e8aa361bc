#include "megatron/kernels/profile.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <string_view>

#include "megatron/base/error.h"

namespace megatron::kernels {
namespace {

thread_local OperatorProfile* profile_of_thread = nullptr;

using Tensors = std::vector<at::Tensor>;

double count_of(const at::Tensor& x) { return static_cast<double>(x.numel()); }

double bytes_of(const at::Tensor& x) { return x.defined() ? static_cast<double>(x.nbytes()) : 0; }

/// Pairs of a query and a key that it sees, those of all samples by their number.
double pairs_of(std::int64_t s, std::int64_t t, const AttentionOptions& options) {
  std::int64_t pairs = s * t;
  if (options.causal) {
    pairs = 0;
    for (std::int64_t i = 0; i < s; ++i) pairs += std::clamp<std::int64_t>(i + 1 + t - s + options.ahead, 0, t);
  }
  const at::Tensor& first_bs = options.first_key;
  if (!first_bs.defined()) return static_cast<double>(pairs);
  // Of a part of a ring's keys the first that a query sees may lie behind all that it could see.
  const at::Tensor end_s = options.causal ? at::arange(s, first_bs.options()).add(1 + t - s + options.ahead).clamp(0, t)
                                          : at::full({s}, t, first_bs.options());
  const double hidden = at::minimum(first_bs, end_s).sum().item<double>() / static_cast<double>(first_bs.size(0));
  return static_cast<double>(pairs) - hidden;
}

/// Products of q [s, b, n, d] with the keys of k [t, b, g, d], each query with those that it sees: two of a score and
/// its value forward; five backward, where the scores are computed again.
double attention_flops(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options, int products) {
  return 2.0 * products * pairs_of(q.size(0), k.size(0), options) * count_of(q) / static_cast<double>(q.size(0));
}

double flops_of(std::string_view name, const Tensors& x, const AttentionOptions& options) {
  if (name == "linear" || name == "linear_activation") return 2 * count_of(x[0]) * static_cast<double>(x[1].size(0));
  if (name == "linear_input_gradient" || name == "linear_activation_gradient")
    return 2 * count_of(x[0]) * static_cast<double>(x[1].size(1));
  if (name == "linear_weight_gradient" || name == "linear_gradients")
    return 2 * count_of(x[1]) * static_cast<double>(x[0].size(1));
  if (name == "grouped_linear" || name == "grouped_linear_activation")
    return 2 * count_of(x[0]) * static_cast<double>(x[1].size(0));
  if (name == "grouped_input_gradient") return 2 * count_of(x[0]) * static_cast<double>(x[1].size(1));
  if (name == "grouped_weight_gradient") return 2 * count_of(x.back()) * static_cast<double>(x[0].size(0));
  if (name == "attention") return attention_flops(x[0], x[1], options, 2);
  if (name == "attention_backward") return attention_flops(x[1], x[2], options, 5);
  return 0;
}

/// Each tensor once; those that are read and written twice; of an embedding's table the rows that are used.
double traffic_of(std::string_view name, const Tensors& x) {
  if (name == "embedding") return bytes_of(x[0]) + 2 * bytes_of(x.back());
  if (name == "embedding_backward") return bytes_of(x[1]) + bytes_of(x[2]) + 2 * count_of(x[2]) * x[0].element_size();
  if (name == "dropout_backward" && x.back().is_same(x[0])) return 0;  // without dropout
  double bytes = 0;
  for (const at::Tensor& each : x) bytes += bytes_of(each);
  if (name == "rotate_" || name == "cross_entropy_gradient_" || name == "linear_weight_gradient" ||
      name == "linear_gradients")
    bytes += bytes_of(x[0]);
  if (name == "bias_dropout_add_norm_backward" && x.back().is_same(x[x.size() - 2])) bytes -= bytes_of(x.back());
  if (name == "adam_" || name == "sgd_" || name == "lion_") {  // param, model, grad, moments
    bytes += bytes_of(x[0]);
    for (std::size_t i = 3; i < x.size(); ++i) bytes += bytes_of(x[i]);
    if (x[1].defined() && x[1].is_same(x[0])) bytes -= bytes_of(x[1]);
  }
  return bytes;
}

/// The weight whose shape tells the products of a step apart; -1: none.
int weight_of(std::string_view name) {
  if (name == "linear_weight_gradient" || name == "linear_gradients" || name == "grouped_weight_gradient") return 0;
  return name.starts_with("linear") || name.starts_with("grouped") ? 1 : -1;
}

}  // namespace

OperatorProfile::OperatorProfile() { profile_of_thread = this; }

OperatorProfile::~OperatorProfile() { profile_of_thread = nullptr; }

OperatorProfile* OperatorProfile::current() {
  return profile_of_thread != nullptr && !profile_of_thread->in_call_ ? profile_of_thread : nullptr;
}

void OperatorProfile::add(const std::string& name, const OperatorUse& call) {
  OperatorUse& use = uses_[name];
  use.calls += call.calls;
  use.seconds += call.seconds;
  use.flops += call.flops;
  use.bytes += call.bytes;
}

ProfiledCall::~ProfiledCall() {
  profile_.in_call_ = false;
  if (!watch_) return;
  const double seconds = seconds_ ? *seconds_ : watch_->seconds();
  const int weight = weight_of(name_);
  const at::Tensor& w = tensors_[weight < 0 ? 0 : static_cast<std::size_t>(weight)];
  const std::string key = weight < 0 ? name_ : concat(name_, " ", w.size(0), " x ", w.size(1));
  profile_.add(key, {1, seconds, flops_of(name_, tensors_, attention_), traffic_of(name_, tensors_)});
}

}  // namespace megatron::kernels
