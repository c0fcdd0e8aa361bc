#include "megatron/model/token_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "megatron/kernels/decode.h"
#include "megatron/kernels/matmul.h"

// b sequences, h hidden, n heads of this rank, d head size, f feed-forward features of this rank.
namespace megatron::model {
namespace {

const at::Tensor& arrived_or_none(const parallel::ParameterPtr& parameter, const at::Tensor& none) {
  return parameter ? parameter->arrived() : none;
}

std::int64_t outputs(const parallel::ParameterPtr& weight) { return weight->value.size(0); }
std::int64_t inputs(const parallel::ParameterPtr& weight) { return weight->value.size(1); }

class TokenStep {
 public:
  TokenStep(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh, const TokenPlaces& places);
  /// The block's part of the stream, then `next` of it, which may be null.
  void run(const Block& block, const at::Tensor& keys, const at::Tensor& values, const Norm* next);
  void normalize(const Norm& norm);

  const at::Tensor& stream() const { return stream_; }
  const at::Tensor& normed() const { return normed_; }

 private:
  at::Tensor rows(std::int64_t features) const { return at::empty({stream_.size(0), features}, stream_.options()); }
  void multiply(const at::Tensor& y, const at::Tensor& x, const parallel::ParameterPtr& weight) const {
    kernels::few_rows_linear(y, x, weight->arrived(), wide_);
  }
  /// branch_ += bias + what the stream carries on: the stream from there.
  void join(const parallel::ParameterPtr& bias, bool after_norm);

  const comm::Group& tp_;
  at::Tensor stream_, normed_, branch_;          ///< [b, h]
  at::Tensor qkv_, attended_, hidden_, active_;  ///< [b, (n + 2 g) d], [b, n d], [b, f or 2 f], [b, f]
  at::Tensor wide_, scratch_, none_;
  kernels::CacheStep cache_;
};

TokenStep::TokenStep(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh,
                     const TokenPlaces& places)
    : tp_(tp), stream_(x_1bh.select(0, 0).clone()) {
  const Block& block = modules.blocks.front();
  const std::int64_t b = stream_.size(0), h = stream_.size(1), nd = inputs(block.proj().weight()),
                     f = inputs(block.fc2().weight());
  normed_ = rows(h);
  branch_ = rows(h);
  qkv_ = rows(outputs(block.qkv().weight()));
  attended_ = rows(nd);
  hidden_ = rows(outputs(block.fc1().weight()));
  active_ = rows(f);
  wide_ = at::empty({b, std::max({h, nd, f})}, at::kFloat);
  cache_ = {.batch = b,
            .heads = modules.local_heads,
            .groups = modules.local_groups,
            .head_size = nd / modules.local_heads,
            .rope = modules.rope,
            .position_b = places.position_b,
            .first_key_b = places.first_key_b,
            .length = places.length};
  scratch_ = kernels::attention_scratch(cache_);
}

void TokenStep::normalize(const Norm& norm) {
  kernels::norm_rows(normed_, stream_, norm.weight->arrived(), arrived_or_none(norm.bias, none_), norm.epsilon);
}

void TokenStep::join(const parallel::ParameterPtr& bias, bool after_norm) {
  tp_.all_reduce(branch_);
  kernels::add_residual_to_rows(branch_, arrived_or_none(bias, none_), after_norm ? normed_ : stream_);
  std::swap(branch_, stream_);
}

void TokenStep::run(const Block& block, const at::Tensor& keys, const at::Tensor& values, const Norm* next) {
  const auto& options = block.options();
  multiply(qkv_, normed_, block.qkv().weight());
  if (block.qkv().bias()) kernels::add_to_rows(qkv_, block.qkv().bias()->arrived());
  kernels::attend_to_cache(attended_, qkv_, keys, values, cache_, scratch_);
  multiply(branch_, attended_, block.proj().weight());
  join(block.proj().bias(), options.residual_after_norm);
  normalize(block.mlp_norm());
  multiply(hidden_, normed_, block.fc1().weight());
  kernels::activate_rows(active_, hidden_, arrived_or_none(block.fc1().bias(), none_), options.activation.form,
                         options.activation.gated);
  multiply(branch_, active_, block.fc2().weight());
  join(block.fc2().bias(), options.residual_after_norm);
  if (next != nullptr) normalize(*next);
}

}  // namespace

bool takes_token(const StageModules& modules, const at::Tensor& x_sbh) {
  if (x_sbh.size(0) != 1 || modules.blocks.empty() || !kernels::decodes(x_sbh)) return false;
  const Block& block = modules.blocks.front();
  return std::ranges::all_of(std::initializer_list<parallel::ParameterPtr>{block.qkv().weight(), block.proj().weight(),
                                                                           block.fc1().weight(), block.fc2().weight()},
                             [&](const auto& weight) {
                               return weight->value.scalar_type() == x_sbh.scalar_type() &&
                                      kernels::few_rows(x_sbh.size(1), weight->value);
                             });
}

Normed run_token(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh, const TokenPlaces& places,
                 const std::vector<at::Tensor>& keys, const std::vector<at::Tensor>& values) {
  const auto& blocks = modules.blocks;
  const Norm* end = modules.final_norm ? &*modules.final_norm : nullptr;
  TokenStep step(modules, tp, x_1bh, places);
  step.normalize(blocks.front().input_norm());
  for (std::size_t l = 0; l < blocks.size(); ++l)
    step.run(blocks[l], keys[l], values[l], l + 1 < blocks.size() ? &blocks[l + 1].input_norm() : end);
  return {step.stream().unsqueeze(0), end != nullptr ? step.normed().unsqueeze(0) : at::Tensor(), {}};
}

}  // namespace megatron::model
