#include "megatron/model/decoding/token_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/kernels/decode.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/model/attention.h"
#include "megatron/model/layer_walk.h"

// b sequences, h hidden, n heads of this rank, d head size, f feed-forward features of this rank.
namespace megatron::model {
namespace {

const at::Tensor& arrived_or_none(const parallel::ParameterPtr& parameter, const at::Tensor& none) {
  return parameter ? parameter->arrived() : none;
}

std::int64_t outputs(const parallel::ParameterPtr& weight) { return weight->value.size(0); }
std::int64_t inputs(const parallel::ParameterPtr& weight) { return weight->value.size(1); }

// What the steps below compute; a model with anything else goes the way of all rows.
bool takes(const plan::SelfAttention& attention) {
  return attention.causal && !attention.distance_bias && !attention.latents && !attention.gated();
}
bool takes(const plan::CrossAttention& /*attention*/) { return false; }
bool takes(const plan::Mlp& /*mlp*/) { return true; }
bool takes(const plan::Experts& /*experts*/) { return false; }

/// The steps of a layer on one token of each sequence, from buffer to buffer.
class TokenSteps {
 public:
  /// `caches`: of each sequence, where they are in a pool; else empty.
  TokenSteps(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh, const TokenPlaces& places,
             std::span<PagedCache* const> caches = {});
  /// Begins a layer whose keys and values these are.
  void enter(const Block& block, const at::Tensor& keys, const at::Tensor& values);

  void project(const parallel::ColumnParallelLinear& linear);
  void normalize_heads(const BranchModules& branch);
  void attend(const plan::SelfAttention& attention, const BranchModules& branch);
  [[noreturn]] void take_gates(const BranchModules& /*branch*/) { gate(); }
  [[noreturn]] void gate() { throw std::logic_error("takes_token() does not let gated attention through"); }
  [[noreturn]] void attend_latents(const plan::SelfAttention& /*attention*/, const BranchModules& /*branch*/) {
    throw std::logic_error("takes_token() does not let latent attention through");
  }
  void expand(const plan::Mlp& mlp, const BranchModules& branch);
  [[noreturn]] void attend_across(const plan::CrossAttention& /*attention*/, const BranchModules& /*branch*/) {
    throw std::logic_error("takes_token() does not let cross attention through");
  }
  [[noreturn]] void route(const plan::Experts& /*experts*/, const BranchModules& /*branch*/) {
    throw std::logic_error("takes_token() does not let experts through");
  }
  void leave(const BranchModules& branch, std::size_t index, const Norm* next);
  void normalize(const Norm& norm);

  const at::Tensor& stream() const { return stream_; }
  const at::Tensor& normed() const { return normed_; }

 private:
  /// What a branch's first product gives and its last one takes, [b, features].
  struct Buffers {
    at::Tensor projected, inside;
  };
  /// The buffer with so many features: that of the layer before, where its had as many.
  const at::Tensor& sized(at::Tensor& buffer, std::int64_t features) const {
    if (!buffer.defined() || buffer.size(1) != features) buffer = rows(features);
    return buffer;
  }
  at::Tensor rows(std::int64_t features) const { return at::empty({stream_.size(0), features}, stream_.options()); }
  /// y = x W^T without a bias, and what adapters make of it.
  template <class Linear>
  void multiply(const at::Tensor& y, const at::Tensor& x, const Linear& linear) {
    if (linear.kept() && linear.kept()->chosen()) return linear.kept()->multiply_rows(y, x, wide_, low_rank_);
    const parallel::ParameterPtr& weight = linear.weight();
    if (const kernels::QuantizedMatrix* const blocks = weight->packed.quantized())
      kernels::few_rows_linear(y, x, *blocks, wide_);
    else
      kernels::few_rows_linear(y, x, weight->arrived(), wide_);
  }
  /// Of the projection to queries, keys and values.
  void add_bias(const BranchModules& branch) const {
    if (const auto& bias = branch.in.front().bias()) kernels::add_to_rows(buffers_[index_].projected, bias->arrived());
  }
  kernels::CacheStep step_of(const BranchModules& branch) const;
  void attend_each(const plan::SelfAttention& attention, const at::Tensor& out, const at::Tensor& projected,
                   const kernels::CacheStep& step) const;

  const StageModules& modules_;
  const comm::Group& tp_;
  at::Tensor stream_, normed_, branch_;  ///< [b, h]
  at::Tensor given_;                     ///< [b, h]: what a branch gives, normalized
  std::vector<Buffers> buffers_;         ///< of each branch of a layer
  std::size_t index_ = 0;                ///< of the branch under way
  at::Tensor wide_, scratch_, low_rank_, none_;
  kernels::CacheStep cache_;
  const Block* block_ = nullptr;
  const at::Tensor *keys_ = nullptr, *values_ = nullptr;
  std::span<PagedCache* const> caches_;
};

TokenSteps::TokenSteps(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh,
                       const TokenPlaces& places, std::span<PagedCache* const> caches)
    : modules_(modules),
      tp_(tp),
      stream_(x_1bh.select(0, 0).clone()),
      cache_{.batch = stream_.size(0),
             .heads = 0,
             .groups = 0,
             .head_size = 0,
             .rope = {},
             .position_b = places.position_b,
             .sinks = {},
             .first_key_b = places.first_key_b,
             .length = places.length},
      caches_(caches) {
  const std::int64_t b = stream_.size(0), h = stream_.size(1);
  normed_ = rows(h);
  branch_ = rows(h);
  std::int64_t widest = h;
  for (const Block& block : modules.blocks) {
    buffers_.resize(std::max(buffers_.size(), block.branches().size()));
    for (const BranchModules& branch : block.branches()) widest = std::max(widest, inputs(branch.out.weight()));
    const kernels::CacheStep step = step_of(block.attention());
    const at::Tensor scratch = kernels::attention_scratch(step);
    if (!scratch_.defined() || scratch_.numel() < scratch.numel()) scratch_ = scratch;
  }
  wide_ = at::empty({b, widest}, at::kFloat);
}

kernels::CacheStep TokenSteps::step_of(const BranchModules& branch) const {
  const auto& attention = std::get<plan::SelfAttention>(branch.spec.inner);
  kernels::CacheStep step = cache_;
  step.heads = branch.heads;
  step.groups = branch.groups;
  step.head_size = branch.head_size;
  step.scale = attention.scale;
  step.soft_cap = attention.variant.attn_logit_softcapping;
  step.sinks = sink_scores(branch);
  step.rope = modules_.rope_of(attention);
  return step;
}

void TokenSteps::enter(const Block& block, const at::Tensor& keys, const at::Tensor& values) {
  block_ = &block;
  keys_ = &keys;
  values_ = &values;
  index_ = 0;
}

void TokenSteps::normalize(const Norm& norm) {
  if (!norm.weight) {
    normed_.copy_(stream_);
    return;
  }
  kernels::norm_rows(normed_, stream_, norm.factor(), norm.offset(), norm.epsilon);
}

void TokenSteps::project(const parallel::ColumnParallelLinear& linear) {
  multiply(sized(buffers_[index_].projected, outputs(linear.weight())), normed_, linear);
}

void TokenSteps::normalize_heads(const BranchModules& branch) {
  const at::Tensor& projected = buffers_[index_].projected;
  add_bias(branch);
  normalized_queries_and_keys(projected.unsqueeze(0), branch, tp_);
}

void TokenSteps::attend(const plan::SelfAttention& attention, const BranchModules& branch) {
  auto& [projected, inside] = buffers_[index_];
  if (branch.head_norms.empty()) add_bias(branch);
  kernels::CacheStep step = step_of(branch);
  if (!caches_.empty()) return attend_each(attention, sized(inside, branch.heads * branch.head_size), projected, step);
  const at::Tensor& first = cache_.first_key_b;
  const auto asked = attention_options(attention, {.begin = cache_.length,
                                                   .s = 1,
                                                   .b = cache_.batch,
                                                   .first_key_bs = first.defined() ? first.unsqueeze(1) : first});
  step.first_key_b = asked.first_key.defined() ? asked.first_key.select(1, 0) : at::Tensor();
  kernels::attend_to_cache(sized(inside, branch.heads * branch.head_size), projected, *keys_, *values_, step, scratch_);
}

void TokenSteps::attend_each(const plan::SelfAttention& attention, const at::Tensor& out, const at::Tensor& projected,
                             const kernels::CacheStep& step) const {
  const std::int64_t window = attention.variant.sliding_window;
  std::vector<kernels::SequenceBlocks> sequences;
  for (const PagedCache* cache : caches_)
    sequences.push_back({.blocks = cache->blocks,
                         .length = cache->length,
                         .first_key = window > 0 ? std::max<std::int64_t>(0, cache->length - window + 1) : 0});
  kernels::attend_to_blocks(out, projected, *keys_, *values_, sequences, step, scratch_);
}

void TokenSteps::expand(const plan::Mlp& mlp, const BranchModules& branch) {
  project(branch.in.front());
  auto& [projected, inside] = buffers_[index_];
  kernels::activate_rows(sized(inside, inputs(branch.out.weight())), projected,
                         arrived_or_none(branch.in.front().bias(), none_), block_->options().activation, mlp.gated);
}

void TokenSteps::leave(const BranchModules& branch, std::size_t index, const Norm* next) {
  multiply(branch_, buffers_[index_].inside, branch.out);
  tp_.all_reduce(branch_);
  const at::Tensor& bias = arrived_or_none(branch.out.bias(), none_);
  if (branch.out_norm) {
    if (bias.defined()) kernels::add_to_rows(branch_, bias);
    kernels::norm_rows(sized(given_, branch_.size(1)), branch_, branch.out_norm->factor(), branch.out_norm->offset(),
                       branch.out_norm->epsilon);
    std::swap(branch_, given_);
  }
  kernels::add_residual_to_rows(branch_, branch.out_norm ? none_ : bias,
                                block_->residual_after_norm(index) ? normed_ : stream_);
  const bool same_stream = block_->reads_same_stream(index);
  if (same_stream && !block_->shares_norm(index)) normalize(*next);  // of the stream as it was
  std::swap(branch_, stream_);
  if (next != nullptr && !same_stream) normalize(*next);
  index_ = index + 1;
}

}  // namespace

bool takes_token(const StageModules& modules, const at::Tensor& x_sbh) {
  if (x_sbh.size(0) != 1 || modules.blocks.empty() || !kernels::decodes(x_sbh)) return false;
  const auto takes_product = [&](const parallel::ParameterPtr& weight) {
    return weight->value.scalar_type() == x_sbh.scalar_type() &&
           kernels::few_rows(x_sbh.size(1), weight->value, &weight->packed);
  };
  return std::ranges::all_of(modules.blocks, [&](const Block& block) {
    return std::ranges::all_of(block.branches(), [&](const BranchModules& branch) {
      return std::visit([](const auto& inner) { return takes(inner); }, branch.spec.inner) &&
             takes_product(branch.in.front().weight()) && takes_product(branch.out.weight());
    });
  });
}

namespace {

/// All blocks; enter(layer) begins each.
template <class Enter>
Normed run_steps(const StageModules& modules, TokenSteps& steps, const Enter& enter) {
  const auto& blocks = modules.blocks;
  const Norm* end = modules.final_norm ? &*modules.final_norm : nullptr;
  steps.normalize(blocks.front().input_norm());
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    enter(l);
    walk(blocks[l], l + 1 < blocks.size() ? &blocks[l + 1].input_norm() : end, steps);
  }
  return {steps.stream().unsqueeze(0), end != nullptr ? steps.normed().unsqueeze(0) : at::Tensor(), {}};
}

}  // namespace

Normed run_token(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh, const TokenPlaces& places,
                 const std::vector<at::Tensor>& keys, const std::vector<at::Tensor>& values) {
  TokenSteps steps(modules, tp, x_1bh, places);
  return run_steps(modules, steps, [&](std::size_t l) { steps.enter(modules.blocks[l], keys[l], values[l]); });
}

Normed run_token_of_each(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh,
                         const at::Tensor& position_b, std::span<PagedCache* const> caches) {
  std::int64_t longest = 0;
  for (const PagedCache* cache : caches) longest = std::max(longest, cache->length);
  const KvPool& pool = *caches.front()->pool;
  TokenSteps steps(modules, tp, x_1bh, {position_b, {}, longest}, caches);
  return run_steps(modules, steps,
                   [&](std::size_t l) { steps.enter(modules.blocks[l], pool.keys[l], pool.values[l]); });
}

}  // namespace megatron::model
